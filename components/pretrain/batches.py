"""Which images a worker sees in which step, decoded one step ahead."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from components.images import decoding
from components.images.store import Store
from components.images.transforms import Pixels, colour_draws, crop_draws, degrade, random_crop
from components.mim import keys
from components.pretrain.contract import PretrainParams


class Batch(NamedTuple):
    """One worker's share of one step: uint8 pixels [B, H, W, 3] and places in the global batch [B]."""

    pixels: Tensor
    places: Tensor


class Batches:
    """The order of a run: a seeded permutation per epoch, cut into global batches, the rest of an epoch left out.

    Every image comes at most once per epoch and belongs to exactly one worker. Raises ValueError when the split is smaller
    than one global batch.
    """

    def __init__(self, params: PretrainParams, store: Store, rank: int, world: int) -> None:
        self._params, self._store = params, store
        size = params.optimisation.global_batch_size
        if len(store) < size:
            raise ValueError(
                f"optimisation.global_batch_size is {size}, but the train split of {params.dataset!r} has {len(store)} images; "
                f"lower it to at most {len(store)}"
            )
        self._size, self._per_epoch = size, len(store) // size
        share = size // world
        self._places = np.arange(rank * share, (rank + 1) * share, dtype=np.int64)

    @property
    def steps_per_epoch(self) -> int:
        """Global batches in one epoch."""
        return self._per_epoch

    def indices(self, step: int) -> NDArray[np.int64]:
        """Dataset indices of this worker's images in `step`."""
        epoch, batch = divmod(step, self._per_epoch)
        return self._order(epoch)[batch * self._size + self._places]

    def steps(self, start: int, stop: int) -> Iterator[Batch]:
        """Batches of the steps from `start` up to `stop`, each decoded while the one before is trained on."""
        with ThreadPoolExecutor(1) as decoder:
            ahead = decoder.submit(self._decode, start)
            for step in range(start, stop):
                batch = ahead.result()
                if step + 1 < stop:
                    ahead = decoder.submit(self._decode, step + 1)
                yield batch

    def _decode(self, step: int) -> Batch:
        indices, seed, epoch = self.indices(step), self._params.seed, step // self._per_epoch
        draws = zip(indices, crop_draws(seed, epoch, indices), colour_draws(seed, epoch, indices), strict=True)
        pixels = [self._augmented(int(index), crop_5, colour_3) for index, crop_5, colour_3 in draws]
        return Batch(torch.from_numpy(np.stack(pixels)), torch.from_numpy(self._places))

    def _augmented(self, index: int, crop_5: NDArray[np.float32], colour_3: NDArray[np.float32]) -> Pixels:
        chosen, size = self._params.augmentation, self._params.encoder.image_size
        crop = random_crop(
            decoding.pixels(self._store, index),
            crop_5,
            size=size,
            scale_min=chosen.crop_scale_min,
            scale_max=chosen.crop_scale_max,
            flip=chosen.flip,
        )
        return degrade(crop, colour_3, grayscale=chosen.grayscale, blur=chosen.blur)

    def _order(self, epoch: int) -> NDArray[np.int64]:
        if getattr(self, "_epoch", None) != epoch:
            seed = keys.key(self._params.seed, "order", epoch)
            self._epoch, self._permutation = epoch, np.random.default_rng(seed).permutation(len(self._store))
        return self._permutation
