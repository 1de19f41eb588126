"""timm's augmentations with draws that depend on a key alone, not on what was drawn before or in which process."""

import random
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from timm.data.auto_augment import rand_augment_transform
from timm.data.mixup import Mixup, mixup_target
from timm.data.random_erasing import RandomErasing
from torch import Tensor

from components.finetune.recipe import Augmentation
from components.images.transforms import MEAN, Pixels, crop_draws, random_crop
from components.mim import keys

_seeding = Lock()


@contextmanager
def seeded(key: int, device: torch.device | None = None) -> Iterator[None]:
    """The global generators of Python, numpy and torch start from `key` inside, and go on as before afterwards.

    timm and dropout draw from nothing else. One thread at a time.
    """
    devices = [device] if device is not None and device.type == "cuda" else []
    with _seeding, torch.random.fork_rng(devices):
        before = random.getstate(), np.random.get_state()
        random.seed(key)
        np.random.seed(key % 2**32)
        torch.default_generator.manual_seed(key)
        if devices:
            torch.cuda.manual_seed(key)
        try:
            yield
        finally:
            random.setstate(before[0])
            np.random.set_state(before[1])


class Augment:
    """A training image's crop, flip and RandAugment: the same for one seed, epoch and image, wherever and whenever
    it is asked for."""

    def __init__(self, values: Augmentation, size: int, seed: int) -> None:
        self._values, self._size, self._seed = values, size, seed
        self._rand_augment = None
        if values.rand_augment != "none":
            about = {
                "translate_const": int(size * 0.45),
                "img_mean": tuple(round(255 * x) for x in MEAN),
                "interpolation": Image.Resampling.BICUBIC,
            }  # as timm.data.create_transform, which MAE calls
            self._rand_augment = rand_augment_transform(values.rand_augment, about)

    def __call__(self, image_CHW: Tensor, epoch: int, row: int) -> Pixels:
        """uint8 [size, size, 3] of uint8 [3, H, W]."""
        values = self._values
        pixels = random_crop(
            image_CHW,
            crop_draws(self._seed, epoch, np.array([row]))[0],
            size=self._size,
            scale_min=values.crop_scale_min,
            scale_max=values.crop_scale_max,
            flip=values.flip,
        )
        if self._rand_augment is None:
            return pixels
        with seeded(keys.key(self._seed, "rand_augment", epoch, row)):
            changed: NDArray[np.uint8] = np.asarray(self._rand_augment(Image.fromarray(np.ascontiguousarray(pixels))))
        return changed


class Mix:
    """What happens to a whole batch of normalised images: random erasing, then mixup or CutMix; and its labels as targets."""

    def __init__(self, values: Augmentation, smoothing: float, classes: int, seed: int) -> None:
        self._smoothing, self._classes, self._seed = smoothing, classes, seed
        self._erasing = values.random_erasing
        self._mixup = None
        if values.mixup or values.cutmix:
            self._mixup = Mixup(
                values.mixup, values.cutmix, label_smoothing=smoothing, num_classes=classes
            )  # for the whole batch, always, either with chance ½: timm's defaults and MAE's values

    def __call__(self, images_BCHW: Tensor, labels_B: Tensor, step: int) -> tuple[Tensor, Tensor]:
        """The images [B, C, H, W], changed in place, and targets [B, K]: smoothed, blended labels that sum to 1."""
        if self._erasing:
            erase = RandomErasing(self._erasing, mode="pixel", device=images_BCHW.device)
            with seeded(keys.key(self._seed, "erasing", step), images_BCHW.device):
                images_BCHW = erase(images_BCHW)
        if self._mixup is None:
            return images_BCHW, mixup_target(labels_B, self._classes, 1.0, self._smoothing)
        with seeded(keys.key(self._seed, "mixup", step), images_BCHW.device):
            images_BCHW, targets_BK = self._mixup(images_BCHW, labels_B)
        return images_BCHW, targets_BK
