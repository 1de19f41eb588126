"""Patch features as colours: their principal components over many pictures."""

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.decomposition import PCA
from torch import Tensor

from components.features import token_grid
from components.images.transforms import normalise
from components.mim.encoder import VisionEncoder

BATCH = 32
COLOURS = 3
CUT = 1.0
"""Percent of the patches at either end of a component that are drawn in its darkest and brightest shade."""


class Components(NamedTuple):
    """`colours_Bhw3` in 0..1: the first three principal components as red, green and blue; `explained` percent of the variance."""

    colours_Bhw3: NDArray[np.float64]
    explained: float


@torch.inference_mode()
def features(encoder: VisionEncoder, pixels_BHWC: Tensor) -> Tensor:
    """Normed last-layer tokens of uint8 images on a grid: [B, h, w, D], on the CPU."""
    device = next(encoder.parameters()).device
    batches = (pixels_BHWC[start : start + BATCH] for start in range(0, len(pixels_BHWC), BATCH))
    return torch.cat([token_grid(encoder, normalise(batch.to(device))).float().cpu() for batch in batches])


def components(features_BhwD: Tensor) -> Components:
    """The three directions in which the patches of all images differ most, each stretched over the whole range of a colour."""
    flat = features_BhwD.flatten(0, 2).double().numpy()
    if not np.isfinite(flat).all():
        raise ValueError(
            "patch features hold values that are no finite numbers, so the weights do: look at the curves of stage pretrain"
        )
    total = flat.var(axis=0, ddof=1).sum()
    if total == 0:  # features of a collapsed encoder differ in nothing
        return Components(np.full((*features_BhwD.shape[:3], COLOURS), 0.5), 0.0)
    # From a covariance matrix where it is the smaller one: as exact, and a hundred times faster for many patches.
    pca = PCA(COLOURS, svd_solver="full" if len(flat) < flat.shape[1] else "covariance_eigh").fit(flat)
    scores = pca.transform(flat)
    low, high = np.percentile(scores, [CUT, 100 - CUT], axis=0)
    colours = ((scores - low) / np.maximum(high - low, np.finfo(float).tiny)).clip(0, 1)
    return Components(
        colours.reshape(*features_BhwD.shape[:3], COLOURS), 100 * float(pca.explained_variance_.sum() / total)
    )
