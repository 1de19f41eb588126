"""A list is the file its hash says, and names each of its images once."""

import hashlib
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from components.images.subset import listed, read_list

SUBSETS = Path(__file__).parents[2] / "params/subsets"
ONE_PERCENT = "71e82a48ba78252683ae334c4d019ebd5c6e855b9599c1389fbe83eb9549cf17"


def read(folder: Path, text: str) -> list[str] | None:
    (folder / "list.txt").write_text(text)
    return read_list(folder / "list.txt", hashlib.sha256(text.encode()).hexdigest())


def test_the_one_percent_list_is_simclrs() -> None:
    """811 classes with 13 images and 189 with 12."""
    names = read_list(SUBSETS / "imagenet_1percent.txt", ONE_PERCENT)
    assert names is not None
    per_class = Counter(name.split("_")[0] for name in names)
    assert (len(names), Counter(per_class.values())) == (12_811, {13: 811, 12: 189})


def test_the_list_of_all_is_every_row() -> None:
    names = read_list(SUBSETS / "all.txt", hashlib.sha256(b"*\n").hexdigest())
    assert names is None
    np.testing.assert_array_equal(listed(names, np.array(["a.png", "b.png"]), "test"), [0, 1])


def test_the_one_percent_list_is_found_in_an_unpacked_imagenet() -> None:
    """In the dataset's order, whichever folder, suffix and order it has; the decoys share a stem's beginning."""
    names = read_list(SUBSETS / "imagenet_1percent.txt", ONE_PERCENT)
    assert names is not None
    stems = sorted(name.removesuffix(".JPEG") for name in names)
    paths = np.array([f"train/{s.split('_')[0]}/{s}{x}" for s in stems for x in (".JPEG", "0000.JPEG")], dtype=object)
    np.testing.assert_array_equal(listed(names, paths, "test"), np.arange(0, 2 * len(stems), 2))


@pytest.mark.parametrize("line", ["cat/1.jpg", "train/cat/1", "cat/1.JPEG"])
def test_folders_tell_equal_names_apart(tmp_path: Path, line: str) -> None:
    paths = np.array(["train/dog/1.jpg", "train/cat/1.jpg", "train/cat/11.jpg"])
    np.testing.assert_array_equal(listed(read(tmp_path, line + "\n\n"), paths, "test"), [1])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", r"list.txt' is empty; name an image a line, or write '\*'"),
        ("a.jpg\nb.jpg\na.PNG\n", r"list.txt' names 'a.PNG' twice \('a.jpg'\)"),
        ("1.jpg\n", r"test: the list's '1.jpg' fits 2 images, 'train/dog/1.jpg' and 'train/cat/1.jpg'"),
        ("dog/1.jpg\nx.jpg\ny.jpg\n", r"test: 1 of the list's 3 images found among 2, 'x.jpg' is the first"),
        ("dog/1.jpg\ntrain/dog/1.jpg\n", r"test: two lines of the list name the same image"),
    ],
)
def test_lists_that_cannot_work_are_refused(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        listed(read(tmp_path, text), np.array(["train/dog/1.jpg", "train/cat/1.jpg"]), "test")


def test_another_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "list.txt").write_text("a\n")
    with pytest.raises(ValueError, match=r"list.txt' has sha256 87428f.*, but train_list_sha256 is 71e82a48"):
        read_list(tmp_path / "list.txt", ONE_PERCENT)
