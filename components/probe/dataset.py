"""The images a probe learns from and is judged on, and the two encoders that are compared."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from components.images.store import Store, read_card
from components.images.subset import listed
from components.mim.encoder import VisionEncoder
from components.mim.weights import load_encoder, untrained_encoder
from components.stage import file_hash


class Part(NamedTuple):
    """The `rows` [n] in use of one split."""

    store: Store
    rows: NDArray[np.int64]

    def column(self, name: str) -> NDArray[Any]:
        """The column's values for the rows in use [n]."""
        return self.store.column(name)[self.rows]

    def labels(self) -> NDArray[np.int64]:
        """The classes [n] of images, -1 for those that have none."""
        return self.column("label").astype(np.int64)

    def where(self, keep: NDArray[np.bool_]) -> "Part":
        """The rows for which the mask `keep` [n] is true."""
        return Part(self.store, self.rows[keep])


class Subject(NamedTuple):
    """An encoder under examination: `kind` is pretrained or untrained, `path` its file, `mark` names its weights."""

    kind: str
    encoder: VisionEncoder
    path: Path
    mark: str


LOADERS = {"pretrained": load_encoder, "untrained": untrained_encoder}
"""What makes a subject of either kind of its file."""


def spread(total: int, limit: int) -> NDArray[np.int64]:
    """At most `limit` of `total` rows at even distances, so that a dataset in order of class keeps all; 0 takes all."""
    count = min(limit, total) if limit else total
    return np.arange(count, dtype=np.int64) * total // max(count, 1)


def open_part(folder: Path, dataset: str, kind: str, split: str, limit: int, names: list[str] | None = None) -> Part:
    """At most `limit` rows of a prepared dataset, of those that the list `names` has if there is one.

    Raises ValueError when it is another dataset, of another kind, or lacks the split or an image of the list.
    """
    card = read_card(folder)
    if card["name"] != dataset:
        raise ValueError(
            f"{str(folder)!r} holds dataset {card['name']!r} but dataset is {dataset!r}; make the two agree"
        )
    if card["kind"] != kind:
        raise ValueError(
            f"dataset {dataset!r} is of kind {card['kind']!r}; this stage needs {kind!r}: name such a dataset"
        )
    store = Store(folder, split)
    if names is None:
        return Part(store, spread(len(store), limit))
    rows = listed(names, store.column("path"), f"dataset {dataset!r}, split {split!r}")
    return Part(store, rows[spread(len(rows), limit)])


def subjects(path: Path, height: int, width: int, device: torch.device) -> Iterator[Subject]:
    """The pretrained encoder, then itself before its first step, on `device`.

    Raises ValueError naming the file unless `height` × `width` fits the encoder.
    """
    mark = file_hash(path)
    for kind, load in LOADERS.items():
        encoder = load(path)
        try:
            encoder.grid(height, width)
        except ValueError as error:
            raise ValueError(f"encoder {str(path)!r}: {error}") from error
        yield Subject(kind, encoder.to(device), path, f"{mark}-{kind}")
