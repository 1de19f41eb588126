"""Features of a frozen encoder, encoded once and kept in a file.

The folder of a file is named by all that decides what it holds: weights, view, images, layers and the code that encodes; not by how many
workers do it. It is made in pieces, by one stage at a time; the file has its name when it is complete, so that what is there can be used.
"""

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path

import numpy as np

from components import progress
from components.images.transforms import View
from components.probe import workers
from components.probe.dataset import Part, Subject
from components.probe.extraction import CODE, Features, Request, columns, fill
from components.probe.params import Encoding
from components.probe.pieces import Pieces, cut
from components.stage import code, digest, remove
from components.work import alone, remove_unused, together

KEPT = "features.npy"


def pooled(
    subject: Subject, part: Part, view: View, *, layers: int, encoding: Encoding, folder: Path, label: str
) -> Features:
    """Features of the part's images as `view` shows them, from `folder` where they are kept already; `encoding` says who makes them.

    `label` names the work in the progress lines. Raises ValueError naming encoder and image for features that are no numbers, and what
    `workers.fill` raises.
    """
    sets = columns(subject.encoder, layers)
    path = home(folder, subject) / f"{subject.kind}-{part.store.split}-{key(subject, part, view, layers)}" / KEPT
    busy = f"{label}: another process encodes the same images; waiting to use its features"
    with alone(path.parent, busy):
        if path.is_file():
            progress.show(
                f"{label}: {len(part.rows)} kept from before in {path.parent.relative_to(folder)}, used again"
            )
        else:
            width = max(columns.stop for columns in sets.values())
            # Other batches or threads give the same features to rounding, but no mixture of them is any process' own.
            name = f"pieces-{encoding.batch_size}-{encoding.cpus_per_worker}"
            pieces = Pieces(path.parent / name, cut(len(part.rows), encoding.batch_size), width)
            _make(pieces, subject, Request(part, view, layers, encoding), label)
            pieces.join(path)
        for leftover in path.parent.glob("pieces-*"):
            remove(leftover)
    return Features(np.load(path, mmap_mode="r"), sets)


def key(subject: Subject, part: Part, view: View, layers: int) -> str:
    """Names what decides the features: nothing else may change them by more than rounding."""
    rows = hashlib.sha256(np.asarray(part.rows, dtype="<i8").tobytes()).hexdigest()
    data = [part.store.card["content"], part.store.split, rows]
    libraries = [version(name) for name in ("torch", "torchvision", "timm", "pillow", "numpy")]
    return digest([subject.mark, data, view._asdict(), layers, code(*CODE), libraries])


def home(folder: Path, subject: Subject) -> Path:
    """Where a stage keeps what it made of one encoder file, trained or not, under its folder `work`."""
    return folder / "features" / subject.mark[:16]


@contextmanager
def keeping(folder: Path, subject: Subject) -> Iterator[None]:
    """Keeps what is made of the subject's encoder file, and removes what is kept of others: it is large, and can be made again.

    What another process keeps at the same time stays.
    """
    mine = home(folder, subject)
    with together(mine):
        for path in mine.parent.iterdir():
            if path != mine:
                remove_unused(path)
        yield


def _make(pieces: Pieces, subject: Subject, request: Request, label: str) -> None:
    """The pieces that are missing, or damaged."""
    whole, damaged = pieces.found()
    for piece in sorted(damaged):
        progress.show(f"{label}: images {piece.start} to {piece.stop} were damaged on disk and are encoded again")
    meter = progress.Meter(label, pieces.rows, "images")
    if whole:
        kept = sum(piece.rows for piece in whole)
        progress.show(
            f"{label}: {kept} of {pieces.rows} images are there from before an interruption; goes on with the rest"
        )
        meter.skip(kept)
    missing = [piece for piece in pieces.all if piece not in whole]
    if missing and request.encoding.workers > 1:
        workers.fill(pieces, missing, subject, request, meter.advance, label)
    else:
        fill(pieces, missing, subject, request, meter.advance)
