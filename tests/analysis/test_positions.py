"""Similarities in closed form: products of cosines without noise, Kummer's function with noise that is the same everywhere."""

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from scipy.special import gammaln, hyp1f1

from components.analysis.positions import by_distance, cosine, distances, positions, stray
from components.mim.grid import Size

STD = 0.4


def test_without_noise_it_is_a_mean_of_cosines(make: Callable) -> None:
    """ψ(p)·ψ(q) = Σ cos(ω Δcolumn) + cos(ω Δrow) over P/4 frequencies, and |ψ|² = P/2."""
    run = make(stop={"noise_std": 0.0}, encoder={"image_size": 48}, predictor={"width": 32}).load()
    found, omega = positions(run, 0, 8), 10000.0 ** (-np.arange(8) / 8)
    for query in (0, 7, 35):
        for place in range(36):
            (row, column), (row_, column_) = divmod(query, 6), divmod(place, 6)
            expected = np.mean([np.cos(omega * (column - column_)), np.cos(omega * (row - row_))])
            assert found.still_NN[query, place].item() == pytest.approx(expected, abs=1e-6)
    assert found.mean_NN is found.still_NN and not found.spread_NN.any() and not len(found.drawn_SNN)
    assert (found.blur, found.own) == (0, pytest.approx(1))


def shrinkage(radius: float, std: float, dimensions: int) -> float:
    """E[cos] between a vector of that length and itself plus normal noise, std in every dimension.

    The mean direction of N(μ, std²I) is μ/|μ| · Γ((d+1)/2) / (√2·Γ(d/2+1)) · r/std · ₁F₁(½; d/2+1; −r²/(2·std²)).
    """
    ratio = radius / std
    factor = math.exp(gammaln((dimensions + 1) / 2) - gammaln(dimensions / 2 + 1)) / math.sqrt(2)
    return float(ratio * factor * hyp1f1(0.5, dimensions / 2 + 1, -ratio * ratio / 2))


def orthogonal(encoder: object, predictor: object) -> None:
    """A with AAᵀ = I, so that A·n is as isotropic as n."""
    torch.nn.init.orthogonal_(predictor.embed.weight)  # type: ignore[attr-defined]


@pytest.mark.parametrize("covariance", ["fixed", "learned"])
def test_noise_that_is_the_same_everywhere_shrinks_similarities_by_one_known_factor(
    make: Callable, covariance: str
) -> None:
    """By symmetry about ψ the mean of the normalised noisy embedding points along ψ."""
    run = make(orthogonal, stop={"noise_std": STD, "covariance": covariance}).load()
    found = positions(run, 0, 1000)
    expected = found.still_NN * shrinkage(math.sqrt(16 / 2), STD, 16)
    error = found.spread_NN / math.sqrt(1000)
    # 256 correlated means of 1000 draws: four standard errors for almost all, and no bias.
    assert ((found.mean_NN - expected).abs() < 4.5 * error + 1e-6).all()
    assert (found.mean_NN - expected).mean().abs() < 0.002
    assert found.own == pytest.approx(shrinkage(math.sqrt(8), STD, 16), abs=0.002)


def test_draws_are_of_the_runs_covariance(make: Callable) -> None:
    """Σ = noise_std²·AAᵀ, and a draw of a query is not that of another one."""
    run = make(stop={"noise_std": STD}).load()
    drawn = stray(run.predictor, STD, 0, 3, 50_000)
    weight = run.predictor.embed.weight
    torch.testing.assert_close(torch.cov(drawn.T), STD**2 * weight @ weight.T, atol=0.006, rtol=0.05)
    assert not torch.equal(drawn[:5], stray(run.predictor, STD, 0, 4, 5))
    torch.testing.assert_close(drawn[:5], stray(run.predictor, STD, 0, 3, 5))


@pytest.mark.parametrize("covariance", ["learned", "untied", "fixed"])
def test_the_blur_is_what_drawn_noise_does_along_a_step(make: Callable, covariance: str) -> None:
    run = make(stop={"noise_std": STD, "covariance": covariance}).load()
    table, drawn = run.predictor.position_table(run.grid), stray(run.predictor, STD, 0, 0, 20_000)
    moved = []
    for query in range(16):
        for place in (query + 1, query + 4):
            if place < 16 and (place % 4 or place == query + 4):
                step = table[place] - table[query]
                moved.append((drawn @ step / step.square().sum()).std().item())
    assert len(moved) == 24
    assert positions(run, 0, 2).blur == pytest.approx(np.mean(moved), rel=0.02)


def test_the_blur_of_a_learned_table_of_equal_steps_is_their_inverse_length(make: Callable) -> None:
    """Rows of 3·I are 3√2 apart; n itself moves a position by noise_std along each."""

    def far_apart(encoder: object, predictor: object) -> None:
        predictor.positions.copy_(3 * torch.eye(16)[None])  # type: ignore[attr-defined]

    run = make(far_apart, predictor={"positions": "learned"}, stop={"noise_std": STD, "covariance": "fixed"}).load()
    found = positions(run, 0, 4)
    assert found.blur == pytest.approx(STD / (3 * math.sqrt(2)))
    torch.testing.assert_close(found.still_NN, torch.eye(16))


def test_a_stronger_noise_moves_further_in_proportion_and_looks_less_like_itself(make: Callable) -> None:
    weak, strong = (positions(make(stop={"noise_std": std}).load(), 0, 64) for std in (0.1, 0.5))
    assert strong.blur == pytest.approx(5 * weak.blur)
    assert strong.own < weak.own < 1
    torch.testing.assert_close(weak.still_NN, strong.still_NN)


def test_what_is_drawn_is_among_what_is_averaged(make: Callable) -> None:
    found = positions(make().load(), 0, 2)
    torch.testing.assert_close(found.drawn_SNN.mean(dim=0), found.mean_NN)
    assert found.drawn_SNN.shape == (2, 16, 16)


def test_distances_and_cosines_are_numpys() -> None:
    grid, other = Size(3, 5), np.random.default_rng(0).normal(size=(15, 4))
    expected = [[np.hypot(q // 5 - p // 5, q % 5 - p % 5) for p in range(15)] for q in range(15)]
    assert np.allclose([distances(grid, query) for query in range(15)], expected)
    length = np.linalg.norm(other, axis=1)
    found = cosine(torch.from_numpy(other), torch.from_numpy(other))
    assert np.allclose(found, other @ other.T / np.outer(length, length))
    apart, means = by_distance(grid, found)
    whole = np.round(expected)
    assert apart == list(range(5))
    assert np.allclose(means, [found.numpy()[whole == place].mean() for place in apart])
