"""Which images a worker sees in which step, decoded ahead of it."""

import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Dataset

from components.images import decoding
from components.images.loading import alive, loader, threaded
from components.images.store import Store
from components.images.transforms import Pixels, colour_draws, crop_draws, degrade, random_crop
from components.mim import keys
from components.pretrain.contract import PretrainParams
from components.pretrain.training_params import Augmentation


class Batch(NamedTuple):
    """One worker's share of one step: uint8 pixels [B, H, W, 3] and places in the global batch [B].

    `waited`: the seconds for which whoever takes it from `Batches.steps` stood still until it was there, whole and (for a GPU) pinned.
    """

    pixels: Tensor
    places: Tensor
    waited: float = 0.0


class Batches:
    """The order of a run: seeded permutations of the dataset, one an epoch, end on end, and cut into global batches.

    So every image comes exactly once per epoch and to one worker, and a batch may hold the end of an epoch and the start of the next;
    only the last epoch leaves out what fills no batch. A step's images follow from its number alone. Raises ValueError when the split
    is smaller than one global batch.
    """

    def __init__(self, params: PretrainParams, store: Store, rank: int, world: int) -> None:
        self._params, self._count = params, len(store)
        self._size = params.optimisation.global_batch_size
        if self._count < self._size:
            raise ValueError(
                f"optimisation.global_batch_size is {self._size}, but the train split of {params.dataset!r} has {self._count} images; "
                f"lower it to at most {self._count}"
            )
        share = self._size // world
        self._places = np.arange(rank * share, (rank + 1) * share, dtype=np.int64)
        self._crops = Crops(store, params.augmentation, params.encoder.image_size, params.seed)
        self._orders: dict[int, NDArray[np.int64]] = {}

    @property
    def steps_per_epoch(self) -> float:
        """Global batches in one epoch, which need not be whole ones."""
        return self._count / self._size

    @property
    def total(self) -> int:
        """Steps of the whole run: all whole batches of its epochs."""
        return self._params.optimisation.epochs * self._count // self._size

    def images(self, step: int) -> NDArray[np.int64]:
        """Epoch and dataset index of each of this worker's images in `step`: [B, 2]."""
        epochs, places = np.divmod(step * self._size + self._places, self._count)
        indices = np.concatenate([self._order(int(epoch))[places[epochs == epoch]] for epoch in np.unique(epochs)])
        return np.stack([epochs, indices], axis=1)

    def path(self, index: int) -> str:
        """The name of an image of the dataset, as errors tell it."""
        return str(self._crops.store.column("path")[index])

    def batch(self, step: int) -> Batch:
        """One step's batch, decoded here and now."""
        pixels = self._crops[self.images(step)]
        if isinstance(pixels, str):
            raise ValueError(pixels)
        return Batch(pixels, torch.from_numpy(self._places))

    def steps(self, start: int, stop: int) -> Iterator[Batch]:
        """Batches of the steps from `start` up to `stop`, decoded while those before are trained on, by `scale.loaders` processes."""
        decoded, asked = self._decoded(range(start, stop)), time.monotonic()
        for pixels in decoded:
            yield Batch(pixels, torch.from_numpy(self._places), time.monotonic() - asked)
            asked = time.monotonic()  # the step is done: from here on it waits for us

    def _decoded(self, steps: range) -> Iterator[Tensor]:
        scale, plan = self._params.scale, _Plan(self, steps)
        if not scale.loaders:
            threads = scale.cpus_per_worker if scale.device == "gpu" else 1
            for _, pixels in threaded(plan, self._crops.reader, threads):
                yield pixels
            return
        loading = loader(self._crops, scale.loaders, scale.device == "gpu", batch_size=None, sampler=plan)
        for pixels in alive(loading, "scale.loaders"):
            if isinstance(pixels, str):
                raise ValueError(pixels)
            yield pixels

    def _order(self, epoch: int) -> NDArray[np.int64]:
        if epoch not in self._orders:
            seed = keys.key(self._params.seed, "order", epoch)
            # A batch straddles two epochs at most, and those before do not come back.
            self._orders = {kept: order for kept, order in self._orders.items() if kept == epoch - 1}
            self._orders[epoch] = np.random.default_rng(seed).permutation(self._count)
        return self._orders[epoch]


class _Plan:
    """The images of some steps, found one step at a time: here and not in the processes that decode, which hold no permutation."""

    def __init__(self, batches: Batches, steps: range) -> None:
        self._batches, self._steps = batches, steps

    def __iter__(self) -> Iterator[NDArray[np.int64]]:
        return map(self._batches.images, self._steps)


class Crops(Dataset[Tensor | str]):
    """Augmented crops of a dataset's images by their epochs and indices [B, 2], decoded wherever this is pickled to."""

    def __init__(self, store: Store, augmentation: Augmentation, size: int, seed: int) -> None:
        self.store, self._augmentation, self._size, self._seed = store, augmentation, size, seed

    def __getitem__(self, images_B2: NDArray[np.int64]) -> Tensor | str:
        """uint8 [B, H, W, 3]; where an image can't be decoded what is wrong, which crosses processes without their traceback."""
        crop = self.reader(images_B2)
        try:
            return torch.from_numpy(np.stack([crop(i) for i in range(len(images_B2))]))
        except ValueError as error:
            return str(error)

    def reader(self, images_B2: NDArray[np.int64]) -> Callable[[int], Pixels]:
        """What gives the crop of the i-th image. Each is drawn by its own epoch and index, whatever batch it is in."""
        epochs, indices = images_B2.T
        crops, colours = (
            _by_epoch(epochs, indices, partial(draws, self._seed)) for draws in (crop_draws, colour_draws)
        )
        return lambda i: self._augmented(int(indices[i]), crops[i], colours[i])

    def _augmented(self, index: int, crop_draw: NDArray[np.float32], colour_3: NDArray[np.float32]) -> Pixels:
        chosen = self._augmentation
        crop = random_crop(
            decoding.pixels(self.store, index),
            crop_draw,
            size=self._size,
            scale_min=chosen.crop_scale_min,
            scale_max=chosen.crop_scale_max,
            flip=chosen.flip,
        )
        return degrade(crop, colour_3, grayscale=chosen.grayscale, blur=chosen.blur)


def _by_epoch(
    epochs: NDArray[np.int64],
    indices: NDArray[np.int64],
    draws: Callable[[int, NDArray[np.int64]], NDArray[np.float32]],
) -> NDArray[np.float32]:
    """`draws` [B, …] of each image in its own epoch. The epochs of a batch ascend, for it is cut from their stream."""
    parts: Iterable[NDArray[np.float32]] = (draws(int(epoch), indices[epochs == epoch]) for epoch in np.unique(epochs))
    return np.concatenate(list(parts))
