"""The patch grid and what masks fit on it, in pure Python, so that a contract can check a params file in milliseconds."""

import math
from typing import Literal, NamedTuple, Protocol

Sampler = Literal["multiblock", "legacy", "random"]

CONTEXT_FRACTION = 0.75
"""Share of the expected number of free context patches that every image of a step keeps. The reference cuts a batch to its
smallest context instead, so that its context shrinks as the batch grows (by 32% at 32 images, 43% at 256, on a 14×14 grid)."""


class Size(NamedTuple):
    """A rectangle of patches."""

    h: int
    w: int


class MaskSettings(Protocol):
    """What a mask sampler must know; `pretrain.masks` in the params."""

    sampler: Sampler
    target_blocks: int
    target_scale_min: float
    target_scale_max: float
    target_aspect_min: float
    target_aspect_max: float
    context_scale_min: float
    context_scale_max: float
    min_context: int
    hidden_ratio: float


def patch_grid(image_size: int, patch_size: int) -> Size:
    """The grid of a square image. Raises ValueError unless the patch size divides the image size."""
    if image_size % patch_size:
        nearest = max(patch_size, round(image_size / patch_size) * patch_size)
        raise ValueError(
            f"image_size is {image_size} and patch_size {patch_size}; the patch size must divide the image size, "
            f"for example image_size {nearest}"
        )
    return Size(image_size // patch_size, image_size // patch_size)


def block_size(grid: Size, scale: float, aspect: float) -> Size:
    """The block of area `scale`·N and height/width `aspect`, rounded to whole patches, at least 1 and at most the grid."""
    area = scale * grid.h * grid.w
    h = round(math.sqrt(area * aspect))
    w = round(math.sqrt(area / aspect))
    return Size(min(max(h, 1), grid.h), min(max(w, 1), grid.w))


def target_sizes(grid: Size, masks: MaskSettings) -> set[Size]:
    """Every block size that the settings can draw (scale and log aspect on a fine lattice)."""
    steps = [i / 64 for i in range(65)]
    low, high = math.log(masks.target_aspect_min), math.log(masks.target_aspect_max)
    return {
        block_size(
            grid,
            masks.target_scale_min + s * (masks.target_scale_max - masks.target_scale_min),
            math.exp(low + a * (high - low)),
        )
        for s in steps
        for a in steps
    }


def context_size(grid: Size, scale: float) -> Size:
    """The square-aspect context block of area `scale`·N."""
    return block_size(grid, scale, grid.h / grid.w)


def context_length(grid: Size, context: Size, targets: list[Size]) -> int:
    """K, the number of context patches every image keeps in a step with these block sizes.

    `CONTEXT_FRACTION` of the expected number of patches inside the context block and outside all target blocks, when every
    block's corner is uniform; never more than is left when all target blocks lie on top of each other.
    """
    expected = 0.0
    covers = [(_cover(grid.h, size.h), _cover(grid.w, size.w)) for size in targets]
    rows, columns = _cover(grid.h, context.h), _cover(grid.w, context.w)
    for row in range(grid.h):
        for column in range(grid.w):
            free = rows[row] * columns[column]
            for target_rows, target_columns in covers:
                free *= 1.0 - target_rows[row] * target_columns[column]
            expected += free
    stacked = sum(max(size.w for size in targets if size.h > row) for row in range(max(size.h for size in targets)))
    return min(int(CONTEXT_FRACTION * expected), context.h * context.w - stacked)


def _cover(length: int, block: int) -> list[float]:
    """Probability that a block of `block` cells, placed uniformly on `length` cells, covers each cell."""
    places = length - block + 1
    return [(min(cell, length - block) - max(cell - block + 1, 0) + 1) / places for cell in range(length)]


def legacy_size(grid: Size, scale: float, aspect: float) -> Size:
    """A block of the reference's sampler: its area is rounded down first, and it never fills the grid in either direction."""
    area = int(grid.h * grid.w * scale)
    h, w = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
    return Size(min(h, grid.h - 1), min(w, grid.w - 1))


def legacy_target(grid: Size, masks: MaskSettings, draw: float) -> Size:
    """The reference's target block for one uniform draw, which drives scale and aspect alike: larger ones are taller."""
    scale = masks.target_scale_min + draw * (masks.target_scale_max - masks.target_scale_min)
    return legacy_size(
        grid, scale, masks.target_aspect_min + draw * (masks.target_aspect_max - masks.target_aspect_min)
    )


def random_context(grid: Size, masks: MaskSettings) -> int:
    """K of MAE's random masks: the share that is not hidden, rounded down."""
    return int(grid.h * grid.w * (1.0 - masks.hidden_ratio))


def check_masks(grid: Size, masks: MaskSettings) -> int:
    """The smallest context the settings can draw on this grid. Raises ValueError when it is below `masks.min_context`.

    What passes can be drawn in a bounded number of attempts, with any sampler.
    """
    where = f"masks on a {grid.h}×{grid.w} patch grid"
    if masks.sampler == "random":
        worst = random_context(grid, masks)
        if worst == grid.h * grid.w:
            raise ValueError(
                f"{where}, of which hidden_ratio {masks.hidden_ratio} hides none; nothing would be predicted: raise hidden_ratio above "
                f"{1 / worst:.3g}"
            )
        cause = f"hidden_ratio {masks.hidden_ratio}"
        way_out = "a lower hidden_ratio"
    elif masks.sampler == "legacy":
        return _check_legacy(grid, masks, where)
    else:
        context = context_size(grid, masks.context_scale_min)
        sizes = target_sizes(grid, masks)
        # Larger blocks leave less, in either direction: blocks that cover all of these sizes bound every mix of them.
        largest = Size(max(size.h for size in sizes), max(size.w for size in sizes))
        worst = context_length(grid, context, [largest] * masks.target_blocks)
        cause = (
            f"{masks.target_blocks} target blocks of scale up to {masks.target_scale_max}, context scale from "
            f"{masks.context_scale_min}"
        )
        way_out = "fewer or smaller target blocks"
    if worst < masks.min_context:
        raise ValueError(
            f"{where} leave as few as {max(worst, 0)} context patches ({cause}); min_context asks for {masks.min_context}. Use a "
            f"larger image_size or a smaller patch_size, {way_out}, or a lower min_context"
        )
    return worst


def _check_legacy(grid: Size, masks: MaskSettings, where: str) -> int:
    """The reference draws a block again until it has more than `min_context` patches, which may be never."""
    blocks = [legacy_target(grid, masks, i / 64) for i in range(65)]
    blocks.append(legacy_size(grid, masks.context_scale_min, 1.0))
    least = min(max(block.h, 0) * max(block.w, 0) for block in blocks)
    if least <= masks.min_context:
        raise ValueError(
            f"{where} with sampler legacy have blocks of {least} patches; they need more than min_context, {masks.min_context}, or "
            f"the reference's sampler never ends. Use a larger image_size, a smaller patch_size, "
            f"{'a lower min_context, ' if least > 1 else ''}or sampler multiblock"
        )
    return masks.min_context + 1
