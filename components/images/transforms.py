"""From decoded images to model input: crops and resizes on uint8, one normalisation for training and evaluation."""

import math
from typing import Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, ImageFilter
from torch import Tensor

from components.mim import keys

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
"""ImageNet statistics, which the published encoders expect."""

Pixels = NDArray[np.uint8]


def normalise(pixels_BHWC: Pixels | Tensor) -> Tensor:
    """float32 [B, C, H, W] from uint8 pixels, on their device."""
    pixels = torch.as_tensor(pixels_BHWC)
    mean = torch.tensor(MEAN, device=pixels.device) * 255.0
    std = torch.tensor(STD, device=pixels.device) * 255.0
    return ((pixels.to(torch.float32) - mean) / std).permute(0, 3, 1, 2).contiguous()


def direct_resize(image: Image.Image, height: int, width: int) -> Pixels:
    """The whole image squeezed to height×width (bicubic, antialiased): uint8 [H, W, 3]."""
    return np.asarray(image.resize((width, height), Image.Resampling.BICUBIC))


def resize_center_crop(image: Image.Image, resize_short_side: int, size: int) -> Pixels:
    """Short side scaled to `resize_short_side`, then the central size×size pixels: uint8 [size, size, 3]."""
    scale = min(image.size) / resize_short_side
    side = size * scale
    left, top = (image.width - side) / 2, (image.height - side) / 2
    box = (max(left, 0.0), max(top, 0.0), min(left + side, image.width), min(top + side, image.height))
    return np.asarray(image.resize((size, size), Image.Resampling.BICUBIC, box=box))


class View(NamedTuple):
    """What an evaluation sees of an image: always the same height×width pixels of it.

    `resize_short_side` is the length its short side has before the centre is cut; 0 squeezes the whole image instead.
    """

    height: int
    width: int
    resize_short_side: int
    mirror: bool

    def __call__(self, image: Image.Image) -> Pixels:
        """uint8 [H, W, 3]. A cut centre is square, of side `height`."""
        if self.resize_short_side:
            pixels = resize_center_crop(image, self.resize_short_side, self.height)
        else:
            pixels = direct_resize(image, self.height, self.width)
        return pixels[:, ::-1] if self.mirror else pixels


def square(size: int, resize: Literal["direct", "short_side_center_crop"], resize_short_side: int) -> View:
    """The view of `size`×`size` pixels that a task's fields ask for."""
    return View(size, size, resize_short_side if resize == "short_side_center_crop" else 0, mirror=False)


def crop_draws(seed: int, epoch: int, indices_B: NDArray[np.int64]) -> NDArray[np.float32]:
    """Five uniform draws [B, 5] for each image of an epoch, by its index in the dataset: what `random_crop` consumes."""
    return keys.uniform(keys.key(seed, "crop", epoch), torch.from_numpy(indices_B), 5).numpy()


def random_crop(
    image: Image.Image, draws_5: NDArray[np.float32], *, size: int, scale_min: float, scale_max: float, flip: bool
) -> Pixels:
    """A crop of scale_min..scale_max of the area and aspect 3/4..4/3, resized to size×size: uint8 [size, size, 3].

    Area is uniform and log aspect is uniform, as in torchvision's RandomResizedCrop; a side that would leave the image is
    cut to it. With `flip`, mirrored half of the time.
    """
    area = (scale_min + float(draws_5[0]) * (scale_max - scale_min)) * image.width * image.height
    aspect = math.exp((2.0 * float(draws_5[1]) - 1.0) * math.log(4 / 3))
    width, height = min(math.sqrt(area * aspect), image.width), min(math.sqrt(area / aspect), image.height)
    left, top = float(draws_5[2]) * (image.width - width), float(draws_5[3]) * (image.height - height)
    box = (left, top, min(left + width, image.width), min(top + height, image.height))
    pixels = np.asarray(image.resize((size, size), Image.Resampling.BICUBIC, box=box))
    return pixels[:, ::-1] if flip and draws_5[4] < 0.5 else pixels


def colour_draws(seed: int, epoch: int, indices_B: NDArray[np.int64]) -> NDArray[np.float32]:
    """Three uniform draws [B, 3] for each image of an epoch, by its index in the dataset: what `degrade` consumes."""
    return keys.uniform(keys.key(seed, "colour", epoch), torch.from_numpy(indices_B), 3).numpy()


def degrade(pixels: Pixels, draws_3: NDArray[np.float32], *, grayscale: float, blur: float) -> Pixels:
    """The crop without its colour for a share `grayscale`, then blurred for a share `blur`: uint8 [H, W, 3].

    The released StoP recipe has 0.2 and 0.5; the blur is Gaussian with a radius of 0.1 to 2 pixels.
    """
    if draws_3[0] >= grayscale and draws_3[1] >= blur:
        return pixels
    image = Image.fromarray(pixels)
    if draws_3[0] < grayscale:
        image = image.convert("L").convert("RGB")
    if draws_3[1] < blur:
        image = image.filter(ImageFilter.GaussianBlur(0.1 + 1.9 * float(draws_3[2])))
    return np.asarray(image)
