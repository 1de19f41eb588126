"""Label propagation (Caron et al. 2021, DINO; after Jabri et al. 2020): pure tensor functions, no files, no randomness."""

from collections import deque
from collections.abc import Iterable, Iterator

import torch
from torch import Tensor
from torch.nn import functional

# Target rows compared at once: enough for a fast matrix product, few enough that most rows outside the window are never
# computed. 108 ms a frame where the dense product takes 190 (30×52 tokens, width 192, 8 context frames, one core).
BAND = 6


def propagate(
    features_hwD: Iterable[Tensor],
    first_labels_Khw: Tensor,
    *,
    radius: int,
    top_k: int,
    temperature: float,
    context_frames: int,
) -> Iterator[Tensor]:
    """Soft labels [K,h,w] of the second frame, the third, …, each made when asked for.

    Takes one token grid [h,w,D] per frame and holds the first and the last `context_frames`, whatever the video's length.
    Labels stay soft: what one frame predicts is what the next ones inherit.
    """
    frames = (functional.normalize(grid_hwD, dim=-1) for grid_hwD in features_hwD)
    first_hwD = next(frames)
    first_labels_hwK = first_labels_Khw.permute(1, 2, 0)
    recent: deque[tuple[Tensor, Tensor]] = deque(maxlen=context_frames)
    for target_hwD in frames:
        keys, labels = zip((first_hwD, first_labels_hwK), *recent, strict=True)
        labels_hwK = transfer(
            target_hwD,
            torch.stack(keys, 1),
            torch.stack(labels, 1),
            radius=radius,
            top_k=top_k,
            temperature=temperature,
        )
        recent.append((target_hwD, labels_hwK))
        yield labels_hwK.permute(2, 0, 1)


def transfer(
    target_hwD: Tensor, keys_hFwD: Tensor, labels_hFwK: Tensor, *, radius: int, top_k: int, temperature: float
) -> Tensor:
    """Labels [h,w,K] that the tokens of a frame take from F context frames (row-major in h, so that a band is one slice).

    Each token averages the labels of its `top_k` most similar tokens within `radius` (Chebyshev) in all F frames together,
    weighted by softmax(similarity / temperature). Features must have unit length.
    """
    height, frames, width, _ = keys_hFwD.shape
    far_hh, far_ww = (_far(size, radius, target_hwD) for size in (height, width))
    bands = []
    for top in range(0, height, BAND):
        bottom = min(top + BAND, height)
        source = slice(max(top - radius, 0), min(bottom + radius, height))
        affinity = target_hwD[top:bottom].flatten(0, 1) @ keys_hFwD[source].flatten(0, 2).T
        window = affinity.view(bottom - top, width, -1, frames, width)
        window += far_hh[top:bottom, None, source, None, None]
        window += far_ww[None, :, None, None, :]
        value, index = affinity.topk(min(top_k, affinity.shape[1]), dim=1)
        weight = torch.softmax(value / temperature, dim=1)
        bands.append(torch.einsum("nv,nvk->nk", weight, labels_hFwK[source].flatten(0, 2)[index]))
    return torch.cat(bands).view(height, width, -1)


def _far(size: int, radius: int, like: Tensor) -> Tensor:
    """[size,size]: 0 within the radius, −inf beyond; added before the top k, a far token can never be chosen."""
    place = torch.arange(size, device=like.device)
    distance = (place[:, None] - place).abs()
    return torch.zeros_like(distance, dtype=like.dtype).masked_fill_(distance > radius, -torch.inf)
