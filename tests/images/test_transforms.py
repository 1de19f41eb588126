"""Crops and resizes against torchvision and closed forms."""

import numpy as np
import pytest
import torch
from PIL import Image, ImageFilter
from torchvision.transforms import v2

from components.images.transforms import (
    MEAN,
    STD,
    colour_draws,
    crop_draws,
    degrade,
    direct_resize,
    normalise,
    random_crop,
    resize_center_crop,
)


@pytest.fixture(scope="module")
def picture() -> Image.Image:
    y, x = np.mgrid[0:60, 0:90]
    return Image.fromarray(np.stack([x * 2, y * 3, (x + y) % 256], axis=-1).astype(np.uint8))


def test_normalise_equals_torchvision(picture: Image.Image) -> None:
    pixels = np.stack([np.asarray(picture)] * 2)
    expected = v2.functional.normalize(torch.from_numpy(pixels).permute(0, 3, 1, 2) / 255, list(MEAN), list(STD))
    torch.testing.assert_close(normalise(pixels), expected, rtol=0, atol=1e-5)


def test_resizes_equal_torchvision_on_pil(picture: Image.Image) -> None:
    theirs = v2.functional.resize(picture, [32, 48], interpolation=v2.InterpolationMode.BICUBIC)
    assert np.array_equal(direct_resize(picture, 32, 48), np.asarray(theirs))
    crop = v2.Compose([v2.Resize(40, interpolation=v2.InterpolationMode.BICUBIC), v2.CenterCrop(32)])
    difference = resize_center_crop(picture, 40, 32).astype(int) - np.asarray(crop(picture)).astype(int)
    assert np.abs(difference).mean() < 1.0  # one resampling here, a resampling and a cut on whole pixels there


def test_a_crop_of_everything_is_a_resize_and_a_flip_its_mirror(picture: Image.Image) -> None:
    square = picture.resize((64, 64))
    draws = np.array([0.5, 0.5, 0.3, 0.3, 0.9], dtype=np.float32)  # aspect 1
    whole = random_crop(square, draws, size=32, scale_min=1.0, scale_max=1.0, flip=True)
    assert np.array_equal(whole, direct_resize(square, 32, 32))
    draws[4] = 0.1
    mirrored = random_crop(square, draws, size=32, scale_min=1.0, scale_max=1.0, flip=True)
    assert np.array_equal(mirrored, whole[:, ::-1])
    assert np.array_equal(random_crop(square, draws, size=32, scale_min=1.0, scale_max=1.0, flip=False), whole)


def test_crops_have_the_drawn_area_and_belong_to_the_image_alone() -> None:
    """On a ramp the spread of the crop's values is its width."""
    ramp = Image.fromarray(np.repeat(np.arange(256, dtype=np.uint8)[None, :, None].repeat(256, 0), 3, axis=2))
    draws = crop_draws(0, 3, np.arange(500))
    widths = []
    for draw in draws[:50]:
        pixels = random_crop(ramp, draw, size=64, scale_min=0.3, scale_max=1.0, flip=False)[..., 0].astype(float)
        area, aspect = 0.3 + draw[0] * 0.7, np.exp((2 * draw[1] - 1) * np.log(4 / 3))
        widths.append((pixels.max() - pixels.min(), min(256, 256 * np.sqrt(area * aspect))))
    measured, expected = np.array(widths).T
    assert np.abs(measured - expected).max() < 6
    assert np.array_equal(crop_draws(0, 3, np.array([7, 400])), draws[[7, 400]])
    assert not np.array_equal(crop_draws(0, 4, np.arange(500)), draws)


def test_grey_and_blurred_crops_are_those_of_pillow_in_the_shares_asked_for(picture: Image.Image) -> None:
    pixels = direct_resize(picture, 24, 24)
    draws = colour_draws(0, 3, np.arange(4000))
    for column, share in ((0, 0.2), (1, 0.5)):
        below = (draws[:, column] < share).mean()
        assert abs(below - share) < 5 * (share * (1 - share) / 4000) ** 0.5
    assert np.array_equal(degrade(pixels, draws[0], grayscale=0.0, blur=0.0), pixels)
    grey = degrade(pixels, np.zeros(3, np.float32), grayscale=1.0, blur=0.0)
    assert np.array_equal(grey, np.asarray(Image.fromarray(pixels).convert("L"))[..., None].repeat(3, axis=2))
    # The first draw decides on colour, the second on blur, the third its radius.
    smooth = np.asarray(Image.fromarray(pixels).filter(ImageFilter.GaussianBlur(2.0)))
    assert np.array_equal(degrade(pixels, np.array([0.9, 0.1, 1], np.float32), grayscale=0.5, blur=0.5), smooth)
    assert np.array_equal(degrade(pixels, np.array([0.1, 0.9, 1], np.float32), grayscale=0.5, blur=0.5), grey)
