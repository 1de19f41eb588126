"""What is watched: rank, norms, spectrum, coverage, and the rule that calls a collapse."""

from dataclasses import dataclass

import pytest
import torch

from components.mim.blocks import Masks
from components.mim.diagnostics import CollapseRule, effective_rank, norms, spectrum, spread, used_patches
from components.mim.positions import ApplyTo, Covariance
from components.mim.predictor import Predictor, PredictorConfig


@dataclass(frozen=True)
class Stop:
    noise_std: float = 0.5
    covariance: Covariance = "learned"
    apply_to: ApplyTo = "masked"


def predictor(covariance: Covariance = "learned", mask_token: bool = True) -> Predictor:
    torch.manual_seed(0)
    made = Predictor(
        PredictorConfig(
            encoder_width=24, output_width=24, width=16, layers=1, heads=2, mask_token=mask_token,
            bias_on_noise=not mask_token, covariance=covariance,
        )
    )  # fmt: skip
    if mask_token:
        torch.nn.init.constant_(made.mask_token, 0.25)
    return made


def test_effective_rank_is_the_rank_of_a_flat_spectrum() -> None:
    basis = torch.linalg.qr(torch.randn(64, 10, generator=torch.Generator().manual_seed(0)))[0]
    assert effective_rank(basis) == pytest.approx(10, rel=1e-3)
    assert effective_rank(torch.ones(50, 8)) == pytest.approx(1, abs=1e-3)
    assert spread(torch.ones(50, 8))["feature_std"] == 0


@pytest.mark.parametrize("covariance", ["learned", "untied", "fixed"])
def test_the_noise_ratio_is_what_drawn_noise_does(covariance: Covariance) -> None:
    one = predictor(covariance)
    noise = 0.5 * torch.randn(20_000, 1, 16 if covariance == "fixed" else 24)
    measured = one.stray(noise).square().mean().sqrt() / one.position_table((4, 6)).square().mean().sqrt()
    assert norms(one, Stop(), (4, 6))["noise_ratio"] == pytest.approx(measured.item(), rel=0.02)


def test_norms_are_those_of_the_paper() -> None:
    one = predictor()
    found = norms(one, Stop(), (4, 4))
    assert found["A_norm"] ** 2 == pytest.approx(spectrum(one).sum().item(), rel=1e-5)  # ‖A‖² = tr AAᵀ
    assert found["A_norm_l1"] == pytest.approx(one.embed.weight.abs().sum().item() / (16 * 24), rel=1e-5)
    assert (found["mask_token_norm"], found["mask_token_norm_l1"]) == (pytest.approx(1.0), pytest.approx(0.25))
    assert norms(predictor(mask_token=False), Stop(), (4, 4))["mask_token_norm"] == 0


def test_the_spectrum_is_that_of_a_times_its_transpose() -> None:
    one = predictor()
    matrix = one.embed.weight @ one.embed.weight.T
    torch.testing.assert_close(spectrum(one), torch.linalg.eigvalsh(matrix).flip(0), rtol=1e-4, atol=1e-6)


def test_used_patches_are_context_and_targets_of_all_images() -> None:
    masks = Masks(torch.tensor([[0, 1], [1, 2]]), [torch.tensor([[4], [5]])])
    assert used_patches(masks, 8).tolist() == [1, 1, 1, 0, 1, 1, 0, 0]


def test_a_collapse_is_several_points_on_end_below_a_floor() -> None:
    rule = CollapseRule(effective_rank_floor=2.0, feature_std_floor=0.01, patience=3)

    def rows(*points: tuple[float, float]) -> list[dict[str, float]]:
        return [{"step": 10.0 * i, "effective_rank": rank, "feature_std": std} for i, (rank, std) in enumerate(points)]

    healthy, flat, narrow = (9.0, 0.2), (9.0, 0.001), (1.5, 0.2)
    assert rule.verdict(rows(flat, flat)) is None
    assert rule.verdict(rows(flat, flat, healthy)) is None
    assert rule.verdict(rows(flat, narrow, flat)) is None  # neither stayed below
    assert "feature_std is 0.001 at step 30, below 0.01 for 3" in str(rule.verdict(rows(healthy, flat, flat, flat)))
    assert "effective_rank is 1.5 at step 20" in str(rule.verdict(rows(narrow, narrow, narrow)))
    assert CollapseRule(0, 0, 1).verdict(rows((0.0, 0.0))) is None  # floors of 0 switch it off
