"""Which patches are seen and which are predicted: multi-block masks, the reference's own, or MAE's random ones.

`multiblock` (I-JEPA, Assran et al. 2023, §3) reaches every patch and gives every image the same counts. Block sizes are drawn
once per step and block, corners once per image; scale and aspect are independent. Blocks may touch the last row and
column. Every image keeps the same number K of context patches (`grid.context_length`), a uniform subset of its free ones;
an image whose target blocks leave fewer draws its corners again. `legacy` stands in `legacy_masks`.
"""

import math

import torch
from torch import Tensor

from components.mim import keys, legacy_masks
from components.mim.blocks import Masks, block_indices, free_patches
from components.mim.grid import MaskSettings, Size, block_size, context_length, context_size, random_context

ATTEMPTS = 32


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
    """Masks of the images at `places_B` (int64, their places in the global batch) in one step, drawn on the CPU for any device.

    An image's masks don't depend on its company, except with `legacy`, which cuts all contexts of a call to the shortest.
    """
    if settings.sampler == "legacy":
        return legacy_masks.sample(seed, step, places_B, grid, settings)
    if settings.sampler == "random":
        scores = keys.uniform(keys.key(seed, "random mask", step), places_B, grid.h * grid.w)
        return by_score(scores, random_context(grid, settings))
    return _multiblock(seed, step, places_B, grid, settings)


def by_score(scores_BN: Tensor, length: int) -> Masks:
    """MAE's masks: the `length` patches of lowest score are the context, all others one target block."""
    order = scores_BN.argsort(dim=1)
    return Masks(order[:, :length].sort(dim=1).values, [order[:, length:].sort(dim=1).values])


def _multiblock(seed: int, step: int, places_B: Tensor, grid: Size, settings: MaskSettings) -> Masks:
    context, targets = block_sizes(seed, step, grid, settings)
    length = context_length(grid, context, targets)
    corners_BM2 = _corners(seed, step, places_B, grid, [context, *targets], length)
    free = free_patches(corners_BM2, grid, context, targets)
    order = keys.uniform(keys.key(seed, "context subset", step), places_B, grid.h * grid.w)
    chosen = order.masked_fill(~free, 2.0).topk(length, dim=1, largest=False).indices.sort(dim=1).values
    return Masks(chosen, [block_indices(corners_BM2[:, m + 1], size, grid) for m, size in enumerate(targets)])


def _corners(seed: int, step: int, places: Tensor, grid: Size, sizes: list[Size], length: int) -> Tensor:
    """Top-left corners [B, 1+M, 2], drawn again for images with fewer than `length` free patches.

    After `ATTEMPTS` draws the target blocks are laid on one corner, where `grid.context_length` guarantees room.
    """
    room = torch.tensor([[grid.h - size.h + 1, grid.w - size.w + 1] for size in sizes])
    corners = torch.zeros(len(places), len(sizes), 2, dtype=torch.int64)
    open_images = torch.arange(len(places))
    for attempt in range(ATTEMPTS):
        u = keys.uniform(keys.key(seed, "corners", step, attempt), places[open_images], 2 * len(sizes))
        drawn = (u.view(-1, len(sizes), 2) * room).to(torch.int64)
        corners[open_images] = drawn
        enough = free_patches(drawn, grid, sizes[0], sizes[1:]).sum(dim=1) >= length
        open_images = open_images[~enough]
        if not len(open_images):
            return corners
    corners[open_images] = torch.minimum(corners[open_images, :1], room.amin(dim=0) - 1)
    corners[open_images, 0] = 0
    return corners
