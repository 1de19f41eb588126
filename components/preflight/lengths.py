"""How many tokens each part of the model sees, in the mean over the steps of a run.

FLOPs grow with the square of a length in attention alone, and the lengths of a run vary by a few patches, so that the mean is enough.
"""

import math
import random
from typing import NamedTuple

from components.mim.grid import (
    MaskSettings,
    Size,
    block_size,
    context_length,
    context_size,
    legacy_size,
    legacy_target,
    patch_grid,
    random_context,
)
from components.pretrain.contract import PretrainParams

STEPS = 32
"""Steps that are looked at."""
PATIENCE = 20
"""Attempts of `legacy` before one more target may be overlapped."""


class Lengths(NamedTuple):
    """Mean tokens of one image. `context` and `target` count patches; a class token comes on top as `prefix`."""

    patches: int
    prefix: int
    context: float
    blocks: int
    target: float

    def passes(self, joint: bool) -> list[tuple[float, float]]:
        """Of each of the predictor's passes: all its tokens, and those among them that are predicted."""
        seen = self.prefix + self.context
        if joint:
            return [(seen + self.blocks * self.target, self.blocks * self.target)]
        return [(seen + self.target, self.target)] * self.blocks


def at_once(params: PretrainParams) -> int:
    """Images of a worker in one forward pass at most."""
    share = params.optimisation.global_batch_size // params.scale.workers
    return min(params.scale.images_at_once or share, share)


def lengths(params: PretrainParams) -> Lengths:
    """Mean lengths of a run with these params. `legacy` cuts what a worker takes at once to the shortest context, so that counts there."""
    grid, masks = patch_grid(params.encoder.image_size, params.encoder.patch_size), params.masks
    patches, prefix = grid.h * grid.w, int(params.encoder.class_token)
    if masks.sampler == "random":
        context = random_context(grid, masks)
        return Lengths(patches, prefix, context, 1, patches - context)
    if masks.sampler == "legacy":
        return Lengths(patches, prefix, *_legacy(grid, masks, at_once(params)))
    return Lengths(patches, prefix, *_multiblock(grid, masks))


def noisy_tokens(params: PretrainParams, tokens: Lengths) -> float:
    """Tokens of one image whose noise passes through A or N."""
    stop = params.stop
    if stop.noise_std == 0 or stop.covariance == "fixed":
        return 0.0
    contexts = 1 if params.predictor.passes == "joint" else tokens.blocks
    masked = tokens.blocks * tokens.target if stop.apply_to != "context" else 0.0
    return masked + (contexts * tokens.context if stop.apply_to != "masked" else 0.0)


def _multiblock(grid: Size, masks: MaskSettings) -> tuple[float, int, float]:
    """K, M and T over `STEPS` steps whose draws are spread evenly: a Latin hypercube, each draw's strata in an order of its own."""
    draw, blocks = random.Random(0), masks.target_blocks
    strata = [(step + 0.5) / STEPS for step in range(STEPS)]
    columns = [draw.sample(strata, STEPS) for _ in range(1 + 2 * blocks)]
    low, high = math.log(masks.target_aspect_min), math.log(masks.target_aspect_max)
    context = area = 0.0
    for first, *rest in zip(*columns, strict=True):
        targets = [
            block_size(
                grid, _between(masks.target_scale_min, masks.target_scale_max, u), math.exp(_between(low, high, v))
            )
            for u, v in zip(rest[:blocks], rest[blocks:], strict=True)
        ]
        size = context_size(grid, _between(masks.context_scale_min, masks.context_scale_max, first))
        context += context_length(grid, size, targets) / STEPS
        area += sum(target.h * target.w for target in targets) / (STEPS * blocks)
    return context, blocks, area


def _between(low: float, high: float, share: float) -> float:
    return low + share * (high - low)


def _legacy(grid: Size, masks: MaskSettings, images: int) -> tuple[float, int, float]:
    """K, M and T, drawn as the reference draws them, blocks as bits of a number."""
    draw, context, area = random.Random(0), 0.0, 0.0
    for _ in range(STEPS):
        target = legacy_target(grid, masks, draw.random())
        scale = _between(masks.context_scale_min, masks.context_scale_max, draw.random())
        size = legacy_size(grid, scale, 1.0)
        context += min(_free(draw, grid, size, target, masks) for _ in range(images)) / STEPS
        area += target.h * target.w / STEPS
    return context, masks.target_blocks, area


def _free(draw: random.Random, grid: Size, context: Size, target: Size, masks: MaskSettings) -> int:
    """Context patches of one image outside its targets; with too few the context moves, and in the end overlaps targets."""
    targets = [_block(draw, grid, target) for _ in range(masks.target_blocks)]
    for attempt in range(PATIENCE * (len(targets) + 1)):
        free = _block(draw, grid, context)
        for block in targets[: len(targets) - attempt // PATIENCE]:
            free &= ~block
        if free.bit_count() > masks.min_context:
            break
    return free.bit_count()


def _block(draw: random.Random, grid: Size, size: Size) -> int:
    """A block somewhere outside the last row and column, a bit for each of its patches."""
    top, left = int(draw.random() * (grid.h - size.h)), int(draw.random() * (grid.w - size.w))
    row = ((1 << size.w) - 1) << left
    return sum(row << (grid.w * (top + down)) for down in range(size.h))
