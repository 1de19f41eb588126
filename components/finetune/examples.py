"""What a finetuning learns from and is judged on: rows of a prepared dataset, and the loaders that decode them."""

from collections.abc import Iterator
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from components.finetune.augment import Augment
from components.finetune.contract import FinetuneInputs, FinetuneParams, FinetuningParams
from components.images import decoding
from components.images.loading import alive, loader
from components.images.store import Store
from components.images.subset import read_list
from components.images.transforms import square
from components.mim import keys
from components.probe.choice import check_labels, split
from components.probe.dataset import Part, open_part
from components.probe.heads import Task


class Data(NamedTuple):
    """Rows to learn from, rows that choose the epoch, and rows that are scored; `judge` is `test` in profile paper."""

    train: Part
    judge: Part
    test: Part
    classes: list[str]


def read(name: str, params: FinetuneParams, finetuning: FinetuningParams, inputs: FinetuneInputs) -> Data:
    """The data of one finetuning. Raises ValueError for labels, lists, limits or sizes that cannot work."""
    names = read_list(inputs.train_list, finetuning.train_list_sha256)
    opened = partial(open_part, inputs.dataset, finetuning.dataset, "images")
    test = opened(finetuning.test_split, finetuning.test_limit)
    train = opened(finetuning.train_split, finetuning.train_limit, names)
    task = Task(f"finetune {name}", train.store.card["classes"], finetuning.optimisation.epochs)
    check_labels(task, train, train.labels())
    if finetuning.train_per_class:
        train = Part(train.store, drawn(task, train.rows, train.labels(), finetuning.train_per_class, params.seed))
    hold = split(params, task, train, train.labels(), test, test.labels())
    learned, batch_size = train.where(~hold), finetuning.optimisation.batch_size
    if len(learned.rows) < batch_size:
        raise ValueError(
            f"{task.name}: optimisation.batch_size is {batch_size}, but there are {len(learned.rows)} training images; lower "
            f"it to at most {len(learned.rows)}"
        )
    judge = test if params.profile == "paper" else train.where(hold)
    return Data(learned, judge, test, list(task.classes))


def drawn(task: Task, rows: NDArray[np.int64], labels: NDArray[np.int64], count: int, seed: int) -> NDArray[np.int64]:
    """Exactly `count` of `rows` [n] of each class that `labels` [n] holds, in order, drawn by `seed`.

    What is drawn of a class depends on its own rows alone. Raises ValueError for a class with fewer.
    """
    chosen = []
    for number in np.unique(labels):
        own = rows[labels == number]
        if len(own) < count:
            raise ValueError(
                f"{task.name}: class {task.classes[int(number)]!r} has {len(own)} training images, but train_per_class is "
                f"{count}; lower it, or 0 takes all"
            )
        order = np.random.default_rng(keys.key(seed, "per class", int(number))).permutation(len(own))
        chosen.append(own[order[:count]])
    return np.sort(np.concatenate(chosen))


class _Crops(Dataset[tuple[Tensor, int]]):
    """Augmented training images by (epoch, row)."""

    def __init__(self, store: Store, augment: Augment) -> None:
        self._store, self._augment, self._labels = store, augment, store.column("label")

    def __getitem__(self, place: tuple[int, int]) -> tuple[Tensor, int]:
        epoch, row = place
        pixels = self._augment(decoding.pixels(self._store, row), epoch, row)
        return torch.from_numpy(np.array(pixels)), int(self._labels[row])


class _Views(Dataset[Tensor]):
    """The squares that are scored, by place in the part."""

    def __init__(self, part: Part, finetuning: FinetuningParams) -> None:
        self._part = part
        self._view = square(finetuning.image_size, finetuning.resize, finetuning.resize_short_side)

    def __len__(self) -> int:
        return len(self._part.rows)

    def __getitem__(self, place: int) -> Tensor:
        return torch.from_numpy(np.array(self._view(decoding.pixels(self._part.store, int(self._part.rows[place])))))


class Batches:
    """The order of a run: a seeded permutation per epoch, cut into batches, the rest of an epoch left out."""

    def __init__(self, params: FinetuneParams, finetuning: FinetuningParams, train: Part) -> None:
        self._params, self._rows = params, train.rows
        self._size = finetuning.optimisation.batch_size
        self._crops = _Crops(train.store, Augment(finetuning.augmentation, finetuning.image_size, params.seed))

    @property
    def per_epoch(self) -> int:
        """Batches in one epoch."""
        return len(self._rows) // self._size

    def places(self, epoch: int) -> list[list[tuple[int, int]]]:
        """(epoch, row) of each image of each batch."""
        order = (
            np.random.default_rng(keys.key(self._params.seed, "finetune order", epoch)).permutation(self._rows).tolist()
        )
        starts = range(0, self.per_epoch * self._size, self._size)
        return [[(epoch, row) for row in order[start : start + self._size]] for start in starts]

    def epochs(self, start: int, stop: int) -> Iterator[tuple[Tensor, Tensor]]:
        """The batches of epochs `start` … `stop`-1 on end: uint8 pixels [B, H, W, 3] and labels [B]."""
        loading = _loader(self._crops, self._params, batch_sampler=_Order(self, range(start, stop)))
        yield from alive(loading, "workers")


class _Order:
    """The batches of some epochs, made one epoch at a time: a hundred epochs of ImageNet would fill the memory."""

    def __init__(self, batches: Batches, epochs: range) -> None:
        self._batches, self._epochs = batches, epochs

    def __iter__(self) -> Iterator[list[tuple[int, int]]]:
        for epoch in self._epochs:
            yield from self._batches.places(epoch)


def views(part: Part, params: FinetuneParams, finetuning: FinetuningParams) -> DataLoader[Tensor]:
    """The images of `part` in order, each once, to be gone through once per epoch: uint8 pixels [B, H, W, 3]."""
    return _loader(_Views(part, finetuning), params, batch_size=params.scoring_batch_size)


def _loader(dataset: Dataset[Any], params: FinetuneParams, **how: Any) -> DataLoader[Any]:
    return loader(dataset, params.workers, params.device == "gpu", **how)
