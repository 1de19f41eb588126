"""The preview shows the very crops and masks of the first training step."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image, ImageColor

from components.figures import COLOURS
from components.images.store import Store
from components.mim import masks
from components.mim.blocks import Masks
from components.pretrain.batches import Batches
from components.pretrain.contract import PretrainParams
from components.pretrain.loop import Trainer
from components.pretrain.parallel import Alone
from components.pretrain.preview import COLUMNS, GAP, GREY, HEADER, TILE, draw, panels

SIDE = 56  # pixels of a patch on the sheet: 14 panel pixels for each of the 4 pixels of a patch


@pytest.fixture
def params(tiny: dict[str, Any]) -> PretrainParams:
    return PretrainParams(**tiny)


@pytest.fixture
def first(params: PretrainParams, toy_images: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[np.ndarray, Masks]:
    """Pixels [16,16,16,3] and masks of the first step, overheard from the training loop itself."""
    heard: list[Any] = []
    original = masks.sample

    def listen(*arguments: Any) -> Masks:
        heard.append(original(*arguments))
        return heard[-1]

    batches = Batches(params, Store(toy_images, "train"), rank=0, world=1)
    trainer = Trainer(params, batches, Alone(torch.device("cpu")), Path("scratch"))

    def stop(row: Any, own: Any) -> None:
        raise InterruptedError

    with monkeypatch.context() as patch:
        patch.setattr(masks, "sample", listen)
        with pytest.raises(InterruptedError):
            trainer.train(stop, lambda: None)
    pixels = next(iter(batches.steps(0, 1))).pixels.numpy()
    return pixels, heard[0]


def cell(panel: np.ndarray, patch: int) -> np.ndarray:
    """The pixels of one patch of a 4×4 grid."""
    row, column = divmod(patch, 4)
    return panel[row * SIDE : (row + 1) * SIDE, column * SIDE : (column + 1) * SIDE]


def test_crops_are_those_of_the_first_step_enlarged_by_whole_pixels(
    params: PretrainParams, toy_images: Path, first: tuple[np.ndarray, Masks]
) -> None:
    shown = list(panels(params, Store(toy_images, "train")))
    assert len(shown) == 8  # of a global batch of 16
    for number, panel in enumerate(shown):
        assert panel.crop.shape == (TILE, TILE, 3)
        np.testing.assert_array_equal(panel.crop, np.kron(first[0][number], np.ones((14, 14, 1), np.uint8)))


def test_only_the_context_is_seen_and_the_rest_is_exactly_grey(
    params: PretrainParams, toy_images: Path, first: tuple[np.ndarray, Masks]
) -> None:
    for number, panel in enumerate(panels(params, Store(toy_images, "train"))):
        context = set(first[1].context_BK[number].tolist())
        assert 0 < len(context) < 16
        for patch in range(16):
            shown = cell(panel.context, patch)
            if patch in context:
                np.testing.assert_array_equal(shown, cell(panel.crop, patch))
            else:
                assert (shown == GREY).all(), (number, patch)


def test_outlines_lie_where_the_masks_say(
    params: PretrainParams, toy_images: Path, first: tuple[np.ndarray, Masks]
) -> None:
    """Block m's line is 4 pixels wide and starts 4·m inside its block; later lines lie over earlier ones. In closed form."""
    for number, panel in enumerate(panels(params, Store(toy_images, "train"))):
        blocks = [set(block[number].tolist()) for block in first[1].targets]
        assert len(blocks) == 2
        expected = np.zeros((TILE, TILE, 3), np.uint8)
        for y in range(4):
            for x in range(4):
                patch, place = 4 * y + x, (slice(y * SIDE, (y + 1) * SIDE), slice(x * SIDE, (x + 1) * SIDE))
                crop = panel.crop[place].astype(int)
                expected[place] = crop if any(patch in block for block in blocks) else crop // 2 + 128
        for m, block in enumerate(blocks):
            rows, columns = {patch // 4 for patch in block}, {patch % 4 for patch in block}
            assert len(rows) * len(columns) == len(block)
            y, x = np.mgrid[:TILE, :TILE]
            depth = np.minimum(
                np.minimum(y - min(rows) * SIDE, (max(rows) + 1) * SIDE - 1 - y),
                np.minimum(x - min(columns) * SIDE, (max(columns) + 1) * SIDE - 1 - x),
            )
            expected[(4 * m <= depth) & (depth < 4 * m + 4)] = ImageColor.getrgb(COLOURS[m])
        np.testing.assert_array_equal(panel.targets, expected)


def test_the_sheet_holds_the_panels_below_a_caption(params: PretrainParams, toy_images: Path) -> None:
    store = Store(toy_images, "train")
    sheet = np.asarray(draw(params, store))
    for number, pictures in enumerate(panels(params, store)):
        left, top = number % COLUMNS * (3 * (TILE + GAP) + GAP), HEADER + number // COLUMNS * (TILE + GAP)
        for pixels in pictures:
            np.testing.assert_array_equal(sheet[top : top + TILE, left : left + TILE], pixels)
            left += TILE + GAP
        assert left - GAP <= sheet.shape[1]
    caption = sheet[:HEADER].reshape(-1, 3)
    for colour, named in zip(COLOURS, (True, True, False), strict=False):
        assert ((caption == ImageColor.getrgb(colour)).all(axis=1).sum() == 100) == named  # a key of 10×10 pixels


def test_the_number_of_workers_and_the_size_of_the_batch_change_no_crop(tiny: dict[str, Any], toy_images: Path) -> None:
    """A batch of 9, 16 or 48 images begins with the same images only if their order does; the pixels are those of Batches."""
    store = Store(toy_images, "train")
    for size, workers, count in ((2, 1, 2), (9, 1, 8), (48, 2, 8)):
        tiny["optimisation"]["global_batch_size"], tiny["scale"]["workers"] = size, workers
        params = PretrainParams(**tiny)
        whole = next(iter(Batches(params, store, rank=0, world=1).steps(0, 1))).pixels
        shown = list(panels(params, store))
        assert len(shown) == count
        for pixels, panel in zip(whole.numpy(), shown, strict=False):
            np.testing.assert_array_equal(panel.crop[7::14, 7::14], pixels)


@pytest.mark.parametrize(
    ("image_size", "patch_size", "side"), [(224, 16, 224), (256, 16, 224), (448, 14, 224), (64, 2, 192), (512, 2, 256)]
)
def test_panels_keep_their_size_whatever_the_crops_have(
    tiny: dict[str, Any], toy_images: Path, image_size: int, patch_size: int, side: int
) -> None:
    tiny["encoder"] |= {"image_size": image_size, "patch_size": patch_size}
    tiny["masks"]["target_blocks"] = 8
    tiny["masks"] |= {"target_scale_min": 0.02, "target_scale_max": 0.05}
    params = PretrainParams(**tiny)
    store = Store(toy_images, "train")
    crop = next(iter(Batches(params, store, rank=0, world=1).steps(0, 1))).pixels[0].numpy()
    panel = next(panels(params, store))
    assert panel.crop.shape == panel.targets.shape == (side, side, 3)
    smaller = np.asarray(Image.fromarray(crop).resize((side, side), Image.Resampling.BOX)).astype(int)
    assert np.abs(panel.crop - smaller).max() == 0
    assert draw(params, store).width == 6 * (side + GAP)
