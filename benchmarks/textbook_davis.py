"""The peers of benchmarks/davis.py: DINO's label propagation and the official J and F, written down directly.

Propagation: the neighbourhood built in nested Python loops for each video, and for each frame the full matrix of affinities of
all context tokens to all tokens of the frame, as the protocol is told. F: both boundaries of each object in each frame dilated
by a disk. Both on the bare libraries, without anything of `components`.
"""

from collections import deque
from collections.abc import Iterable, Iterator

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import ndimage
from torch import Tensor
from torch.nn import functional

Mask = NDArray[np.bool_]


def neighbourhood(h: int, w: int, radius: int) -> Tensor:
    """[h·w, h·w]: 1 where two tokens are at most `radius` apart in both directions, else 0."""
    near = torch.zeros(h, w, h, w)
    for row in range(h):
        for column in range(w):
            for down in range(-radius, radius + 1):
                for right in range(-radius, radius + 1):
                    if 0 <= row + down < h and 0 <= column + right < w:
                        near[row, column, row + down, column + right] = 1
    return near.view(h * w, h * w)


def propagate(
    features_ND: Iterable[Tensor],
    first_labels_KN: Tensor,
    near_NN: Tensor,
    *,
    top_k: int,
    temperature: float,
    context_frames: int,
) -> Iterator[Tensor]:
    """Soft labels [K,N] of the second frame, the third, …"""
    frames = iter(features_ND)
    first_ND = next(frames)
    recent: deque[tuple[Tensor, Tensor]] = deque(maxlen=context_frames)
    for target_ND in frames:
        features, labels = zip((first_ND, first_labels_KN), *recent, strict=True)
        labels_KN = transfer(target_ND, torch.stack(features), torch.cat(labels, 1), near_NN, top_k, temperature)
        recent.append((target_ND, labels_KN))
        yield labels_KN


def transfer(
    target_ND: Tensor, features_FND: Tensor, labels_KM: Tensor, near_NN: Tensor, top_k: int, temperature: float
) -> Tensor:
    """Labels [K,N] of one frame from the M = F·N tokens of its context."""
    target_ND, features_FND = functional.normalize(target_ND, dim=-1), functional.normalize(features_FND, dim=-1)
    affinity_FNN = torch.exp(features_FND @ target_ND.T / temperature)
    affinity_MN = (affinity_FNN * near_NN).flatten(0, 1)
    least_N = affinity_MN.topk(top_k, dim=0).values[-1]
    affinity_MN = affinity_MN.masked_fill(affinity_MN < least_N, 0)
    return labels_KM @ (affinity_MN / affinity_MN.sum(0, keepdim=True))


def region_overlap(prediction_HW: Mask, truth_HW: Mask) -> float:
    """J of one object in one frame."""
    union = (prediction_HW | truth_HW).sum()
    return float((prediction_HW & truth_HW).sum() / union) if union else 1.0


def boundary_agreement(prediction_HW: Mask, truth_HW: Mask) -> float:
    """F of one object in one frame, each boundary dilated by the disk of the tolerance."""
    radius = int(np.ceil(0.008 * np.linalg.norm(truth_HW.shape)))
    y, x = np.mgrid[-radius : radius + 1, -radius : radius + 1]
    disk = x**2 + y**2 <= radius**2
    predicted, true = boundary(prediction_HW), boundary(truth_HW)
    if not predicted.any() or not true.any():
        return float(predicted.any() == true.any())
    precision = (predicted & ndimage.binary_dilation(true, disk)).sum() / predicted.sum()
    recall = (true & ndimage.binary_dilation(predicted, disk)).sum() / true.sum()
    return float(2 * precision * recall / (precision + recall)) if precision + recall else 0.0


def boundary(mask_HW: Mask) -> Mask:
    """Pixels unlike their east, south or south-east neighbour; beyond the frame lies a copy of its last row and column."""
    east, south, corner = mask_HW.copy(), mask_HW.copy(), mask_HW.copy()
    east[:, :-1], south[:-1], corner[:-1, :-1] = mask_HW[:, 1:], mask_HW[1:], mask_HW[1:, 1:]
    edge_HW = (mask_HW ^ east) | (mask_HW ^ south) | (mask_HW ^ corner)
    edge_HW[-1], edge_HW[:, -1] = mask_HW[-1] ^ east[-1], mask_HW[:, -1] ^ south[:, -1]
    edge_HW[-1, -1] = False
    return edge_HW
