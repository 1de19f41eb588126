"""The image folder reader on the layouts people have, and the ones they have by mistake."""

import shutil
from pathlib import Path

import pytest

from components.prepare.readers import Listing
from components.prepare.readers.image_folder import read
from components.prepare.tree import grow


def listed(folder: Path) -> Listing:
    return read(grow(folder, folder.parent / "scratch"))


def test_lists_classes_and_images_by_name(image_folder: Path) -> None:
    listing = listed(image_folder)
    assert (listing.kind, listing.classes, list(listing.splits)) == ("images", ["cat", "dog", "owl"], ["train", "val"])
    train = listing.splits["train"]
    assert [item.path for item in train][:3] == ["train/cat/0000.jpg", "train/cat/0001.png", "train/cat/0002.jpg"]
    assert [item.values["label"] for item in train] == [0] * 6 + [1] * 4 + [2] * 3
    assert all(
        Path(listing.files.where(item.file)) == image_folder / item.path
        for items in listing.splits.values()
        for item in items
    )


def test_train_comes_first_and_other_names_are_fine(image_folder: Path) -> None:
    (image_folder / "val").rename(image_folder / "a_holdout")
    assert list(listed(image_folder).splits) == ["train", "a_holdout"]


def test_a_label_means_the_same_class_in_every_split(image_folder: Path) -> None:
    shutil.rmtree(image_folder / "val/cat")
    listing = listed(image_folder)
    assert {(item.group, item.values["label"]) for item in listing.splits["val"]} == {("dog", 1), ("owl", 2)}


def test_images_without_class_folders_are_unlabelled(image_folder: Path) -> None:
    for name in ("b.JPEG", "a.png", "C.Jpg", "._a.png", "notes.txt"):
        (image_folder / "extra").mkdir(exist_ok=True)
        (image_folder / "extra" / name).touch()
    items = listed(image_folder).splits["extra"]
    assert [item.path for item in items] == ["extra/C.Jpg", "extra/a.png", "extra/b.JPEG"]
    assert {item.values["label"] for item in items} == {-1}


def test_images_of_kinds_that_cannot_be_stored_are_listed_so_that_they_get_reported(image_folder: Path) -> None:
    (image_folder / "val/cat/x.webp").touch()
    assert "val/cat/x.webp" in [item.path for item in listed(image_folder).splits["val"]]


def test_an_empty_class_folder_is_named(image_folder: Path) -> None:
    (image_folder / "val/ant").mkdir()
    (image_folder / "train/ant").mkdir()
    (image_folder / "train/ant/readme.txt").touch()
    with pytest.raises(ValueError, match=r"class folder '.*/train/ant' holds no images.*put some there or remove it"):
        listed(image_folder)


def test_an_empty_split_is_named(image_folder: Path) -> None:
    (image_folder / "test").mkdir()
    with pytest.raises(ValueError, match="split '.*/test' holds no images"):
        listed(image_folder)


def test_a_class_without_training_images_is_named(image_folder: Path) -> None:
    shutil.rmtree(image_folder / "train/owl")
    with pytest.raises(ValueError, match="val' has class 'owl', which 'train' does not have"):
        listed(image_folder)


def test_classes_without_a_split_are_not_taken_for_splits(image_folder: Path) -> None:
    with pytest.raises(ValueError, match="has no folder train, val, test.*<split>/<class>.*cat, dog, owl"):
        listed(image_folder / "train")


def test_images_beside_class_folders_are_named(image_folder: Path) -> None:
    (image_folder / "train/stray.jpg").touch()
    with pytest.raises(ValueError, match="stray.jpg' lies beside class folders such as 'cat'"):
        listed(image_folder)
