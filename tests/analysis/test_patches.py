"""Principal components are those of numpy's singular values; the colours use the whole range."""

import numpy as np
import pytest
import torch

from components.analysis.patches import components, features
from components.mim.encoder import Encoder, EncoderConfig


@pytest.mark.parametrize("width", [12, 200])  # fewer dimensions than patches, and more
def test_colours_and_variance_are_numpys(width: int) -> None:
    draws = np.random.default_rng(width)
    latent = draws.normal(size=(120, 6)) * (9, 7, 5, 1, 0.8, 0.5)
    tokens = latent @ draws.normal(size=(6, width)) + 3
    found = components(torch.from_numpy(tokens).float().view(5, 4, 6, width))

    centred = tokens - tokens.mean(axis=0)
    left, singular, _ = np.linalg.svd(centred, full_matrices=False)
    assert found.explained == pytest.approx(100 * np.sum(singular[:3] ** 2) / np.sum(singular**2), rel=1e-4)
    scores = found.colours_Bhw3.reshape(120, 3)
    inside = (scores > 0) & (scores < 1)
    for place in range(3):  # up to its sign and its cut ends a colour is a straight line of the component
        line = np.corrcoef(scores[inside[:, place], place], left[inside[:, place], place])[0, 1]
        assert abs(line) == pytest.approx(1, abs=1e-5)
    assert (scores.min(axis=0), scores.max(axis=0)) == (pytest.approx(0), pytest.approx(1))
    assert 0.96 < inside.mean() < 1


def test_alike_patches_have_one_colour_and_no_variance() -> None:
    found = components(torch.full((2, 3, 3, 8), 0.25))
    assert found.explained == 0
    assert (found.colours_Bhw3 == 0.5).all()


def test_broken_features_are_told() -> None:
    tokens = torch.zeros(1, 2, 2, 8)
    tokens[0, 1, 1, 3] = torch.nan
    with pytest.raises(ValueError, match="patch features hold values that are no finite numbers"):
        components(tokens)


def test_features_keep_their_places_in_batches_of_any_size() -> None:
    torch.manual_seed(0)
    encoder = Encoder(EncoderConfig(image_size=16, patch_size=8, width=16, layers=1, heads=2, class_token=True)).eval()
    pixels = torch.from_numpy(np.random.default_rng(0).integers(0, 256, (35, 16, 16, 3), dtype=np.uint8))
    whole = features(encoder, pixels)
    assert whole.shape == (35, 2, 2, 16)
    torch.testing.assert_close(whole[33:34], features(encoder, pixels[33:34]))
