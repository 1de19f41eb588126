"""The mask sampler of I-JEPA's and StoP's released code, faults included, for comparison with published runs.

One number per step drives scale and aspect of all target blocks. No block reaches the last row and column. A context with at
most `min_context` patches outside the targets is drawn again; after every 20 failures it may overlap one target more.
Contexts are cut to the shortest of the call in raster order, so the bottom of the image is left out, the more the larger a
worker's batch is: like the reference, and unlike `masks`, this depends on how images share workers.
"""

import torch
from torch import Tensor

from components.mim import keys
from components.mim.blocks import Masks, block_indices, free_patches
from components.mim.grid import MaskSettings, Size, legacy_size, legacy_target

PATIENCE = 20
"""Attempts before one more target may be overlapped."""


def block_sizes(seed: int, step: int, grid: Size, settings: MaskSettings) -> tuple[Size, Size]:
    """The context block and the target block of one step, equal in the whole global batch."""
    place = torch.zeros(1, dtype=torch.int64)
    u, v = keys.uniform(keys.key(seed, "legacy size", step), place, 2)[0].tolist()
    scale = settings.context_scale_min + v * (settings.context_scale_max - settings.context_scale_min)
    return legacy_size(grid, scale, 1.0), legacy_target(grid, settings, u)


def sample(seed: int, step: int, places_B: Tensor, grid: Size, settings: MaskSettings) -> Masks:
    """Masks of the images at `places_B`; `grid.check_masks` says beforehand that blocks are large enough to end."""
    context, target = block_sizes(seed, step, grid, settings)
    blocks = settings.target_blocks
    corners_BM2 = _corners(keys.key(seed, "legacy targets", step), places_B, grid, [target] * blocks)
    free_BN = _context(seed, step, places_B, grid, settings, context, [target] * blocks, corners_BM2)
    length = int(free_BN.sum(dim=1).min())
    seen_BN = free_BN & (free_BN.cumsum(dim=1) <= length)  # the first ones: the reference's cut
    context_BK = seen_BN.nonzero()[:, 1].view(len(places_B), length)
    return Masks(context_BK, [block_indices(corners_BM2[:, m], target, grid) for m in range(blocks)])


def _corners(key: int, places: Tensor, grid: Size, sizes: list[Size]) -> Tensor:
    """Top-left corners [B, M, 2] that leave the last row and column out."""
    room = torch.tensor([[grid.h - size.h, grid.w - size.w] for size in sizes])
    return (keys.uniform(key, places, 2 * len(sizes)).view(-1, len(sizes), 2) * room).to(torch.int64)


def _context(
    seed: int,
    step: int,
    places: Tensor,
    grid: Size,
    settings: MaskSettings,
    context: Size,
    targets: list[Size],
    taken: Tensor,
) -> Tensor:
    """Patches of each image's context, before the cut: bool [B, N]."""
    free = torch.zeros(len(places), grid.h * grid.w, dtype=torch.bool)
    open_images = torch.arange(len(places))
    for attempt in range(PATIENCE * (len(targets) + 1)):
        key, kept = keys.key(seed, "legacy context", step, attempt), len(targets) - attempt // PATIENCE
        corner = _corners(key, places[open_images], grid, [context])
        corners = torch.cat([corner, taken[open_images, :kept]], dim=1)
        free[open_images] = free_patches(corners, grid, context, targets[:kept])
        open_images = open_images[free[open_images].sum(dim=1) <= settings.min_context]
        if not len(open_images):
            break
    return free
