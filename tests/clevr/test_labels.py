import json
from bisect import bisect_left
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from components.clevr.labels import COUNT_CLASSES, DISTANCE_CLASSES, EDGES, count_labels, distance_labels
from components.prepare.readers.clevr import read
from components.prepare.tree import grow


def paths(n: int) -> np.ndarray:
    return np.array([f"val/CLEVR_val_{i:06d}.png" for i in range(n)])


def test_counts_3_to_10_are_classes_0_to_7() -> None:
    np.testing.assert_array_equal(count_labels(np.arange(3, 11, dtype=np.int32), paths(8)), np.arange(8))


@pytest.mark.parametrize(
    ("distance", "label"),
    [(1e-9, 0), (7.999, 0), (8.0, 0), (8.0 + 1e-12, 1), (8.5, 1), (8.51, 2), (9.0, 2), (9.5, 3), (10.0, 4)]
    + [(10.0 + 1e-12, 5), (13.2, 5), (100.0, 5)],
)
def test_a_bin_holds_its_upper_edge_and_not_its_lower_one(distance: float, label: int) -> None:
    assert distance_labels(np.array([distance]), paths(1)).tolist() == [label]


def test_equal_to_vtab_and_to_vissl_on_random_distances_and_every_edge() -> None:
    distances = np.concatenate([np.random.default_rng(0).uniform(0.01, 14, 5000), EDGES[1:], [99.9]])
    vtab = [next(k for k in range(6) if EDGES[k] < d <= EDGES[k + 1]) for d in distances]
    vissl = [bisect_left([8, 8.5, 9, 9.5, 10, 100], d) for d in distances]
    np.testing.assert_array_equal(distance_labels(distances, paths(len(distances))), vtab)
    np.testing.assert_array_equal(vtab, vissl)


@pytest.mark.parametrize("distance", [0.0, -3.0, 100.001, float("nan"), float("inf")])
def test_distances_out_of_range_are_refused(distance: float) -> None:
    with pytest.raises(ValueError, match=r"'val/CLEVR_val_000001.png' has distance .*above 0 and at most 100"):
        distance_labels(np.array([5.0, distance]), paths(2))


@pytest.mark.parametrize("count", [0, 2, 11])
def test_counts_out_of_range_are_refused(count: int) -> None:
    with pytest.raises(ValueError, match=rf"'val/CLEVR_val_000000.png' has count {count} \(1 more are out of range\)"):
        count_labels(np.array([count, 5, count], dtype=np.int32), paths(3))


def test_class_names_sort_by_value() -> None:
    assert sorted(COUNT_CLASSES) == COUNT_CLASSES
    assert [int(name) for name in COUNT_CLASSES] == list(range(3, 11))
    assert sorted(DISTANCE_CLASSES) == DISTANCE_CLASSES
    assert DISTANCE_CLASSES[0] == "(00.0, 08.0]"
    assert DISTANCE_CLASSES[-1] == "(10.0, 100.0]"


def test_a_scene_file_written_by_hand_gives_every_class(tmp_path: Path) -> None:
    """3 to 10 objects; the closest one at each bin's upper edge, at 8.000001, at 10.5 and at 100."""
    closest = [8.0, 8.000001, 8.5, 9.0, 9.5, 10.0, 10.5, 100.0]
    (tmp_path / "images/val").mkdir(parents=True)
    (tmp_path / "scenes").mkdir()
    scenes = []
    for index, depth in enumerate(closest):
        name = f"CLEVR_val_{index:06d}.png"
        Image.new("RGBA", (48, 32)).save(tmp_path / "images/val" / name)
        coordinates = [[240, 160, depth], *([100, 100 + n, 100.0 + n] for n in range(2 + index))]
        objects = [{"shape": "cube", "3d_coords": [0.0, 1.0, 9e9], "pixel_coords": place} for place in coordinates]
        scenes.append({"split": "val", "image_index": index, "image_filename": name, "objects": objects[::-1]})
    (tmp_path / "scenes/CLEVR_val_scenes.json").write_text(json.dumps({"info": {}, "scenes": scenes}))
    items = read(grow(tmp_path, tmp_path / "scratch")).splits["val"]
    values = {key: np.array([item.values[key] for item in items]) for key in ("count", "distance")}
    assert count_labels(values["count"], paths(8)).tolist() == list(range(8))
    assert distance_labels(values["distance"], paths(8)).tolist() == [0, 1, 1, 2, 3, 4, 5, 5]
