"""The CLEVR reader: tasks by closed form, and images and scenes that do not match."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from components.prepare.readers import Listing
from components.prepare.readers.clevr import read
from components.prepare.tree import grow


def listed(folder: Path) -> Listing:
    return read(grow(folder, folder.parent / "scratch"))


def edit(folder: Path, change: Any) -> None:
    path = folder / "scenes/CLEVR_train_scenes.json"
    data = json.loads(path.read_text())
    change(data["scenes"])
    path.write_text(json.dumps(data))


def test_counts_objects_and_takes_the_nearest(clevr: Path) -> None:
    listing = listed(clevr)
    assert (listing.kind, listing.classes, list(listing.splits)) == ("scenes", [], ["train", "val"])
    train = listing.splits["train"]
    assert [item.path for item in train] == [f"images/train/CLEVR_train_{n:06d}.png" for n in range(5)]
    assert [item.values for item in train] == [{"count": 3 + n, "distance": 7.25 + n} for n in range(5)]


def test_the_folder_around_it_will_do(clevr: Path) -> None:
    def about(folder: Path) -> dict[str, list[tuple[str, object]]]:
        return {name: [(item.path, item.values) for item in items] for name, items in listed(folder).splits.items()}

    assert about(clevr.parent) == about(clevr)


def test_a_split_that_is_not_there_stays_out(clevr: Path) -> None:
    shutil.rmtree(clevr / "images/train")
    assert list(listed(clevr).splits) == ["val"]


def test_another_layout_is_described(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"has no images/train or images/val; CLEVR is laid out as images/.*scenes/"):
        listed(tmp_path)


def test_a_missing_scenes_file_is_named(clevr: Path) -> None:
    (clevr / "scenes/CLEVR_val_scenes.json").unlink()
    with pytest.raises(ValueError, match="CLEVR_val_scenes.json' is missing"):
        listed(clevr)


def test_an_image_without_scene_and_a_scene_without_image_are_named(clevr: Path) -> None:
    edit(clevr, lambda scenes: scenes.pop(0))
    with pytest.raises(
        ValueError, match="CLEVR_train_000004.png' has no scene: images/train holds 5 images.* 4 scenes"
    ):
        listed(clevr)
    (clevr / "images/train/CLEVR_train_000004.png").unlink()
    (clevr / "images/train/CLEVR_train_000001.png").unlink()
    with pytest.raises(ValueError, match="CLEVR_train_000001.png' has a scene but is no file"):
        listed(clevr)


def test_two_scenes_of_one_image_are_named(clevr: Path) -> None:
    edit(clevr, lambda scenes: scenes.append(scenes[0]))
    with pytest.raises(ValueError, match="two scenes of image 'CLEVR_train_000004.png'"):
        listed(clevr)


@pytest.mark.parametrize(
    "change",
    [
        lambda scenes: scenes[1]["objects"].clear(),  # nothing is nearest
        lambda scenes: scenes[1].pop("objects"),
        lambda scenes: scenes[1].pop("image_filename"),
        lambda scenes: scenes[1]["objects"][0].pop("pixel_coords"),
        lambda scenes: scenes[1]["objects"][0].update(pixel_coords=[1, 2]),
        lambda scenes: scenes.clear(),
    ],
)
def test_scenes_with_missing_parts_are_refused(clevr: Path, change: Any) -> None:
    edit(clevr, change)
    with pytest.raises(
        ValueError, match="CLEVR_train_scenes.json' must hold 'scenes'.*'image_filename'.*'pixel_coords'"
    ):
        listed(clevr)


@pytest.mark.parametrize("text", ['{"scenes": [', "[]", "\x80"])
def test_a_file_that_is_no_scenes_file_is_refused(clevr: Path, text: str) -> None:
    (clevr / "scenes/CLEVR_train_scenes.json").write_bytes(text.encode("latin-1"))
    with pytest.raises(ValueError, match="CLEVR_train_scenes.json' is no CLEVR scenes file"):
        listed(clevr)
