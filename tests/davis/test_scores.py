"""J and F against the official tool's numbers, hand-made masks and a slow form by definition."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from components.davis.scores import Mask, boundary, boundary_agreement, quarter_edges, region_overlap, statistics

GOLDEN = Path(__file__).parents[1] / "goldens" / "davis_metrics.npz"
MASKS = arrays(np.bool_, st.shared(st.tuples(st.integers(1, 9), st.integers(1, 9)), key="size"))


@pytest.mark.parametrize("sequence", ["hard", "good"])
@pytest.mark.parametrize("label", [1, 2, 3])
def test_equals_the_official_tool(sequence: str, label: int) -> None:
    with np.load(GOLDEN) as file:
        golden = {name.removeprefix(f"{sequence}."): file[name] for name in file if name.startswith(sequence)}
    pairs = [(p == label, a == label) for p, a in zip(golden["predictions"], golden["annotations"], strict=True)]
    j, f = [region_overlap(*pair) for pair in pairs], [boundary_agreement(*pair) for pair in pairs]
    np.testing.assert_allclose(j, golden["J"][label - 1], atol=1e-6)
    np.testing.assert_allclose(f, golden["F"][label - 1], atol=1e-6)
    np.testing.assert_allclose(statistics(j[1:-1]), golden["stats_J"][label - 1], atol=1e-6)
    np.testing.assert_allclose(statistics(f[1:-1]), golden["stats_F"][label - 1], atol=1e-6)


def rectangle(top: int, bottom: int, left: int, right: int) -> Mask:
    mask_HW = np.zeros((480, 854), dtype=np.bool_)
    mask_HW[top:bottom, left:right] = True
    return mask_HW


@pytest.mark.parametrize(
    ("prediction", "j", "f"),
    [
        (rectangle(100, 200, 300, 450), 1, 1),
        (rectangle(100, 200, 308, 458), 0.8987341772, 1),
        (rectangle(100, 200, 309, 459), 0.8867924528, 0.632),
        (rectangle(100, 200, 320, 470), 0.7647058824, 0.588),
        (rectangle(0, 0, 0, 0), 0, 0),
        (rectangle(0, 480, 0, 854), 0.0365925059, 0),
        (rectangle(100, 150, 300, 450), 0.5, 0.5933333333),
    ],
    ids=["identical", "shifted 8", "shifted 9", "shifted 20", "empty", "full frame", "upper half"],
)
def test_known_masks(prediction: Mask, j: float, f: float) -> None:
    """Values of the official functions on 480×854 frames, where the tolerance is 8 pixels."""
    truth = rectangle(100, 200, 300, 450)
    assert region_overlap(prediction, truth) == pytest.approx(j, abs=1e-6)
    assert boundary_agreement(prediction, truth) == pytest.approx(f, abs=1e-6)


def test_empty_truth() -> None:
    """Nothing there and nothing found is perfect; a full frame has no boundary, so only J sees it."""
    empty, full = rectangle(0, 0, 0, 0), rectangle(0, 480, 0, 854)
    assert (region_overlap(empty, empty), boundary_agreement(empty, empty)) == (1, 1)
    assert (region_overlap(full, empty), boundary_agreement(full, empty)) == (0, 1)


def test_quarters_round_halves_up() -> None:
    assert quarter_edges(38) == [0, 9, 19, 28, 37]
    assert quarter_edges(67) == [0, 17, 33, 50, 66]
    assert quarter_edges(102) == [0, 25, 51, 76, 101]


def test_statistics_of_a_ramp() -> None:
    assert statistics(list(np.linspace(1, 0, 67))) == pytest.approx((0.5, 0.492537, 0.75), abs=1e-6)


def test_recall_counts_what_is_strictly_above_one_half() -> None:
    assert statistics([0.5, 0.5, 0.500001, 0.1]).recall == 0.25


def test_decay_of_a_long_sequence_is_a_number() -> None:
    """From 256 scored frames on the official tool's uint8 edges make it NaN."""
    assert statistics([1.0] * 150 + [0.0] * 150).decay == 1


def test_no_scored_frames_is_no_score() -> None:
    with pytest.raises(ValueError, match="no scored frames"):
        statistics([])


def slow_boundary_agreement(prediction: Mask, truth: Mask) -> float:
    """By definition: every boundary pixel against every other."""
    height, width = truth.shape

    def edge(mask: Mask) -> list[tuple[int, int]]:
        pixels = []
        for y in range(height):
            for x in range(width):
                neighbours = [
                    (y + dy, x + dx) for dy, dx in ((0, 1), (1, 0), (1, 1)) if y + dy < height and x + dx < width
                ]
                if any(mask[y, x] != mask[at] for at in neighbours):
                    pixels.append((y, x))
        return pixels

    def near(points: list[tuple[int, int]], others: list[tuple[int, int]]) -> float:
        radius = int(np.ceil(0.008 * np.sqrt(height**2 + width**2)))
        return sum(any((y - v) ** 2 + (x - u) ** 2 <= radius**2 for v, u in others) for y, x in points) / len(points)

    predicted, true = edge(prediction), edge(truth)
    if not predicted or not true:
        return float(not predicted and not true)
    precision, recall = near(predicted, true), near(true, predicted)
    return 2 * precision * recall / (precision + recall) if precision + recall else 0.0


@settings(max_examples=200, deadline=None, derandomize=True)
@given(MASKS, MASKS)
def test_boundary_agreement_is_its_definition(prediction: Mask, truth: Mask) -> None:
    assert boundary_agreement(prediction, truth) == pytest.approx(slow_boundary_agreement(prediction, truth), abs=1e-12)


@settings(max_examples=100, deadline=None, derandomize=True)
@given(MASKS, MASKS)
def test_both_measures_are_symmetric_and_complement_keeps_the_boundary(one: Mask, other: Mask) -> None:
    assert region_overlap(one, other) == region_overlap(other, one)
    assert boundary_agreement(one, other) == pytest.approx(boundary_agreement(other, one))
    assert np.array_equal(boundary(one), boundary(~one))


def test_tolerance_reaches_further_than_one_pixel_in_a_circle() -> None:
    """At 480×854 a pixel 8 away counts, one (6, 6) away does not: √72 > 8."""

    def dot(y: int, x: int) -> Mask:
        return rectangle(y, y + 1, x, x + 1)

    assert boundary_agreement(dot(200, 208), dot(200, 200)) == 1
    assert 0 < boundary_agreement(dot(206, 206), dot(200, 200)) < 1  # two pixels thick, so some corners still meet
    assert boundary_agreement(dot(210, 210), dot(200, 200)) == 0


@pytest.mark.parametrize(("width", "tolerance"), [(854, 8), (910, 9), (1152, 10)])
def test_e8_tolerance_follows_the_frame(width: int, tolerance: int) -> None:
    """The three widths of DAVIS-2017 val; a small object is judged as leniently as a large one."""
    masks = np.zeros((3, 480, width), dtype=np.bool_)
    for mask, shift in zip(masks, (0, tolerance, tolerance + 1), strict=True):
        mask[200:260, 300 + shift : 360 + shift] = True
    assert boundary_agreement(masks[1], masks[0]) == 1
    assert boundary_agreement(masks[2], masks[0]) < 1
