"""From decoded images to model input: crops and resizes on uint8, one normalisation for training and evaluation."""

import math
from typing import Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor
from torchvision.transforms import InterpolationMode
from torchvision.transforms.v2.functional import resize

from components.mim import keys

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
"""ImageNet statistics, which the published encoders expect."""

Pixels = NDArray[np.uint8]


def normalise(pixels_BHWC: Pixels | Tensor) -> Tensor:
    """[B, C, H, W] in torch's default type, float32, from uint8 pixels, on their device."""
    pixels_BCHW = torch.as_tensor(pixels_BHWC).permute(0, 3, 1, 2)
    mean, std = (torch.tensor(values, device=pixels_BCHW.device)[:, None, None] * 255.0 for values in (MEAN, STD))
    # One pass that converts and turns, two in place: on a CPU six times faster than turning floats at the end.
    return pixels_BCHW.to(mean.dtype, memory_format=torch.contiguous_format).sub_(mean).div_(std)


def direct_resize(image_CHW: Tensor, height: int, width: int) -> Pixels:
    """The whole image squeezed to height×width (bicubic, antialiased): uint8 [H, W, 3]."""
    small_CHW = resize(image_CHW, [height, width], InterpolationMode.BICUBIC, antialias=True)
    pixels: Pixels = small_CHW.permute(1, 2, 0).numpy()
    return pixels


def resize_center_crop(image_CHW: Tensor, resize_short_side: int, size: int) -> Pixels:
    """Short side scaled to `resize_short_side`, then the central size×size pixels, which it holds: uint8 [size, size, 3].

    torchvision's `Resize` and `CenterCrop` to the pixel, which the published protocols call.
    """
    height, width = image_CHW.shape[1:]
    short = min(height, width)
    height, width = height * resize_short_side // short, width * resize_short_side // short
    top, left = round((height - size) / 2), round((width - size) / 2)
    return direct_resize(image_CHW, height, width)[top : top + size, left : left + size]


class View(NamedTuple):
    """What an evaluation sees of an image: always the same height×width pixels of it.

    `resize_short_side` is the length its short side has before the centre is cut; 0 squeezes the whole image instead.
    """

    height: int
    width: int
    resize_short_side: int
    mirror: bool

    def __call__(self, image_CHW: Tensor) -> Pixels:
        """uint8 [H, W, 3] of uint8 [3, h, w]. A cut centre is square, of side `height`."""
        if self.resize_short_side:
            pixels = resize_center_crop(image_CHW, self.resize_short_side, self.height)
        else:
            pixels = direct_resize(image_CHW, self.height, self.width)
        return pixels[:, ::-1] if self.mirror else pixels


def square(size: int, resize: Literal["direct", "short_side_center_crop"], resize_short_side: int) -> View:
    """The view of `size`×`size` pixels that a task's fields ask for."""
    return View(size, size, resize_short_side if resize == "short_side_center_crop" else 0, mirror=False)


TRIES = 10
"""Areas and aspects that a random crop tries before it gives in, as torchvision's RandomResizedCrop does."""


def crop_draws(seed: int, epoch: int, indices_B: NDArray[np.int64]) -> NDArray[np.float32]:
    """Uniform draws [B, 3 + 2·TRIES] for each image of an epoch, by its index in the dataset: what `random_crop` consumes."""
    return keys.uniform(keys.key(seed, "crop", epoch), torch.from_numpy(indices_B), 3 + 2 * TRIES).numpy()


def random_crop(
    image_CHW: Tensor, draws: NDArray[np.float32], *, size: int, scale_min: float, scale_max: float, flip: bool
) -> Pixels:
    """A crop of scale_min..scale_max of the area and aspect 3/4..4/3, resized to size×size: uint8 [size, size, 3].

    With `flip`, mirrored half of the time.
    """
    _, height, width = image_CHW.shape
    top, left, height, width = crop_box(height, width, draws, scale_min, scale_max)
    # Copied row by row, channels last: resizing would copy a part of an image pixel by pixel, and take a fifth longer.
    crop_HWC = np.ascontiguousarray(image_CHW.permute(1, 2, 0).numpy()[top : top + height, left : left + width])
    pixels = direct_resize(torch.from_numpy(crop_HWC).permute(2, 0, 1), size, size)
    return pixels[:, ::-1] if flip and draws[2] < 0.5 else pixels


def crop_box(
    height: int, width: int, draws: NDArray[np.float32], scale_min: float, scale_max: float
) -> tuple[int, int, int, int]:
    """Top, left, height and width of a random crop in whole pixels, distributed as torchvision's RandomResizedCrop has it.

    Area is uniform and log aspect is uniform; a crop that leaves the image is drawn again, and after `TRIES` the largest central one
    of an allowed aspect is taken. `draws` are the corner's two, the flip's, then those of each try.
    """
    for area_draw, aspect_draw in draws[3:].astype(float).reshape(TRIES, 2):
        area = (scale_min + area_draw * (scale_max - scale_min)) * height * width
        aspect = math.exp((2 * aspect_draw - 1) * math.log(4 / 3))
        w, h = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
        if 0 < w <= width and 0 < h <= height:
            return int(float(draws[0]) * (height - h + 1)), int(float(draws[1]) * (width - w + 1)), h, w
    w, h = min(width, round(height * 4 / 3)), min(height, round(width * 4 / 3))
    return (height - h) // 2, (width - w) // 2, h, w


def colour_draws(seed: int, epoch: int, indices_B: NDArray[np.int64]) -> NDArray[np.float32]:
    """Three uniform draws [B, 3] for each image of an epoch, by its index in the dataset: what `degrade` consumes."""
    return keys.uniform(keys.key(seed, "colour", epoch), torch.from_numpy(indices_B), 3).numpy()


def degrade(pixels: Pixels, draws_3: NDArray[np.float32], *, grayscale: float, blur: float) -> Pixels:
    """The crop without its colour for a share `grayscale`, then blurred for a share `blur`: uint8 [H, W, 3].

    The released StoP recipe has 0.2 and 0.5; the blur is Gaussian with a standard deviation of 0.1 to 2 pixels.
    """
    if draws_3[0] < grayscale:
        pixels = np.asarray(Image.fromarray(np.ascontiguousarray(pixels)).convert("L").convert("RGB"))
    return gaussian_blur(pixels, 0.1 + 1.9 * float(draws_3[2])) if draws_3[1] < blur else pixels


def gaussian_blur(pixels: Pixels, std: float) -> Pixels:
    """Blurred by a Gaussian, cut off at three standard deviations; the border's pixels go on outside: uint8 [H, W, 3].

    Sums of shifted images, row-wise and column-wise: on one core a third of the time of Pillow's three box filters, which come to
    within a level of it on average.
    """
    reach = math.ceil(3 * std)
    weights = np.exp(-np.square(np.arange(reach + 1, dtype=np.float32) / np.float32(std)) / 2)
    weights /= 2 * weights.sum() - 1
    blurred = pixels.astype(np.float32)
    for axis in (0, 1):
        pad = [(reach, reach) if which == axis else (0, 0) for which in range(3)]
        shifted = np.moveaxis(np.pad(blurred, pad, mode="edge"), axis, 0)
        count = pixels.shape[axis]
        total = shifted[reach : reach + count] * weights[0]
        for k in range(1, reach + 1):
            pair = shifted[reach - k : reach - k + count] + shifted[reach + k : reach + k + count]
            pair *= weights[k]
            total += pair
        blurred = np.moveaxis(total, 0, axis)
    return np.rint(blurred).astype(np.uint8)
