"""The images a probe learns from and is judged on, and the two encoders that are compared."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from components.images.store import Store
from components.mim.encoder import VisionEncoder
from components.mim.weights import load_encoder, untrained_encoder


class Part(NamedTuple):
    """The `rows` [n] in use of one split."""

    store: Store
    rows: NDArray[np.int64]

    def column(self, name: str) -> NDArray[Any]:
        """The column's values for the rows in use [n]."""
        return self.store.column(name)[self.rows]


def spread(total: int, limit: int) -> NDArray[np.int64]:
    """At most `limit` of `total` rows at even distances, so that a dataset in order of class keeps all; 0 takes all."""
    count = min(limit, total) if limit else total
    return np.arange(count, dtype=np.int64) * total // max(count, 1)


def open_part(folder: Path, dataset: str, kind: str, split: str, limit: int) -> Part:
    """Rows of a prepared dataset. Raises ValueError when it is another dataset, of another kind, or lacks the split."""
    store = Store(folder, split)
    if store.card["name"] != dataset:
        raise ValueError(
            f"{str(folder)!r} holds dataset {store.card['name']!r} but dataset is {dataset!r}; make the two agree"
        )
    if store.card["kind"] != kind:
        raise ValueError(
            f"dataset {dataset!r} is of kind {store.card['kind']!r}; this stage needs {kind!r}: name such a dataset"
        )
    return Part(store, spread(len(store), limit))


def encoders(path: Path, height: int, width: int) -> Iterator[tuple[str, VisionEncoder]]:
    """The pretrained encoder, then itself before its first step. Raises ValueError unless `height` × `width` fits it."""
    for name, load in (("pretrained", load_encoder), ("untrained", untrained_encoder)):
        encoder = load(path)
        encoder.grid(height, width)
        yield name, encoder
