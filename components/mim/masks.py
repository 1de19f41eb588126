"""Multi-block masks (I-JEPA, Assran et al. 2023, §3) that reach every patch and give every image the same counts.

Block sizes are drawn once per step and block, corners once per image; scale and aspect are independent. Blocks may touch
the last row and column. Every image keeps the same number K of context patches (`grid.context_length`), a uniform subset
of its free ones; an image whose target blocks leave fewer draws its corners again.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from components.mim import keys
from components.mim.grid import MaskSettings, Size, block_size, context_length, context_size

ATTEMPTS = 32


class Masks(NamedTuple):
    """Patch indices in raster order: `context_BK` int64 [B, K] and, for each of M blocks, int64 [B, T]."""

    context_BK: Tensor
    targets: list[Tensor]


def block_sizes(seed: int, step: int, grid: Size, settings: MaskSettings) -> tuple[Size, list[Size]]:
    """The context block and the M target blocks of one step, equal in the whole global batch."""
    place = torch.zeros(1, dtype=torch.int64)
    targets = []
    for block in range(settings.target_blocks):
        u, v = keys.uniform(keys.key(seed, "target size", step, block), place, 2)[0].tolist()
        scale = settings.target_scale_min + u * (settings.target_scale_max - settings.target_scale_min)
        low, high = math.log(settings.target_aspect_min), math.log(settings.target_aspect_max)
        targets.append(block_size(grid, scale, math.exp(low + v * (high - low))))
    u = keys.uniform(keys.key(seed, "context size", step), place, 1).item()
    scale = settings.context_scale_min + u * (settings.context_scale_max - settings.context_scale_min)
    return context_size(grid, scale), targets


def sample(seed: int, step: int, places_B: Tensor, grid: Size, settings: MaskSettings) -> Masks:
    """Masks of the images at `places_B` (int64, their places in the global batch) in one step."""
    context, targets = block_sizes(seed, step, grid, settings)
    length = context_length(grid, context, targets)
    corners_BM2 = _corners(seed, step, places_B, grid, [context, *targets], length)
    free = _free(corners_BM2, grid, context, targets)
    order = keys.uniform(keys.key(seed, "context subset", step), places_B, grid.h * grid.w)
    chosen = order.masked_fill(~free, 2.0).topk(length, dim=1, largest=False).indices.sort(dim=1).values
    return Masks(chosen, [_indices(corners_BM2[:, m + 1], size, grid) for m, size in enumerate(targets)])


def _corners(seed: int, step: int, places: Tensor, grid: Size, sizes: list[Size], length: int) -> Tensor:
    """Top-left corners [B, 1+M, 2], drawn again for images with fewer than `length` free patches.

    After `ATTEMPTS` draws the target blocks are laid on one corner, where `grid.context_length` guarantees room.
    """
    room = torch.tensor([[grid.h - size.h + 1, grid.w - size.w + 1] for size in sizes], device=places.device)
    corners = torch.empty(len(places), len(sizes), 2, dtype=torch.int64, device=places.device)
    open_images = torch.arange(len(places), device=places.device)
    for attempt in range(ATTEMPTS):
        u = keys.uniform(keys.key(seed, "corners", step, attempt), places[open_images], 2 * len(sizes))
        drawn = (u.view(-1, len(sizes), 2) * room).to(torch.int64)
        corners[open_images] = drawn
        enough = _free(drawn, grid, sizes[0], sizes[1:]).sum(dim=1) >= length
        open_images = open_images[~enough]
        if not len(open_images):
            return corners
    corners[open_images] = torch.minimum(corners[open_images, :1], room.amin(dim=0) - 1)
    corners[open_images, 0] = 0
    return corners


def _free(corners: Tensor, grid: Size, context: Size, targets: list[Size]) -> Tensor:
    """Patches inside the context block and outside every target block: bool [B, N]."""
    blocks = [_inside(corners[:, m], size, grid) for m, size in enumerate([context, *targets])]
    return blocks[0] & ~torch.stack(blocks[1:]).any(dim=0)


def _inside(corner: Tensor, size: Size, grid: Size) -> Tensor:
    rows = torch.arange(grid.h, device=corner.device) - corner[:, :1]
    columns = torch.arange(grid.w, device=corner.device) - corner[:, 1:]
    inside = ((rows >= 0) & (rows < size.h)).unsqueeze(2) & ((columns >= 0) & (columns < size.w)).unsqueeze(1)
    return inside.flatten(1)


def _indices(corner: Tensor, size: Size, grid: Size) -> Tensor:
    rows = corner[:, :1] + torch.arange(size.h, device=corner.device)
    columns = corner[:, 1:] + torch.arange(size.w, device=corner.device)
    return (rows.unsqueeze(2) * grid.w + columns.unsqueeze(1)).flatten(1)
