"""Rectangles of patches as indices and as sets, for every image of a batch at once, on the CPU."""

from typing import NamedTuple

import torch
from torch import Tensor

from components.mim.grid import Size


class Masks(NamedTuple):
    """Patch indices in raster order: `context_BK` int64 [B, K] and, for each of M blocks, int64 [B, T]."""

    context_BK: Tensor
    targets: list[Tensor]

    def to(self, device: torch.device) -> "Masks":
        """The same on another device."""
        return Masks(self.context_BK.to(device), [target.to(device) for target in self.targets])


def free_patches(corners: Tensor, grid: Size, context: Size, targets: list[Size]) -> Tensor:
    """Patches inside the context block and outside every target block: bool [B, N]."""
    free = inside(corners[:, 0], context, grid)
    for m, size in enumerate(targets, 1):
        free = free & ~inside(corners[:, m], size, grid)
    return free


def inside(corner: Tensor, size: Size, grid: Size) -> Tensor:
    """Patches of the block with its top-left at `corner` [B, 2]: bool [B, N]."""
    rows = torch.arange(grid.h) - corner[:, :1]
    columns = torch.arange(grid.w) - corner[:, 1:]
    in_both = ((rows >= 0) & (rows < size.h)).unsqueeze(2) & ((columns >= 0) & (columns < size.w)).unsqueeze(1)
    return in_both.flatten(1)


def block_indices(corner: Tensor, size: Size, grid: Size) -> Tensor:
    """The same patches as indices in raster order: int64 [B, T]."""
    rows = corner[:, :1] + torch.arange(size.h)
    columns = corner[:, 1:] + torch.arange(size.w)
    return (rows.unsqueeze(2) * grid.w + columns.unsqueeze(1)).flatten(1)
