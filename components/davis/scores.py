"""J and F as the official davis2017-evaluation defines them (ac7c43f), one frame at a time, with numpy and scipy only."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.spatial import KDTree

Mask = NDArray[np.bool_]


class Statistics(NamedTuple):
    """One object's values over the scored frames of its sequence."""

    mean: float
    recall: float
    decay: float


def region_overlap(prediction_HW: Mask, truth_HW: Mask) -> float:
    """J: intersection over union, 1 when both are empty."""
    union = np.count_nonzero(prediction_HW | truth_HW)
    return np.count_nonzero(prediction_HW & truth_HW) / union if union else 1.0


def boundary_agreement(prediction_HW: Mask, truth_HW: Mask) -> float:
    """F: harmonic mean of the boundary pixels' precision and recall, at a tolerance of 0.8% of the frame's diagonal.

    1 when neither mask has a boundary (a full frame has none), 0 when only one has.
    """
    tolerance = int(np.ceil(0.008 * np.hypot(*truth_HW.shape)))
    predicted, true = np.argwhere(boundary(prediction_HW)), np.argwhere(boundary(truth_HW))
    if len(predicted) == 0 or len(true) == 0:
        return float(len(predicted) == len(true))
    precision, recall = _share_near(predicted, true, tolerance), _share_near(true, predicted, tolerance)
    return 2 * precision * recall / (precision + recall) if precision + recall else 0.0


def boundary(mask_HW: Mask) -> Mask:
    """Pixels that differ from their east, south or south-east neighbour; none beyond the frame's edge."""
    edge_HW = np.zeros_like(mask_HW)
    edge_HW[:, :-1] |= mask_HW[:, :-1] ^ mask_HW[:, 1:]
    edge_HW[:-1] |= mask_HW[:-1] ^ mask_HW[1:]
    edge_HW[:-1, :-1] |= mask_HW[:-1, :-1] ^ mask_HW[1:, 1:]
    return edge_HW


def _share_near(points: NDArray[np.int64], others: NDArray[np.int64], tolerance: int) -> float:
    """Share of `points` [n,2] with one of `others` within `tolerance` pixels (Euclidean)."""
    # Boundaries are thin: a tree over their pixels beats a distance transform of the frame. Squared distances are whole
    # numbers, so half a unit on top makes the tree's exclusive bound an inclusive one.
    bound = np.sqrt(tolerance**2 + 0.5)
    distance, _ = KDTree(others, balanced_tree=False, compact_nodes=False).query(points, distance_upper_bound=bound)
    return float(np.mean(np.isfinite(distance)))


def statistics(values: Sequence[float]) -> Statistics:
    """Mean; share of values strictly above 0.5; mean of the first quarter minus mean of the last.

    Raises ValueError when there is no value: such a sequence has no score, not the score 0.
    """
    if not values:
        raise ValueError(
            "a sequence has no scored frames; leave it out (it needs an annotation between first and last frame)"
        )
    series = np.asarray(values, dtype=np.float64)
    edges = quarter_edges(len(series))
    first, last = series[edges[0] : edges[1] + 1], series[edges[3] : edges[4] + 1]
    return Statistics(float(series.mean()), float(np.mean(series > 0.5)), float(first.mean() - last.mean()))


def quarter_edges(count: int) -> list[int]:
    """Five indices that cut `count` frames into quarters; each quarter includes both of its ends, as in the official tool."""
    cuts = np.linspace(1, count, 5)
    return [int(edge) - 1 for edge in np.round(cuts + 1e-10)]  # the tool rounds halves up, numpy to even
