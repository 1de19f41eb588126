"""Frozen encoders as feature extractors: pooled vectors of images, encoded once and kept in a file.

The folder of a file is named by all that decides what it holds: weights, view, images, layers and the code that encodes. The file is
written under another name and renamed when it is complete, by one process at a time, so that what is there can be used.
"""

import hashlib
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import BinaryIO, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from components import progress
from components.images import decoding
from components.images.loading import threaded
from components.images.store import Store
from components.images.transforms import View, normalise
from components.mim.encoder import VisionEncoder
from components.probe.dataset import Part, Subject
from components.stage import atomic, code, digest
from components.work import alone, remove_unused, together

DECODERS = max(2, len(os.sched_getaffinity(0)))
KEPT = "features.npy"
CODE = ("components.mim", "components.images", "components.probe.extraction")


class Features(NamedTuple):
    """Pooled features: `matrix` float32 [n, W], in whose columns each feature set has its slice."""

    matrix: NDArray[np.float32]
    columns: dict[str, slice]

    def of(self, name: str) -> NDArray[np.float32]:
        """The feature set `name` [n, D]."""
        return self.matrix[:, self.columns[name]]

    def where(self, keep: NDArray[np.bool_]) -> "Features":
        """The rows for which the mask `keep` [n] is true, in memory."""
        return Features(self.matrix[keep], self.columns)


def tensor(values: NDArray[np.float32]) -> Tensor:
    """A tensor on the array's own memory, kept features among them: nobody here writes to it, which torch warns of."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The given NumPy array is not writable")
        return torch.from_numpy(values)


def columns(encoder: VisionEncoder, layers: int) -> dict[str, slice]:
    """Where the feature sets stand: `last`, `last4` (the last `layers` layers, all in a shallower encoder), `class_token`."""
    width, depth = encoder.config.width, min(layers, encoder.config.layers)
    sets = {"last": slice((depth - 1) * width, depth * width), "last4": slice(0, depth * width)}
    token = {"class_token": slice(depth * width, (depth + 1) * width)}
    return sets | token if encoder.has_class_token else sets


@torch.inference_mode()
def encode(encoder: VisionEncoder, pixels_BHWC: Tensor, layers: int) -> Tensor:
    """Pooled features float32 [B, W] of uint8 pixels, on the encoder's device.

    Each layer counts with the final norm applied, averaged over its patches, as in VISSL's lastPOOL and concatPOOL4; the class
    token is the final-normed one.
    """
    images = normalise(pixels_BHWC.to(next(encoder.parameters()).device))
    outputs = encoder.layer_outputs(images, min(layers, encoder.config.layers))
    vectors = [tokens[:, encoder.prefix :].mean(dim=1) for tokens in outputs]
    if encoder.has_class_token:
        vectors.append(outputs[-1][:, 0])
    return torch.cat(vectors, dim=1).float()


def pooled(
    subject: Subject, part: Part, view: View, *, layers: int, batch_size: int, folder: Path, label: str
) -> Features:
    """Features of the part's images as `view` shows them, from `folder` where they are kept already.

    `label` names the work in the progress lines. Raises ValueError naming encoder and image for features that are no numbers.
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
            with atomic(path) as temporary, temporary.open("wb") as file:
                shape = (len(part.rows), max(columns.stop for columns in sets.values()))
                header = {
                    "descr": np.lib.format.dtype_to_descr(np.dtype(np.float32)),
                    "fortran_order": False,
                    "shape": shape,
                }
                np.lib.format.write_array_header_1_0(file, header)
                _fill(file, subject, part, view, layers, batch_size, label)
                file.flush()
                os.fsync(file.fileno())  # the new name must not survive a crash that the bytes do not
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


def _fill(file: BinaryIO, subject: Subject, part: Part, view: View, layers: int, batch_size: int, label: str) -> None:
    # Written and not mapped: a disk that is full raises an error here, and ends the process without a word there.
    meter = progress.Meter(label, len(part.rows), "images")
    plan = (part.rows[start : start + batch_size] for start in range(0, len(part.rows), batch_size))
    for rows, pixels in threaded(
        plan, lambda rows: lambda i: view(decoding.pixels(part.store, int(rows[i]))), DECODERS
    ):
        features = encode(subject.encoder, pixels, layers)
        check_finite(features, subject, part.store, rows)
        file.write(np.ascontiguousarray(features.cpu().numpy()).data)
        meter.advance(len(rows))


def check_finite(features_BW: Tensor, subject: Subject, store: Store, rows: NDArray[np.int64]) -> None:
    """Raises ValueError naming the encoder's file and the first image whose features are no numbers."""
    wrong = ~features_BW.isfinite().all(dim=1)
    if wrong.any():
        paths = store.column("path")[rows[wrong.cpu().numpy()]]
        raise ValueError(
            f"encoder {str(subject.path)!r} ({subject.kind}) gives features that are not finite for {len(paths)} of "
            f"{len(rows)} images, {str(paths[0])!r} first; it has diverged: pretrain with a lower rate, or take an earlier state"
        )
