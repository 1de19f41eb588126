"""VTAB's two CLEVR tasks: how many objects, and how far the closest one is from the camera."""

import numpy as np

FEWEST, MOST = 3, 10
EDGES = (0.0, 8.0, 8.5, 9.0, 9.5, 10.0, 100.0)

# Padded with zeros, so that programs that sort names (DVC's plots do) sort them by value.
COUNT_CLASSES = [f"{count:02d}" for count in range(FEWEST, MOST + 1)]
DISTANCE_CLASSES = [f"({low:04.1f}, {high:04.1f}]" for low, high in zip(EDGES[:-1], EDGES[1:], strict=True)]


def count_labels(counts: np.ndarray, paths: np.ndarray) -> np.ndarray:
    """Classes 0..7 of scenes with 3..10 objects [n]. Raises ValueError for any other number."""
    _refuse((counts < FEWEST) | (counts > MOST), counts, paths, "count", f"from {FEWEST} to {MOST} objects")
    return counts.astype(np.int64) - FEWEST


def distance_labels(distances: np.ndarray, paths: np.ndarray) -> np.ndarray:
    """Classes 0..5 of the closest object's depth along the camera's axis [n], in scene units.

    A bin holds its upper edge: VTAB's thr[k] < d <= thr[k+1], and VISSL's `bisect_left`.
    Raises ValueError for a depth that is no number in (0, 100].
    """
    _refuse(
        ~((distances > EDGES[0]) & (distances <= EDGES[-1])), distances, paths, "distance", "above 0 and at most 100"
    )
    return np.searchsorted(EDGES[1:], distances, side="left").astype(np.int64)


def _refuse(wrong: np.ndarray, values: np.ndarray, paths: np.ndarray, name: str, rule: str) -> None:
    if wrong.any():
        first = int(np.argmax(wrong))
        raise ValueError(
            f"scene {str(paths[first])!r} has {name} {values[first]} ({int(wrong.sum()) - 1} more are out of range); "
            f"it must be {rule}: correct the scene file or leave the image out, and prepare the dataset again"
        )
