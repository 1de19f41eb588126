"""Where heads get their features from: a file of features, or random crops encoded as the heads learn."""

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from components.images import decoding
from components.images.loading import threaded
from components.images.transforms import Pixels, crop_draws, random_crop
from components.mim import keys
from components.probe.dataset import Part, Subject
from components.probe.extraction import CODE, DECODERS, Features, check_finite, columns, encode
from components.probe.grid import Step
from components.probe.memory import tensor
from components.stage import code, digest


class Cached:
    """Rows of kept features. Of several views of the images each epoch takes one at random, which is what a random flip does."""

    mark = ""

    def __init__(
        self, views: list[Features], rows: NDArray[np.int64], labels: np.ndarray, seed: int, device: torch.device
    ) -> None:
        self.labels, self._rows, self._seed, self._device = labels, torch.from_numpy(rows), seed, device
        self._views, self._columns = [tensor(view.matrix) for view in views], views[0].columns
        self.widths: Mapping[str, int] = {name: part.stop - part.start for name, part in self._columns.items()}

    def features(self, steps: Iterator[Step]) -> Iterator[Mapping[str, Tensor]]:
        """The feature sets [B, D] of each step."""
        epoch, which = -1, torch.empty(0)
        for step in steps:
            rows = self._rows[step.rows]
            matrix = self._views[0][rows]
            if len(self._views) > 1:
                if step.epoch != epoch:
                    epoch, which = step.epoch, self._drawn(step.epoch)
                for number, view in enumerate(self._views[1:], 1):
                    chosen = which[step.rows] == number
                    matrix[chosen] = view[rows[chosen]]
            yield _sets(matrix.to(self._device), self._columns)

    def _drawn(self, epoch: int) -> Tensor:
        """The view of each row [n] in an epoch."""
        draws = keys.uniform(keys.key(self._seed, "probe view", epoch), self._rows, 1)[:, 0]
        return (draws * len(self._views)).long()


class Crop(NamedTuple):
    """Random crops: `size` pixels square, of `scale_min`..`scale_max` of the area, mirrored half of the time with `flip`."""

    size: int
    scale_min: float
    scale_max: float
    flip: bool


class Augmented:
    """Random crops, encoded once for all heads. A crop is decided by seed, epoch and the image's index in its split."""

    def __init__(
        self, subject: Subject, part: Part, labels: np.ndarray, crop: Crop, seed: int, layers: int, at_once: int
    ) -> None:
        self._subject, self._part, self._crop, self._seed = subject, part, crop, seed
        self._layers, self._at_once, self._columns = layers, at_once, columns(subject.encoder, layers)
        self.labels = labels
        self.widths: Mapping[str, int] = {name: part.stop - part.start for name, part in self._columns.items()}
        data = [part.store.card["content"], part.store.split, part.rows.tolist()]
        self.mark = digest([subject.mark, data, crop._asdict(), seed, layers, code("components.probe", *CODE)])

    def features(self, steps: Iterator[Step]) -> Iterator[Mapping[str, Tensor]]:
        """The feature sets [B, D] of each step: one forward pass, in parts of `at_once` images."""
        epochs: list[int] = []

        def rows() -> Iterator[NDArray[np.int64]]:
            for step in steps:
                epochs.append(step.epoch)
                yield self._part.rows[step.rows.numpy()]

        def reader(batch: NDArray[np.int64]) -> Callable[[int], Pixels]:
            return partial(_crop, self._part, batch, crop_draws(self._seed, epochs[-1], batch), self._crop)

        for batch, pixels in threaded(rows(), reader, DECODERS):
            matrix = torch.cat(
                [encode(self._subject.encoder, x, self._layers) for x in torch.split(pixels, self._at_once)]
            )
            check_finite(matrix, self._subject, self._part.store, batch)
            yield _sets(matrix, self._columns)


def _crop(part: Part, rows: NDArray[np.int64], draws: NDArray[np.float32], crop: Crop, i: int) -> Pixels:
    return random_crop(decoding.pixels(part.store, int(rows[i])), draws[i], **crop._asdict())


def _sets(matrix: Tensor, columns: Mapping[str, slice]) -> dict[str, Tensor]:
    return {name: matrix[:, part] for name, part in columns.items()}
