"""Positional embeddings: deterministic 2-D sin-cos, and StoP's Gaussian around it (Bar et al., ICML 2024).

A masked token is m = ψ + A·n + m̃ with n ~ N(0, noise_std²·I); a context token is c = ψ + A·s + b (Algorithm 1). The same
A projects context features and noise. `noise_std` is a standard deviation, as in the released code: the paper's text
writes σ as a variance, so its σ = 0.25 read literally is noise_std = 0.5.
"""

from functools import lru_cache

import torch
from torch import Tensor

from components.mim import keys


@lru_cache(maxsize=32)
def sincos(h: int, w: int, width: int) -> Tensor:
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
    return torch.cat(halves, dim=1).to(torch.float32)


def draw_noise(seed: int, step: int, block: int, places: Tensor, patches: int, width: int, noise_std: float) -> Tensor:
    """n for one target block: float32 [B, T, D], fresh for every image, block, token and step.

    `places` are the images' places in the global batch, so the draw does not depend on the number of workers.
    """
    draws = keys.normal(keys.key(seed, "noise", step, block), places, patches * width)
    return draws.view(len(places), patches, width).mul_(noise_std)
