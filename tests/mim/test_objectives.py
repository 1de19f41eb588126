"""Targets: pixels in MAE's order, averaged layers, and features at half the resolution."""

from dataclasses import dataclass

import numpy as np
import pytest
import torch

from components.mim.encoder import Encoder, EncoderConfig
from components.mim.initialise import initialise
from components.mim.objectives import LowResolution, ObjectiveName, averaged_features, low_resolution, pixels, targets


@dataclass(frozen=True)
class Settings:
    name: ObjectiveName = "ijepa"
    target_layers: int = 1
    low_resolution: LowResolution = "none"
    normalise_pixels: bool = True


def encoder() -> Encoder:
    made = Encoder(EncoderConfig(image_size=16, patch_size=4, width=24, layers=3, heads=2))
    initialise(made, 0, "fan_in")
    return made


def test_pixels_are_patches_row_by_row_with_colours_innermost() -> None:
    images = torch.arange(2 * 3 * 8 * 12, dtype=torch.float32).view(2, 3, 8, 12)
    found = pixels(images, 4, normalised=False)
    assert found.shape == (2, 6, 48)
    patch = images[1, :, 4:8, 8:12].permute(1, 2, 0).reshape(-1)  # the last of 2×3 patches
    assert torch.equal(found[1, 5], patch)
    normed = pixels(images, 4, normalised=True)[1, 5].numpy()
    np.testing.assert_allclose(
        normed, (patch - patch.mean()) / np.sqrt(patch.numpy().var(ddof=1) + 1e-6), rtol=1e-5, atol=1e-6
    )


def test_averaged_features_have_mean_zero_and_deviation_one() -> None:
    one, images = encoder(), torch.randn(2, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    found = averaged_features(one, images, 2)
    torch.testing.assert_close(found.mean(dim=-1), torch.zeros(2, 16), atol=1e-5, rtol=0)
    torch.testing.assert_close(found.std(dim=-1, correction=0), torch.ones(2, 16), atol=1e-3, rtol=0)
    with torch.no_grad():
        tokens, outputs = one.embed(images), []
        for layer in one.blocks:
            tokens = layer(tokens)
            outputs.append(
                (tokens - tokens.mean(-1, keepdim=True)) / (tokens.var(-1, keepdim=True, correction=0) + 1e-5).sqrt()
            )
    mean = (outputs[1] + outputs[2]) / 2
    torch.testing.assert_close(found, torch.nn.functional.layer_norm(mean, (24,)), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("how", "reduce"), [("bilinear", np.mean), ("max_pool", np.max)])
def test_half_resolution_is_the_mean_or_maximum_of_each_two_by_two_cell(how: LowResolution, reduce) -> None:  # type: ignore[no-untyped-def]
    features = torch.randn(2, 4 * 6, 5, generator=torch.Generator().manual_seed(0))
    found = low_resolution(features, 4, 6, how).view(2, 4, 6, 5)
    maps = features.view(2, 4, 6, 5).numpy()
    for row in range(4):
        for column in range(6):
            top, left = row // 2 * 2, column // 2 * 2
            cell = reduce(maps[:, top : top + 2, left : left + 2], axis=(1, 2))
            np.testing.assert_allclose(found[:, row, column], cell, rtol=1e-5, atol=1e-6)
    with pytest.raises(ValueError, match="on a 3×6 patch grid; both sides must be even"):
        low_resolution(features[:, :18], 3, 6, how)


def test_each_objective_has_targets_of_its_own() -> None:
    one, images = encoder(), torch.randn(2, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    both = targets(Settings(low_resolution="max_pool"), one, images, 4)
    assert both.low_BND is not None and both.low_BND.shape == both.full_BND.shape == (2, 16, 24)
    assert not both.full_BND.requires_grad
    plain = targets(Settings(), one, images, 4)
    assert plain.low_BND is None and torch.equal(plain.full_BND, both.full_BND)
    assert targets(Settings(name="mae"), None, images, 4).full_BND.shape == (2, 16, 48)
