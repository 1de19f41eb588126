"""The paper's propositions as numbers: why A is tied, and what an optimal predictor does with noisy positions."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from components.mim import keys
from components.mim.model import MaskedImageModel
from components.mim.objectives import mean_loss
from components.mim.positions import Covariance

from .test_stop import MASKS, model

Array = NDArray[np.float64]


def gradient_at_zero(covariance: Covariance, noise: Tensor | None, seed: int) -> tuple[MaskedImageModel, Tensor]:
    """Of the loss on random features and targets, with respect to the matrix that projects noise, where it is 0."""
    net = model(covariance=covariance).double()
    matrix = net.predictor.noise_embed if covariance == "untied" else net.predictor.embed
    torch.nn.init.zeros_(matrix.weight)
    generator = torch.Generator().manual_seed(seed)
    encoded = torch.randn(3, 4, 24, generator=generator, dtype=torch.float64)
    wanted = torch.randn(3, 2, 24, generator=generator, dtype=torch.float64)
    table = net.predictor.position_table((4, 4)).double()
    context = net.predictor.context_tokens(encoded, table[MASKS.context_BK])
    masked = net.predictor.masked_tokens(table[MASKS.targets[0]], noise)
    prediction = net.predictor.head(net.predictor(context, masked))
    torch.nn.functional.smooth_l1_loss(prediction, wanted).backward()
    assert matrix.weight.grad is not None
    return net, matrix.weight.grad


@pytest.mark.parametrize("seed", range(4))
def test_with_a_matrix_of_its_own_no_noise_is_stationary_whatever_the_data(seed: int) -> None:
    """Prop. 3.1: at N = 0 the loss does not depend on n, so E[∂L/∂N] = E[g]·E[n]ᵀ = 0. Pairs n, −n take the mean exactly."""
    noise = torch.randn(3, 2, 24, generator=torch.Generator().manual_seed(seed + 100), dtype=torch.float64)
    one, other = (gradient_at_zero("untied", sign * noise, seed)[1] for sign in (1.0, -1.0))
    assert (one + other).norm() < 1e-9 * one.norm()  # a single draw does push, the pair does not


@pytest.mark.parametrize("seed", range(4))
def test_tied_it_is_stationary_only_where_the_deterministic_model_is(seed: int) -> None:
    """Prop. 3.2: at A = 0 the mean gradient is that of the deterministic model, which the context keeps away from 0."""
    noise = torch.randn(3, 2, 24, generator=torch.Generator().manual_seed(seed + 100), dtype=torch.float64)
    pair = sum((gradient_at_zero("learned", sign * noise, seed)[1] for sign in (1.0, -1.0)), start=torch.zeros(()))
    deterministic = gradient_at_zero("learned", None, seed)[1]
    assert (pair / 2 - deterministic).norm() < 1e-9 * deterministic.norm()


STD, FREQUENCY = 0.5, 2.0


def best_prediction(positions: Array, centres: Array, width: float) -> Array:
    """E[Y | R ≈ centre] for Y = sin(frequency·X) and R = X + noise: what minimises the squared error, by averaging."""
    noise = keys.normal(keys.key(0, "smoothing"), torch.arange(len(positions) // 1000), 1000).flatten().double().numpy()
    seen = positions + STD * noise
    values = np.sin(FREQUENCY * positions)
    return np.array([values[np.abs(seen - centre) < width].mean() for centre in centres])


def smoothed(r: Array) -> Array:
    """The clean function convolved with the noise's Gaussian, in closed form (Proposition 1)."""
    return np.exp(-0.5 * (FREQUENCY * STD) ** 2) * np.sin(FREQUENCY * r)


def weighted(r: Array, prior_std: float) -> Array:
    """The same with each position weighted by a Gaussian prior: the posterior of X given R is Gaussian."""
    shrink = prior_std**2 / (prior_std**2 + STD**2)
    return np.exp(-0.5 * (FREQUENCY * STD) ** 2 * shrink) * np.sin(FREQUENCY * shrink * r)


@pytest.mark.parametrize("flat", [True, False])
def test_the_optimal_predictor_smooths_and_weighs_by_the_prior(flat: bool) -> None:
    """Monte Carlo over two million positions; the means of ~16,000 values each are good to 0.006 (one standard error)."""
    generator, count, centres = np.random.default_rng(0), 2_000_000, np.linspace(-1.5, 1.5, 13)
    positions = generator.uniform(-6, 6, count) if flat else generator.normal(0, 0.8, count)
    found = best_prediction(positions, centres, 0.05)
    wanted: Callable[[Array], Array] = smoothed if flat else lambda r: weighted(r, 0.8)
    np.testing.assert_allclose(found, wanted(centres), atol=0.03)
    if not flat:  # Prop. 1 of the submission omits p(x), which is a matter of far more than the error
        assert np.abs(found - smoothed(centres)).max() > 0.1


def test_the_loss_of_the_references_is_the_mean_over_all_elements() -> None:
    generator = torch.Generator().manual_seed(0)
    parts = [torch.randn(2, 3, 5, generator=generator), torch.randn(2, 4, 5, generator=generator)]
    zeros = [torch.zeros_like(part) for part in parts]
    flat = torch.cat([part.flatten() for part in parts])
    assert mean_loss(parts, zeros, "l2").item() == pytest.approx(flat.square().mean().item(), rel=1e-6)
    expected = torch.where(flat.abs() < 1, 0.5 * flat.square(), flat.abs() - 0.5).mean()
    assert mean_loss(parts, zeros, "smooth_l1").item() == pytest.approx(expected.item(), rel=1e-6)
