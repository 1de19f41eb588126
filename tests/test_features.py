"""Token grids are what the encoder says, in place."""

import torch

from components.features import token_grid
from components.mim.encoder import EncoderConfig
from components.mim.predictor import PredictorConfig
from components.mim.weights import build

CONFIG = EncoderConfig(image_size=16, patch_size=4, width=24, layers=1, heads=2)
PREDICTOR = PredictorConfig(
    encoder_width=24, output_width=24, width=8, layers=1, heads=1, mask_token=True, bias_on_noise=False
)


def test_a_token_grid_is_the_tokens_in_place() -> None:
    encoder = build(CONFIG, PREDICTOR, 0, "fan_in").encoder.eval()
    images = torch.randn(3, 3, 16, 24, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        tokens = encoder(images)
    grid = token_grid(encoder, images)
    assert grid.shape == (3, 4, 6, 24)
    torch.testing.assert_close(grid[1, 2, 3], tokens[1, 2 * 6 + 3])


def test_any_grid_and_context_only() -> None:
    """Positions are closed-form: visible patches of a wide image get the tokens' own positions."""
    encoder = build(CONFIG, PREDICTOR, 0, "fixed").encoder
    images = torch.randn(2, 3, 8, 40, generator=torch.Generator().manual_seed(0))
    indices = torch.tensor([[3, 17], [0, 19]])
    whole = encoder.embed(images)
    part = encoder.embed(images, indices)
    torch.testing.assert_close(part[1, 1], whole[1, 19])
    torch.testing.assert_close(part[0, 0], whole[0, 3])
