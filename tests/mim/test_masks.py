"""Properties of the multi-block and random masks: reach, counts, independence, feasibility."""

from dataclasses import dataclass, replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from components.mim import grid as grids
from components.mim import masks
from components.mim.grid import Sampler, Size


@dataclass(frozen=True)
class Settings:
    sampler: Sampler = "multiblock"
    target_blocks: int = 4
    target_scale_min: float = 0.15
    target_scale_max: float = 0.2
    target_aspect_min: float = 0.75
    target_aspect_max: float = 1.5
    context_scale_min: float = 0.85
    context_scale_max: float = 1.0
    min_context: int = 1
    hidden_ratio: float = 0.75


def coverage(indices: Tensor, patches: int) -> Tensor:
    return torch.bincount(indices.flatten(), minlength=patches).double() / len(indices)


@pytest.mark.parametrize("grid", [Size(8, 8), Size(14, 14), Size(6, 10)])
def test_every_patch_serves_as_target_and_as_context_without_favouring_the_top(grid: Size) -> None:
    patches, steps = grid.h * grid.w, 60
    context, target = torch.zeros(patches, dtype=torch.float64), torch.zeros(patches, dtype=torch.float64)
    for step in range(steps):
        drawn = masks.sample(0, step, torch.arange(64), grid, Settings())
        context += coverage(drawn.context_BK, patches) / steps
        target += sum(coverage(block, patches) for block in drawn.targets) / steps
    assert target.min() > 0 and context.min() > 0
    rows = context.view(grid.h, grid.w).mean(dim=1)
    assert torch.allclose(rows, rows.flip(0), atol=0.03)  # the reference: .75 at the top, .00 at the bottom
    columns = target.view(grid.h, grid.w).mean(dim=0)
    assert torch.allclose(columns, columns.flip(0), atol=0.06)


@pytest.mark.parametrize("grid", [Size(5, 5), Size(8, 8), Size(14, 14), Size(28, 28), Size(6, 10)])
def test_counts_are_equal_and_context_never_meets_a_target(grid: Size) -> None:
    for step in range(20):
        drawn = masks.sample(3, step, torch.arange(96), grid, Settings())
        for image in range(96):
            seen = set(drawn.context_BK[image].tolist())
            assert len(seen) == drawn.context_BK.shape[1]
            for block in drawn.targets:
                hidden = block[image].tolist()
                assert len(set(hidden)) == block.shape[1] and not seen & set(hidden)


def test_target_blocks_are_rectangles_and_scale_is_independent_of_aspect() -> None:
    grid = Size(32, 32)
    sizes = [size for step in range(400) for size in masks.block_sizes(0, step, grid, Settings())[1]]
    areas = torch.tensor([float(size.h * size.w) for size in sizes])
    aspects = torch.tensor([size.h / size.w for size in sizes]).log()
    assert abs(torch.corrcoef(torch.stack([areas, aspects]))[0, 1]) < 0.1  # the reference: one number drives both, 1.0
    rounding = 0.5 * (12.5 + 14.5)  # half a patch on either side of the largest block
    assert areas.min() >= 0.15 * 1024 - rounding and areas.max() <= 0.2 * 1024 + rounding
    block = masks.sample(0, 0, torch.arange(4), grid, Settings()).targets[0][0]
    rows, columns = block // 32, block % 32
    assert len(block) == len(rows.unique()) * len(columns.unique())


def test_an_image_keeps_its_masks_in_any_batch() -> None:
    grid, whole = Size(8, 8), masks.sample(1, 5, torch.arange(64), Size(8, 8), Settings())
    half = masks.sample(1, 5, torch.arange(32, 64), grid, Settings())
    assert torch.equal(half.context_BK, whole.context_BK[32:])
    assert all(torch.equal(a, b[32:]) for a, b in zip(half.targets, whole.targets, strict=True))
    other = masks.sample(1, 6, torch.arange(64), grid, Settings())
    assert whole.context_BK.shape != other.context_BK.shape or not torch.equal(whole.context_BK, other.context_BK)


def test_context_length_is_the_closed_form_of_a_simulation() -> None:
    """E[free patches] against brute force: corners drawn without rejection."""
    grid, context, targets = Size(8, 8), Size(7, 8), [Size(3, 4), Size(4, 3), Size(3, 3), Size(4, 4)]
    generator, free = torch.Generator().manual_seed(0), []
    for _ in range(4000):
        board = torch.zeros(8, 8, dtype=torch.bool)
        for size, value in [(context, True), *((size, False) for size in targets)]:
            top = int(torch.randint(grid.h - size.h + 1, (1,), generator=generator))
            left = int(torch.randint(grid.w - size.w + 1, (1,), generator=generator))
            board[top : top + size.h, left : left + size.w] = value
        free.append(int(board.sum()))
    expected = sum(free) / len(free)
    assert abs(grids.context_length(grid, context, targets) - grids.CONTEXT_FRACTION * expected) <= 1.2


def test_stacked_blocks_give_room_when_no_draw_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """With no attempts left the fallback still yields the full count, on every grid."""
    monkeypatch.setattr(masks, "ATTEMPTS", 0)
    for grid in (Size(4, 4), Size(8, 8), Size(14, 14)):
        for step in range(10):
            drawn = masks.sample(0, step, torch.arange(8), grid, Settings())
            context, targets = masks.block_sizes(0, step, grid, Settings())
            assert drawn.context_BK.shape[1] == grids.context_length(grid, context, targets)
            assert all(not set(drawn.context_BK[0].tolist()) & set(block[0].tolist()) for block in drawn.targets)


@settings(max_examples=40, deadline=None)
@given(
    side=st.integers(2, 16),
    blocks=st.integers(1, 6),
    scale=st.tuples(st.floats(0.02, 0.6), st.floats(0.02, 0.6)).map(sorted),
    aspect=st.tuples(st.floats(0.2, 4), st.floats(0.2, 4)).map(sorted),
)
def test_what_the_check_accepts_can_be_drawn(side: int, blocks: int, scale: list[float], aspect: list[float]) -> None:
    grid = Size(side, side)
    chosen = replace(
        Settings(), target_blocks=blocks, target_scale_min=scale[0], target_scale_max=scale[1],
        target_aspect_min=aspect[0], target_aspect_max=aspect[1], min_context=2,
    )  # fmt: skip
    try:
        grids.check_masks(grid, chosen)
    except ValueError as error:
        assert "min_context" in str(error)
        return
    for step in range(3):
        drawn = masks.sample(0, step, torch.arange(4), grid, chosen)
        assert drawn.context_BK.shape[1] >= 2
        assert drawn.context_BK.max() < side * side


def test_tall_and_wide_blocks_in_one_step_leave_what_the_check_promised() -> None:
    chosen = replace(Settings(), target_blocks=2, target_aspect_min=0.4, target_aspect_max=2.5)
    least = grids.check_masks(Size(16, 16), chosen)
    lengths = [masks.sample(0, step, torch.arange(2), Size(16, 16), chosen).context_BK.shape[1] for step in range(200)]
    assert min(lengths) >= least > 0
    with pytest.raises(ValueError, match="5×5 patch grid leave as few as"):
        grids.check_masks(Size(5, 5), replace(chosen, min_context=9))


def test_a_small_grid_gives_masks_or_a_clear_error() -> None:
    assert grids.check_masks(Size(4, 4), Settings()) >= 1
    with pytest.raises(
        ValueError, match=r"4×4 patch grid leave as few as \d+ context patches.*min_context asks for 10"
    ):
        grids.check_masks(Size(4, 4), replace(Settings(), min_context=10))


@pytest.mark.parametrize("sampler", ["multiblock", "random"])
def test_workers_that_share_a_batch_draw_what_one_would(sampler: Sampler) -> None:
    chosen, whole = replace(Settings(), sampler=sampler), torch.arange(64)
    one = masks.sample(4, 9, whole, Size(8, 8), chosen)
    for workers in (2, 4):
        parts = [masks.sample(4, 9, places, Size(8, 8), chosen) for places in whole.chunk(workers)]
        assert torch.equal(torch.cat([part.context_BK for part in parts]), one.context_BK)
        for m, block in enumerate(one.targets):
            assert torch.equal(torch.cat([part.targets[m] for part in parts]), block)


@pytest.mark.parametrize("grid", [Size(4, 4), Size(6, 10), Size(14, 14)])
def test_random_masks_hide_their_share_and_every_patch_alike(grid: Size) -> None:
    chosen, patches = replace(Settings(), sampler="random"), grid.h * grid.w
    seen = torch.zeros(patches, dtype=torch.float64)
    for step in range(50):
        drawn = masks.sample(0, step, torch.arange(128), grid, chosen)
        assert drawn.context_BK.shape[1] == patches // 4 and len(drawn.targets) == 1
        whole = torch.cat([drawn.context_BK, drawn.targets[0]], dim=1).sort(dim=1).values
        assert torch.equal(whole, torch.arange(patches).expand(128, -1))
        seen += coverage(drawn.context_BK, patches) / 50
    assert (seen - 0.25).abs().max() < 5 * (0.25 * 0.75 / 6400) ** 0.5  # one in a million per patch
    with pytest.raises(ValueError, match="hidden_ratio 0.75.*min_context asks for 99"):
        grids.check_masks(grid, replace(chosen, min_context=99))
