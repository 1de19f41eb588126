"""Several processes that encode: each opens the images and the encoder itself and writes pieces, on a path that all nodes see."""

import socket
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple
from uuid import uuid4

import numpy as np
from numpy.typing import NDArray

from components.features import pick
from components.images.store import Store
from components.images.transforms import View
from components.probe import extraction
from components.probe.dataset import LOADERS, Part, Subject
from components.probe.extraction import Request
from components.probe.params import Encoding
from components.probe.pieces import Piece, Pieces
from components.stage import file_hash


class Job(NamedTuple):
    """What a worker needs to know, small enough to send."""

    encoder: Path
    kind: str
    mark: str
    dataset: Path
    content: str
    split: str
    rows: NDArray[np.int64]
    view: View
    layers: int
    encoding: Encoding
    gpu: bool
    pieces: Pieces
    token: str


def ordered(pieces: Pieces, subject: Subject, request: Request) -> Job:
    """The job of those who make `pieces`. Leaves a token among them, by which a worker knows that it sees the same folder."""
    token, store = uuid4().hex, request.part.store
    (pieces.folder / token).touch()
    gpu = next(subject.encoder.parameters()).device.type == "cuda"
    return Job(
        subject.path, subject.kind, subject.mark, store.folder, store.card["content"], store.split, request.part.rows,
        request.view, request.layers, request.encoding, gpu, pieces, token,
    )  # fmt: skip


class Worker:
    """One process that encodes."""

    def __init__(self, job: Job) -> None:
        self._job = job

    def begin(self) -> None:
        """Loads the encoder. Raises ValueError naming node and path where this node does not see what the stage sees."""
        job = self._job
        if not (job.pieces.folder / job.token).is_file():
            raise _unseen(job.pieces.folder, "the features")
        if not (job.dataset / "card.json").is_file():
            raise _unseen(job.dataset, "the dataset")
        store = Store(job.dataset, job.split)
        if store.card["content"] != job.content:
            raise _unseen(job.dataset, "the dataset")
        if not job.encoder.is_file() or not job.mark.startswith(file_hash(job.encoder)):
            raise _unseen(job.encoder, "the encoder")
        encoder = LOADERS[job.kind](job.encoder).to(pick("gpu" if job.gpu else "cpu"))
        self._subject = Subject(job.kind, encoder, job.encoder, job.mark)
        self._request = Request(Part(store, job.rows), job.view, job.layers, job.encoding)

    def do(self, piece: Piece) -> None:
        """Makes the file of `piece`."""
        extraction.fill(self._job.pieces, [piece], self._subject, self._request, lambda _: None)


def fill(
    pieces: Pieces,
    missing: Sequence[Piece],
    subject: Subject,
    request: Request,
    advance: Callable[[int], None],
    label: str,
) -> None:
    """Has the `missing` pieces made by as many Ray workers as the request says; `advance` is told the images of each piece.

    Raises as `extraction.fill` and `crew.Crew.work` do, and ValueError where a node does not see the files.
    """
    from components.cluster import Asked  # Ray, which takes seconds to import: only where it is used
    from components.crew import Crew

    job = ordered(pieces, subject, request)
    asked = Asked(
        workers=request.encoding.workers,
        cpus=request.encoding.cpus_per_worker,
        gpus=int(job.gpu),
        section="workers",
        fewer_cpus="lower workers or cpus_per_worker",
        fewer_gpus="lower workers, or set device to cpu",
    )
    crew = Crew(Worker, job, asked, label, _images, "lower encoding_batch_size or workers")
    crew.work(missing, lambda piece: advance(piece.rows))


def _images(piece: Piece) -> str:
    return f"images {piece.start} to {piece.stop}"


def _unseen(path: Path, what: str) -> ValueError:
    return ValueError(
        f"a worker on node {socket.gethostname()!r} does not see {what} in {str(path)!r} as the stage does; put it on a path that all "
        "nodes share, or set workers: 1"
    )
