"""Crops and resizes against torchvision and closed forms."""

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image, ImageFilter
from scipy.ndimage import gaussian_filter
from torch import Tensor
from torchvision.transforms import InterpolationMode, v2

from components.images.transforms import (
    MEAN,
    STD,
    View,
    colour_draws,
    crop_box,
    crop_draws,
    degrade,
    direct_resize,
    gaussian_blur,
    normalise,
    random_crop,
    resize_center_crop,
)

BICUBIC = InterpolationMode.BICUBIC


def photograph(seed: int, height: int, width: int) -> Tensor:
    """Blobs with grain, as a photograph has them: uint8 [3, H, W]."""
    draws = np.random.default_rng(seed)
    small = Image.fromarray(draws.integers(0, 256, (9, 12, 3), dtype=np.uint8))
    pixels = np.asarray(small.resize((width, height), Image.Resampling.BICUBIC)) + draws.normal(
        0, 8, (height, width, 3)
    )
    return torch.from_numpy(pixels.clip(0, 255).astype(np.uint8)).permute(2, 0, 1)


def test_normalise_equals_torchvision() -> None:
    pixels = np.stack([photograph(0, 60, 90).permute(1, 2, 0).numpy()] * 2)
    expected = v2.functional.normalize(torch.from_numpy(pixels).permute(0, 3, 1, 2) / 255, list(MEAN), list(STD))
    torch.testing.assert_close(normalise(pixels), expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize(("height", "width"), [(60, 90), (90, 60), (60, 60), (37, 61), (40, 75)])
@pytest.mark.parametrize(("short", "size"), [(40, 32), (37, 36), (64, 64), (41, 32)])
def test_resizes_are_torchvision_s_resize_and_center_crop(height: int, width: int, short: int, size: int) -> None:
    image = photograph(0, height, width)
    theirs = v2.functional.resize(image, [32, 48], interpolation=BICUBIC)
    assert np.array_equal(direct_resize(image, 32, 48), theirs.permute(1, 2, 0))
    official = v2.Compose([v2.Resize(short, interpolation=BICUBIC), v2.CenterCrop(size)])
    assert np.array_equal(resize_center_crop(image, short, size), official(image).permute(1, 2, 0))


def test_resizes_are_within_levels_of_pillow_s() -> None:
    """Fixed-point weights of another precision: hardly ever more than one level of 256."""
    image = photograph(0, 300, 400)
    picture = Image.fromarray(image.permute(1, 2, 0).numpy()).resize((224, 224), Image.Resampling.BICUBIC)
    difference = np.abs(direct_resize(image, 224, 224).astype(int) - np.asarray(picture).astype(int))
    assert difference.max() <= 3 and difference.mean() < 0.1


@pytest.mark.parametrize("channels", [1, 3])
def test_how_the_pixels_lie_in_memory_changes_none(channels: int) -> None:
    """Decoders give channels last, an expanded grey picture one channel three times."""
    image = photograph(1, 50, 70)[:channels].expand(3, -1, -1)
    plain = image.contiguous()
    last = plain.permute(1, 2, 0).contiguous().permute(2, 0, 1)
    for view in (View(32, 32, 40, False), View(24, 40, 0, True)):
        assert np.array_equal(view(image), view(plain)) and np.array_equal(view(last), view(plain))


def test_a_crop_of_everything_is_a_resize_and_a_flip_its_mirror() -> None:
    square = photograph(2, 64, 64)
    draws = crop_draws(0, 0, np.arange(1))[0]
    draws[2:5] = 0.9, 0.5, 0.5  # no flip; aspect 1
    whole = random_crop(square, draws, size=32, scale_min=1.0, scale_max=1.0, flip=True)
    assert np.array_equal(whole, direct_resize(square, 32, 32))
    draws[2] = 0.1
    mirrored = random_crop(square, draws, size=32, scale_min=1.0, scale_max=1.0, flip=True)
    assert np.array_equal(mirrored, whole[:, ::-1])
    assert np.array_equal(random_crop(square, draws, size=32, scale_min=1.0, scale_max=1.0, flip=False), whole)


@pytest.mark.parametrize(("height", "width"), [(300, 500), (224, 224), (900, 300), (100, 1000), (1, 1), (7, 3)])
@pytest.mark.parametrize("scale", [(0.3, 1.0), (0.08, 1.0), (1.0, 1.0)])
def test_boxes_are_torchvision_s_for_the_same_draws(
    height: int, width: int, scale: tuple[float, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its generator is replaced by our draws, in the order in which it asks for them; the last shapes often find no crop."""
    official = v2.RandomResizedCrop(224, scale=scale)
    for draws in crop_draws(0, 3, np.arange(200)):
        tries, corner = iter(draws[3:].tolist()), iter(draws[:2].tolist())

        def uniform(tensor: Tensor, low: float, high: float, tries: Iterator[float] = tries) -> Tensor:
            return tensor.double().fill_(low + (high - low) * next(tries))

        def randint(low: int, high: int, size: Any, corner: Iterator[float] = corner) -> Tensor:
            return torch.tensor([low + int((high - low) * next(corner))])

        with monkeypatch.context() as patch:
            patch.setattr(torch.Tensor, "uniform_", uniform)
            patch.setattr(torch, "randint", randint)
            box = official.make_params([torch.zeros(3, height, width)])
        assert crop_box(height, width, draws, *scale) == (box["top"], box["left"], box["height"], box["width"])


def test_draws_are_uniform_and_belong_to_the_image_alone() -> None:
    draws = crop_draws(0, 3, np.arange(4000))
    assert draws.shape == (4000, 23)
    assert np.abs(draws.mean(axis=0) - 0.5).max() < 5 * (1 / 12 / 4000) ** 0.5
    correlation = np.corrcoef(draws.T) - np.eye(23)
    assert np.abs(correlation).max() < 5 / 4000**0.5
    assert np.array_equal(crop_draws(0, 3, np.array([7, 400])), draws[[7, 400]])
    assert not np.array_equal(crop_draws(0, 4, np.arange(4000)), draws)


def test_grey_and_blurred_crops_come_in_the_shares_asked_for() -> None:
    pixels = direct_resize(photograph(3, 60, 90), 24, 24)
    draws = colour_draws(0, 3, np.arange(4000))
    for column, share in ((0, 0.2), (1, 0.5)):
        below = (draws[:, column] < share).mean()
        assert abs(below - share) < 5 * (share * (1 - share) / 4000) ** 0.5
    assert np.array_equal(degrade(pixels, draws[0], grayscale=0.0, blur=0.0), pixels)
    grey = degrade(pixels, np.zeros(3, np.float32), grayscale=1.0, blur=0.0)
    assert np.array_equal(grey, np.asarray(Image.fromarray(pixels).convert("L"))[..., None].repeat(3, axis=2))
    # The first draw decides on colour, the second on blur, the third its width.
    smooth = gaussian_blur(pixels, 2.0)
    assert np.array_equal(degrade(pixels, np.array([0.9, 0.1, 1], np.float32), grayscale=0.5, blur=0.5), smooth)
    assert np.array_equal(degrade(pixels, np.array([0.1, 0.9, 1], np.float32), grayscale=0.5, blur=0.5), grey)
    mirrored = pixels[:, ::-1]
    both = degrade(mirrored, np.array([0.1, 0.1, 1], np.float32), grayscale=0.5, blur=0.5)
    assert np.array_equal(both, gaussian_blur(grey[:, ::-1], 2.0))


@pytest.mark.parametrize("std", [0.1, 0.4, 0.7, 1.0, 1.6, 2.0])
def test_the_blur_is_scipy_s_gaussian_and_near_pillow_s(std: float) -> None:
    pixels = direct_resize(photograph(4, 300, 400), 224, 224)
    blurred = gaussian_blur(pixels, std)
    exact = gaussian_filter(
        pixels.astype(float), (std, std, 0), mode="nearest", radius=(math.ceil(3 * std),) * 2 + (0,)
    )
    assert np.abs(blurred - exact).max() < 0.51  # rounding
    theirs = np.asarray(Image.fromarray(pixels).filter(ImageFilter.GaussianBlur(std))).astype(float)
    assert np.abs(blurred - theirs).mean() < 1.0 and abs(blurred.mean() - theirs.mean()) < 1.0


def test_as_much_fine_detail_is_left_as_by_pillow_s_blur() -> None:
    """Over the recipe's widths; Pillow rounds to whole levels after each of its six passes, which keeps some of the grain."""
    pixels = photograph(4, 112, 112).permute(1, 2, 0).numpy()

    def left(blurred: Any) -> float:
        return float(np.abs(np.diff(np.asarray(blurred).astype(float), axis=1)).mean())

    widths = np.linspace(0.1, 2.0, 40).tolist()
    ours = np.mean([left(gaussian_blur(pixels, std)) for std in widths])
    theirs = np.mean([left(Image.fromarray(pixels).filter(ImageFilter.GaussianBlur(std))) for std in widths])
    assert ours / left(pixels) == pytest.approx(theirs / left(pixels), abs=0.03)
