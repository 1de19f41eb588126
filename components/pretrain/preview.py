"""What the encoder sees and what it must predict, drawn before training starts.

The crops are those of the run's first step, at their places in the global batch, with the masks that step draws: nothing
here is an illustration made another way.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import torch
from PIL import Image, ImageDraw, ImageFont

from components.figures import COLOURS
from components.images.store import Store
from components.images.transforms import Pixels
from components.mim import masks
from components.mim.blocks import Masks
from components.mim.grid import Size, patch_grid
from components.pretrain.batches import Batches
from components.pretrain.contract import PretrainParams

IMAGES, COLUMNS = 8, 2
TILE = 224  # pixels a panel has at least about, and at most where patches allow
HEADER, GAP = 50, 8  # pixels: height of the captions, space between panels; twice that between images
GREY = 235  # of patches that the encoder is not given; photographs and rendered grounds seldom are so light
FONT = ImageFont.load_default(13)  # it knows ASCII only


class Panels(NamedTuple):
    """One training crop three ways, uint8 [S, S, 3]: as it is, its context, its target blocks."""

    crop: Pixels
    context: Pixels
    targets: Pixels


def draw(params: PretrainParams, store: Store) -> Image.Image:
    """Up to 8 crops of step 0 with their masks. Raises ValueError when the split is smaller than one global batch."""
    grid, chosen = patch_grid(params.encoder.image_size, params.encoder.patch_size), masks_of_first(params)
    drawn = list(panels(params, store))
    side = len(drawn[0].crop)
    step, rows = side + GAP, -(-len(drawn) // COLUMNS)
    size = (COLUMNS * 3 * step + (COLUMNS - 1) * GAP - GAP, HEADER + rows * step - GAP)
    sheet = Image.new("RGB", size, "white")
    for number, pictures in enumerate(drawn):
        column, row = number % COLUMNS, number // COLUMNS
        for place, pixels in enumerate(pictures):
            sheet.paste(Image.fromarray(pixels), (column * (3 * step + GAP) + place * step, HEADER + row * step))
    _caption(ImageDraw.Draw(sheet), chosen, grid, step, params)
    return sheet


def masks_of_first(params: PretrainParams) -> Masks:
    """Masks of the previewed crops: those at the first places of step 0's global batch."""
    share = params.optimisation.global_batch_size // params.scale.workers  # legacy masks depend on the worker's images
    grid = patch_grid(params.encoder.image_size, params.encoder.patch_size)
    chosen = masks.sample(params.seed, 0, torch.arange(share), grid, params.masks)
    return Masks(chosen.context_BK[:IMAGES], [block[:IMAGES] for block in chosen.targets])


def panels(params: PretrainParams, store: Store) -> Iterator[Panels]:
    """The previewed crops, each patch `patch_side` pixels wide; outlines as `block_outline` says."""
    size, grid = params.encoder.image_size, patch_grid(params.encoder.image_size, params.encoder.patch_size)
    # A worker's pixels depend on places only, so one of many workers decodes the first few crops of any batch size.
    world = max(1, params.optimisation.global_batch_size // IMAGES)
    batch = Batches(params, store, rank=0, world=world).batch(0)
    chosen, side = masks_of_first(params), patch_side(size, grid)
    larger = side * grid.h >= size
    resampling = Image.Resampling.NEAREST if larger else Image.Resampling.BOX
    for number, context_K in enumerate(chosen.context_BK):
        image = Image.fromarray(batch.pixels[number].numpy()).resize((side * grid.w, side * grid.h), resampling)
        crop = np.asarray(image)
        context = np.where(_pixels(context_K, grid, side), crop, np.uint8(GREY))
        blocks = [block[number] for block in chosen.targets]
        faded = crop // 2 + np.uint8(128)  # halfway to white
        targets = Image.fromarray(np.where(_pixels(torch.cat(blocks), grid, side), crop, faded))
        pen = ImageDraw.Draw(targets)
        for m, block_T in enumerate(blocks if params.masks.sampler != "random" else []):
            box, width = block_outline(block_T, m, grid, side)
            pen.rectangle(box, outline=COLOURS[m % len(COLOURS)], width=width)
        yield Panels(crop, context, np.asarray(targets))


def patch_side(image_size: int, grid: Size) -> int:
    """Pixels of a patch on the sheet: a whole multiple of its own for small crops, fewer for those larger than a panel."""
    if image_size <= TILE:
        return image_size // grid.h * (TILE // image_size)
    return max(1, TILE // grid.h)


def block_outline(block_T: torch.Tensor, m: int, grid: Size, side: int) -> tuple[tuple[int, int, int, int], int]:
    """Box (left, top, right, bottom, all inside the block) and line width of target block `m` in a panel.

    Each block's line lies a little further inside than the one before, so that a shared edge shows both.
    """
    width = min(4, max(1, side // 7))
    inset = min(m % 4 * width, (side - 1) // 2)
    top, left = divmod(int(block_T.min()), grid.w)
    bottom, right = divmod(int(block_T.max()), grid.w)
    return (
        left * side + inset,
        top * side + inset,
        (right + 1) * side - 1 - inset,
        (bottom + 1) * side - 1 - inset,
    ), width


def _pixels(patches: torch.Tensor, grid: Size, side: int) -> np.ndarray:
    """Which pixels of a panel lie in `patches`: bool [S, S, 1]."""
    inside = np.zeros((grid.h, grid.w, 1), bool)
    inside.reshape(-1)[patches.numpy()] = True
    return inside.repeat(side, 0).repeat(side, 1)


def _caption(pen: ImageDraw.ImageDraw, chosen: Masks, grid: Size, step: int, params: PretrainParams) -> None:
    """A line about all with the colour key of the blocks, whose sizes all images share; a line above the panels."""
    scattered = params.masks.sampler == "random"
    at = _text(
        pen,
        3,
        3,
        f"{len(chosen.context_BK)} of the {params.optimisation.global_batch_size} training crops of step 1, seed "
        f"{params.seed}; {grid.h}x{grid.w} patches; "
        + (f"{chosen.targets[0].shape[1]} hidden at random" if scattered else "target blocks (rows x columns):"),
    )
    for m, block_BT in enumerate([] if scattered else chosen.targets):
        rows = int(block_BT[0].max()) // grid.w - int(block_BT[0].min()) // grid.w + 1
        pen.rectangle((at, 6, at + 9, 15), fill=COLOURS[m % len(COLOURS)])
        at = _text(pen, at + 13, 3, f"{rows}x{block_BT.shape[1] // rows}")
    seen = f"context: {chosen.context_BK.shape[1]} of {grid.h * grid.w} patches"
    for column in range(COLUMNS):
        for place, text in enumerate(("crop", seen, "hidden patches" if scattered else "target blocks")):
            _text(pen, column * (3 * step + GAP) + place * step + 3, HEADER - 20, text)


def _text(pen: ImageDraw.ImageDraw, left: int, top: int, text: str) -> int:
    """Writes and returns where the next word may start."""
    pen.text((left, top), text, fill="black", font=FONT)
    return left + round(pen.textlength(text, font=FONT)) + 9
