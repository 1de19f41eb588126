"""Which labelled images quality is measured on, and what is refused."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from components.images import store
from components.images.store import Store
from components.pretrain.held_out import balanced, held_out
from components.pretrain.quality_params import QualityParams


@pytest.mark.parametrize("count", [1, 7, 30, 31, 100, 1000])
def test_classes_are_level_until_they_run_out(count: int) -> None:
    """Of 3 classes of 10, 40 and 150 images, none has two more than another that still has some."""
    generator = np.random.default_rng(0)
    labels, places = generator.permutation(np.repeat([0, 1, 2], [10, 40, 150])), generator.random(200)
    rows = balanced(labels, places, count)
    assert len(rows) == len(set(rows.tolist())) == min(count, 200) and (np.diff(rows) > 0).all()
    taken = np.bincount(labels[rows], minlength=3)
    for few, size in zip(taken, (10, 40, 150), strict=True):
        assert few == size or few >= taken.max() - 1
    for label in range(3):  # those of the lowest places
        assert max(places[rows][labels[rows] == label], default=0) <= min(
            np.delete(places, rows)[np.delete(labels, rows) == label], default=1
        )


def test_more_images_keep_those_that_were_in_and_the_seed_of_a_run_plays_no_part(
    tiny: dict[str, Any], toy_images: Path
) -> None:
    few, many = (held_out(QualityParams(**{**tiny["quality"], "train_images": count}), toy_images) for count in (9, 30))
    assert set(few.train.rows.tolist()) < set(many.train.rows.tolist())
    assert np.bincount(many.labels).tolist() in ([8, 8, 7, 7], [7, 7, 8, 8], [8, 7, 8, 7], [7, 8, 7, 8], [8, 7, 7, 8])
    assert (many.labels == Store(toy_images, "train").column("label")[many.train.rows]).all()


def test_what_guessing_reaches_is_the_commonest_class_and_three_standard_errors(
    tiny: dict[str, Any], toy_images: Path
) -> None:
    """24 test images of 4 classes: 1/4, and the standard error of a share is √(p(1 − p)/n)."""
    held = held_out(QualityParams(**tiny["quality"]), toy_images)
    assert np.bincount(held.judged).tolist() == [6, 6, 6, 6]
    assert held.guessing == pytest.approx(100 * (0.25 + 3 * (0.25 * 0.75 / 24) ** 0.5))


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"dataset": "other"}, "holds dataset 'toy' but dataset is 'other'"),
        ({"test_split": "val"}, "has no split 'val'; its splits are: train, test"),
        ({"train_images": 100, "knn_k": 49}, "quality.knn_k is 49, but split 'train' of 'toy' has 48 images"),
        ({"train_images": 3, "knn_k": 2}, "1 classes of the 24 images of split 'test' of 'toy' are not among the 3"),
    ],
)
def test_bad_choices(tiny: dict[str, Any], toy_images: Path, changed: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        held_out(QualityParams(**tiny["quality"] | changed), toy_images)


def test_images_without_labels_and_other_kinds_are_refused(
    tiny: dict[str, Any], toy_images: Path, tmp_path: Path
) -> None:
    image = Store(toy_images, "train").bytes(0)
    rows = [{"path": f"{i}.png", "image": image, "label": -1} for i in range(8)]
    write(tmp_path / "bare", "images", rows)
    with pytest.raises(ValueError, match="8 of 8 images in split 'train' have no label; .* set quality.every_epochs"):
        held_out(QualityParams(**tiny["quality"]), tmp_path / "bare")
    scenes = [{"path": f"{i}.png", "image": image, "count": 3, "distance": 1.0} for i in range(8)]
    write(tmp_path / "scenes", "scenes", scenes)
    with pytest.raises(ValueError, match="is of kind 'scenes'; this stage needs 'images'"):
        held_out(QualityParams(**tiny["quality"]), tmp_path / "scenes")


def write(folder: Path, kind: str, rows: list[dict[str, Any]]) -> None:
    folder.mkdir()
    splits = store.write(folder, kind, {"train": rows, "test": rows}, shard_mib=1)
    card = {"name": "toy", "kind": kind, "format": "image_folder", "classes": [], "splits": splits}
    store.write_card(folder, {**card, "mean": [0.5] * 3, "std": [0.2] * 3, "skipped": []})
