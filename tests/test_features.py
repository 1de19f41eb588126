"""Pooled features and token grids are what the encoder says, row by row."""

from functools import partial
from pathlib import Path

import numpy as np
import torch

from components.features import pooled, token_grid
from components.images.store import Store
from components.images.transforms import direct_resize, normalise
from components.mim.encoder import EncoderConfig
from components.mim.predictor import PredictorConfig
from components.mim.weights import build


def test_features_follow_the_rows_and_the_layers(toy_images: Path) -> None:
    config = EncoderConfig(image_size=16, patch_size=4, width=24, layers=3, heads=2)
    predictor = PredictorConfig(
        encoder_width=24, output_width=24, width=8, layers=1, heads=1, mask_token=True, bias_on_noise=False
    )
    encoder = build(config, predictor, 0, "fan_in").encoder.eval()
    store, rows = Store(toy_images, "test"), [5, 2, 9]
    transform = partial(direct_resize, height=16, width=24)
    features = pooled(encoder, store, rows, transform, layers=4, batch_size=2, label="toy")
    images = normalise(np.stack([transform(store.image(row)) for row in rows]))
    with torch.no_grad():
        tokens = encoder(images)
        outputs, x = [], encoder.embed(images)
        for layer in encoder.blocks:
            x = layer(x)
            outputs.append(encoder.norm(x).mean(dim=1))
    np.testing.assert_allclose(features["last"], tokens.mean(dim=1).numpy(), atol=1e-5)
    np.testing.assert_allclose(features["last4"], torch.cat(outputs, dim=1).numpy(), atol=1e-5)  # three layers are all
    grid = token_grid(encoder, images)
    assert grid.shape == (3, 4, 6, 24)
    torch.testing.assert_close(grid[1, 2, 3], tokens[1, 2 * 6 + 3])


def test_any_grid_and_context_only(toy_images: Path) -> None:
    """Positions are closed-form: visible patches of a wide image get the tokens' own positions."""
    config = EncoderConfig(image_size=16, patch_size=4, width=24, layers=1, heads=2)
    predictor = PredictorConfig(
        encoder_width=24, output_width=24, width=8, layers=1, heads=1, mask_token=True, bias_on_noise=False
    )
    encoder = build(config, predictor, 0, "fixed").encoder
    images = torch.randn(2, 3, 8, 40, generator=torch.Generator().manual_seed(0))
    indices = torch.tensor([[3, 17], [0, 19]])
    whole = encoder.embed(images)
    part = encoder.embed(images, indices)
    torch.testing.assert_close(part[1, 1], whole[1, 19])
    torch.testing.assert_close(part[0, 0], whole[0, 3])
