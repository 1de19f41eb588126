"""The reference's sampler, faults included, against figures measured on it (the distribution, not the draws)."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from components.mim import grid as grids
from components.mim import legacy_masks, masks
from components.mim.blocks import Masks
from components.mim.grid import Size

from .test_masks import Settings

LEGACY = replace(Settings(), sampler="legacy", min_context=10)


def draws(grid: Size, batch: int, steps: int) -> list[Masks]:
    return [masks.sample(0, step, torch.arange(batch), grid, LEGACY) for step in range(steps)]


@pytest.mark.parametrize(
    ("grid", "batch", "expected"),
    [(14, 16, 58.7), (14, 64, 54.0), (14, 256, 49.0), (16, 64, 70.2), (28, 32, 255.0)],
)
def test_context_shrinks_with_the_batch_as_measured_on_the_reference(grid: int, batch: int, expected: float) -> None:
    lengths = [drawn.context_BK.shape[1] for drawn in draws(Size(grid, grid), batch, 80)]
    assert sum(lengths) / len(lengths) == pytest.approx(expected, abs=0.025 * expected + 1)  # ±1–2 tokens there


def test_one_number_drives_scale_and_aspect_and_the_context_block_never_moves() -> None:
    sizes = {legacy_masks.block_sizes(0, step, Size(14, 14), LEGACY) for step in range(400)}
    assert {context for context, _ in sizes} == {Size(13, 13)}
    assert {target for _, target in sizes} == {Size(5, 6), Size(6, 5), Size(6, 6), Size(7, 5), Size(8, 5)}


def test_the_last_row_and_column_are_never_used_and_the_top_is_favoured() -> None:
    drawn = draws(Size(14, 14), 64, 60)
    used = torch.zeros(14, 14, dtype=torch.bool)
    context = torch.zeros(14)
    for one in drawn:
        for indices in (one.context_BK, *one.targets):
            used.view(-1)[indices.flatten()] = True
        context += torch.bincount(one.context_BK.flatten(), minlength=196).view(14, 14).float().mean(dim=1) / 64 / 60
    assert int((~used).sum()) == 27
    measured = torch.tensor([0.75, 0.60, 0.48, 0.38, 0.29, 0.23, 0.21, 0.21, 0.21, 0.21, 0.16, 0.08, 0.02, 0.00])
    torch.testing.assert_close(context, measured, atol=0.03, rtol=0)


def test_targets_share_one_size_and_contexts_avoid_them() -> None:
    for one in draws(Size(14, 14), 32, 20):
        assert len({block.shape for block in one.targets}) == 1
        for image in range(32):
            hidden = {int(i) for block in one.targets for i in block[image]}
            assert not hidden & set(one.context_BK[image].tolist())


@settings(max_examples=40, deadline=None)
@given(h=st.integers(1, 16), w=st.integers(1, 16), blocks=st.integers(1, 8), least=st.integers(1, 12))
def test_no_grid_makes_it_run_for_ever(h: int, w: int, blocks: int, least: int) -> None:
    """Valid masks or one clear error, on every grid; a context that finds no room may overlap targets, as in the reference."""
    chosen = replace(LEGACY, target_blocks=blocks, min_context=least)
    try:
        grids.check_masks(Size(h, w), chosen)
    except ValueError as error:
        assert "never ends" in str(error)
        return
    drawn = masks.sample(0, 0, torch.arange(8), Size(h, w), chosen)
    assert drawn.context_BK.shape[1] > least and len(drawn.targets) == blocks


def test_small_grids_that_hang_the_reference_are_refused() -> None:
    for side in (4, 6, 7, 8):
        with pytest.raises(
            ValueError, match=rf"{side}×{side} patch grid with sampler legacy have blocks of \d+ patches"
        ):
            grids.check_masks(Size(side, side), LEGACY)
    assert grids.check_masks(Size(9, 9), LEGACY) == 11
