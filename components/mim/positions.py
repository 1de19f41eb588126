"""Positional embeddings: fixed 2-D sin-cos, learned, and StoP's Gaussian around either (Bar et al., ICML 2024).

A masked token is m = ψ + A·n + m̃ with n ~ N(0, noise_std²·I); a context token is c = ψ + A·s + b (Algorithm 1). The same
A projects context features and noise. `noise_std` is a standard deviation, as in the released code: the paper's text
writes σ as a variance, so its σ = 0.25 read literally is noise_std = 0.5.
"""

from functools import lru_cache
from typing import Literal, NamedTuple, Protocol

import torch
from timm.layers import resample_abs_pos_embed
from torch import Tensor

from components.mim import keys
from components.mim.blocks import Masks

Covariance = Literal["learned", "untied", "fixed"]
"""Σ = noise_std²·AAᵀ with the A of the context; noise_std²·NNᵀ with a matrix N of its own; noise_std²·I."""
ApplyTo = Literal["masked", "context", "both"]


class StopSettings(Protocol):
    """What a draw of noise must know; `pretrain.stop` in the params."""

    noise_std: float
    covariance: Covariance
    apply_to: ApplyTo


class Noise(NamedTuple):
    """n of one step: for each of M blocks, float32 [B, T, ·] on its masked tokens and [B, K, ·] on the context it is predicted
    from. None where nothing is noisy. The last axis is D, or P for the fixed covariance."""

    masked: list[Tensor] | None
    context: list[Tensor] | None


@lru_cache(maxsize=32)
@torch.inference_mode(False)  # an evaluation may be the first to ask, and training must be able to use the same table
def sincos(h: int, w: int, width: int, device: torch.device | None = None) -> Tensor:
    """The fixed table ψ for an h×w grid: float32 [h·w, width], first half from the column, second half from the row.

    Frequencies 10000^(-4i/width) as in MAE and I-JEPA, in closed form for any grid. Raises ValueError unless 4 divides width.
    """
    if width % 4:
        raise ValueError(f"width is {width}; 2-D sin-cos positions need a multiple of 4")
    omega = 10000.0 ** (-torch.arange(width // 4, dtype=torch.float64) / (width / 4))
    rows, columns = torch.meshgrid(
        torch.arange(h, dtype=torch.float64), torch.arange(w, dtype=torch.float64), indexing="ij"
    )
    halves = [
        torch.cat([torch.sin(axis.flatten()[:, None] * omega), torch.cos(axis.flatten()[:, None] * omega)], dim=1)
        for axis in (columns, rows)
    ]
    return torch.cat(halves, dim=1).to(device, torch.float32)


def learned_positions(table_1ND: Tensor, h: int, w: int) -> Tensor:
    """A learned table of a square grid, bicubically resampled for an h×w one (timm's rule): [1, h·w, D]."""
    side = round(table_1ND.shape[1] ** 0.5)
    if (h, w) == (side, side):
        return table_1ND
    resampled: Tensor = resample_abs_pos_embed(table_1ND, [h, w], old_size=[side, side], num_prefix_tokens=0)
    return resampled


def draw_noise(
    stop: StopSettings, seed: int, step: int, places_B: Tensor, masks: Masks, encoder_width: int, predictor_width: int
) -> Noise | None:
    """The noise of one step on the device of `masks`, None without any: fresh for every image, block, token and step.

    `places_B` (on the CPU) are the images' places in the global batch, so the draw does not depend on the number of workers.
    """
    if stop.noise_std == 0:
        return None
    width = predictor_width if stop.covariance == "fixed" else encoder_width

    def draw(purpose: str, block: int, patches: int) -> Tensor:
        draws = keys.normal(keys.key(seed, purpose, step, block), places_B, patches * width, masks.context_BK.device)
        return draws.view(len(places_B), patches, width).mul_(stop.noise_std)

    targets, seen = masks.targets, masks.context_BK.shape[1]
    masked = (
        [draw("noise", m, target.shape[1]) for m, target in enumerate(targets)] if stop.apply_to != "context" else None
    )
    context = [draw("context noise", m, seen) for m in range(len(targets))] if stop.apply_to != "masked" else None
    return Noise(masked, context)
