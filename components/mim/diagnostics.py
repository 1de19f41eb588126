"""What tells a healthy run from a collapsed one, measured every few steps."""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from components.mim.blocks import Masks
from components.mim.positions import StopSettings
from components.mim.predictor import Predictor


def whole(tensor: Tensor) -> Tensor:
    """`tensor`, gathered from all workers where it is sharded (a DTensor)."""
    gather = getattr(
        tensor, "full_tensor", None
    )  # torch.distributed.tensor is slow to import, and may not be there at all
    return gather() if gather else tensor


@torch.no_grad()
def norms(predictor: Predictor, stop: StopSettings, grid: tuple[int, int]) -> dict[str, float]:
    """Sizes of A, b, m̃ and of the noise, by metric name.

    `A_norm` is ‖A‖ (Frobenius), `A_norm_l1` its mean absolute entry (the paper's normalised l1, Fig. 4), `noise_ratio` is
    rms(A·n)/rms(ψ) in expectation, with N or I in place of A where the covariance says so. Without a mask token its norms are
    0; with `bias_on_noise` it is b that marks masked tokens. With sharded weights every worker must call it.
    """
    weight, bias = (whole(parameter).float() for parameter in (predictor.embed.weight, predictor.embed.bias))
    token = whole(predictor.mask_token).float() if predictor.config.mask_token else torch.zeros(1)
    positions = whole(predictor.position_table(grid)).float().square().mean().sqrt()
    return {
        "A_norm": weight.norm().item(),
        "A_norm_l1": weight.abs().mean().item(),
        "b_norm": bias.norm().item(),
        "b_norm_l1": bias.abs().mean().item(),
        "mask_token_norm": token.norm().item(),
        "mask_token_norm_l1": token.abs().mean().item(),
        "noise_ratio": stop.noise_std * _gain(predictor) / positions.item(),
    }


def _gain(predictor: Predictor) -> float:
    """rms of the stray per unit of noise: ‖A‖/√P."""
    if predictor.config.covariance == "fixed":
        return 1.0
    matrix = predictor.noise_embed if predictor.config.covariance == "untied" else predictor.embed
    return float(whole(matrix.weight).float().norm()) / math.sqrt(predictor.config.width)


@torch.no_grad()
def spread(features_nD: Tensor) -> dict[str, float]:
    """How much average-pooled features differ between images: mean standard deviation, and RankMe (Garrido et al. 2023)."""
    return {"feature_std": features_nD.std(dim=0).mean().item(), "effective_rank": effective_rank(features_nD)}


@torch.no_grad()
def effective_rank(features_nD: Tensor) -> float:
    """exp(entropy) of the normalised singular values of [n, D] features (RankMe, eq. 2)."""
    singular = torch.linalg.svdvals(features_nD.float())
    share = singular / singular.sum().clamp_min(1e-12) + 1e-7
    return torch.exp(-(share * share.log()).sum()).item()


@torch.no_grad()
def spectrum(predictor: Predictor) -> Tensor:
    """Eigenvalues of AAᵀ, the largest first: float32 [min(P, D)]. Σ = noise_std² times these (equation 2).

    With sharded weights every worker must call it.
    """
    singular: Tensor = torch.linalg.svdvals(whole(predictor.embed.weight).float())
    return singular.square()


def used_patches(masks: Masks, patches: int) -> Tensor:
    """Which of the N places on the grid were context or target of any image: float32 [N], 1 or 0."""
    used = torch.zeros(patches, device=masks.context_BK.device)
    for indices in (masks.context_BK, *masks.targets):
        used[indices.flatten()] = 1.0
    return used


class CollapseRule(NamedTuple):
    """Features have collapsed when one of these stays below its floor for `patience` logged points on end."""

    effective_rank_floor: float
    feature_std_floor: float
    patience: int

    def verdict(self, rows: Sequence[Mapping[str, float]]) -> str | None:
        """What happened, in words, or None while the run is healthy. `rows` are the logged points so far."""
        recent = rows[-self.patience :]
        if len(recent) < self.patience:
            return None
        for name, floor in (("effective_rank", self.effective_rank_floor), ("feature_std", self.feature_std_floor)):
            if all(row[name] < floor for row in recent):
                return (
                    f"features have collapsed: {name} is {recent[-1][name]:.4g} at step {recent[-1]['step']:.0f}, below "
                    f"{floor:g} for {self.patience} logged points on end"
                )
        return None
