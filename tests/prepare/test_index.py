"""An index stands for the folder it was made of: the same dataset, and a file that DVC hashes in a moment."""

import importlib
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest

from components.images.store import Store, read_card
from components.prepare import index
from components.prepare.readers import Listing, places205
from components.prepare.readers.image_folder import read
from components.prepare.readers.manifest import read_file
from components.prepare.tree import grow

from .test_imagenet import flat, nested
from .test_inat2018 import unpacked

Prepare = Callable[..., Any]


def main(source: Path, to: Path, format: str = "image_folder") -> int:
    return index.main([str(source), "--format", format, "--to", str(to)])


def items(listing: Listing) -> dict[str, list[Any]]:
    return {
        split: [(each.path, each.values, each.group, each.unit, listing.files.read(each.file)) for each in found]
        for split, found in listing.splits.items()
    }


@pytest.mark.parametrize("values", [{}, {"per_class": 2, "seed": 3}])
def test_a_folder_and_its_index_give_the_same_dataset(
    image_folder: Path, tmp_path: Path, prepare: Prepare, values: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.rmtree(image_folder / "val/cat")
    to = tmp_path / "raw.parquet"
    assert main(image_folder, to) == 0
    assert f"{to}: train 13, val 4 images of 3 classes; its format is manifest" in capsys.readouterr().out
    prepare(image_folder, tmp_path / "folder", **values)
    prepare(to, tmp_path / "index", "manifest", **values)
    one, other = (read_card(tmp_path / name / "toy") for name in ("folder", "index"))
    assert {key for key in one if one[key] != other[key]} == {"format"}
    paths = [Store(tmp_path / name / "toy", "train").column("path").tolist() for name in ("folder", "index")]
    assert paths[0] == paths[1]


@pytest.mark.parametrize(("form", "format"), [(nested, "imagenet"), (flat, "imagenet"), (unpacked, "inat2018")])
def test_images_lie_elsewhere_than_their_names_say(form: Any, format: str, tmp_path: Path) -> None:
    reader = importlib.import_module(f"components.prepare.readers.{format}")
    direct = reader.read(grow(form(tmp_path / "raw"), tmp_path / "scratch"))
    assert main(tmp_path / "raw", tmp_path / "raw.parquet", format) == 0
    indexed = read_file(tmp_path / "raw.parquet")
    assert (indexed.kind, indexed.classes, list(indexed.splits)) == (direct.kind, direct.classes, list(direct.splits))
    assert items(indexed) == items(direct)


def test_its_bytes_are_a_function_of_the_files(image_folder: Path, tmp_path: Path) -> None:
    assert main(image_folder, tmp_path / "raw.parquet") == 0
    first = (tmp_path / "raw.parquet").read_bytes()
    copy = tmp_path / "elsewhere/raw"
    shutil.copytree(image_folder, copy)
    for number, path in enumerate(sorted(copy.rglob("*"))):
        os.utime(path, (number, number))
    assert main(copy, tmp_path / "elsewhere/raw.parquet") == 0
    assert (tmp_path / "elsewhere/raw.parquet").read_bytes() == first
    table = pyarrow.parquet.read_table(tmp_path / "raw.parquet")
    assert table.column_names == ["path", "label", "split", "bytes", "name"]
    assert table.to_pylist()[0] == {
        "path": "raw/train/cat/0000.jpg",
        "label": "cat",
        "split": "train",
        "bytes": (image_folder / "train/cat/0000.jpg").stat().st_size,
        "name": "train/cat/0000.jpg",
    }


def test_a_changed_size_is_noticed_when_the_image_is_read(image_folder: Path, tmp_path: Path, prepare: Prepare) -> None:
    main(image_folder, tmp_path / "raw.parquet")
    with (image_folder / "train/dog/0000.jpg").open("ab") as file:
        file.write(b"!")
    with pytest.raises(ValueError, match=r"dog/0000.jpg' cannot be read: it has \d+ bytes, and the manifest says \d+;"):
        prepare(tmp_path / "raw.parquet", tmp_path / "out", "manifest")


def test_the_source_may_be_a_link_and_the_index_stand_above_it(image_folder: Path, tmp_path: Path) -> None:
    (tmp_path / "data/raw").mkdir(parents=True)
    (tmp_path / "data/raw/toy").symlink_to(image_folder)
    expected = items(read(grow(image_folder, tmp_path / "scratch")))
    for to in (tmp_path / "data/raw/toy.parquet", tmp_path / "data/toy.parquet", image_folder / "toy.parquet"):
        assert main(image_folder if to.parent == image_folder else tmp_path / "data/raw/toy", to) == 0
        assert items(read_file(to)) == expected
    assert not [path for path in (tmp_path / "data").rglob(".*")]


def test_labels_keep_their_numbers_and_splits_may_have_none(tmp_path: Path) -> None:
    for name in ("train/b/1.jpg", "train/a/2.jpg", "val/b/3.jpg", "test/4.jpg"):
        (tmp_path / "raw" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "raw" / name).write_text(name)
    main(tmp_path / "raw", tmp_path / "raw.parquet")
    direct, indexed = read(grow(tmp_path / "raw", tmp_path)), read_file(tmp_path / "raw.parquet")
    assert items(indexed) == items(direct)
    assert (indexed.classes, list(indexed.splits)) == (direct.classes, list(direct.splits))


def test_classes_in_another_order_than_their_names(tmp_path: Path) -> None:
    """Places205's lists give the labels."""
    home = tmp_path / "raw/data/vision/torralba/deeplearning/images256"
    lines = {"train": ["b/bar/1.jpg 0", "a/abbey/2.jpg 1"], "val": ["a/abbey/3.jpg 1", "b/bar/0.jpg 0"]}
    for split, each in lines.items():
        for line in each:
            path = home / line.split()[0]
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(line)
        (tmp_path / f"raw/{split}_places205.csv").write_text("\n".join(each))
    assert main(tmp_path / "raw", tmp_path / "raw.parquet", "places205") == 0
    direct, indexed = places205.read(grow(tmp_path / "raw", tmp_path)), read_file(tmp_path / "raw.parquet")
    assert indexed.classes == direct.classes == ["b/bar", "a/abbey"]
    assert items(indexed) == items(direct)


def test_images_without_labels(image_folder: Path, tmp_path: Path) -> None:
    assert main(image_folder, tmp_path / "raw.parquet", "images") == 0
    assert read_file(tmp_path / "raw.parquet").classes == []
    assert len(read_file(tmp_path / "raw.parquet").splits["train"]) == 19


@pytest.mark.parametrize("case", ["archive", "packed", "scenes", "away", "suffix", "bytes", "missing", "layout"])
def test_what_needs_no_index_or_can_have_none_is_told(
    case: str, request: pytest.FixtureRequest, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder: Path = request.getfixturevalue("clevr" if case == "scenes" else "image_folder")
    to = tmp_path / "it.parquet"
    format, message = {
        "archive": (
            "image_folder",
            "needs no index: it is no folder; DVC hashes an archive as one file: give it as so",
        ),
        "packed": ("image_folder", "needs no index: its images lie in archives, '.*/raw.zip/train/cat/0000.jpg'; give"),
        "scenes": ("clevr", "needs no index: images of format 'clevr' are not files with a class each; give it as"),
        "away": ("image_folder", "it.parquet'; an index is a .parquet file in the folder that '.*raw' lies in, or ab"),
        "suffix": ("image_folder", "it.csv'; an index is a .parquet file"),
        "bytes": ("image_folder", r"caf.xe9.jpg' has a name that is no UTF-8, so no table can hold it; rename it"),
        "missing": ("image_folder", "gone' does not exist; give the folder of the raw data"),
        "layout": ("davis", "has no JPEGImages"),
    }[case]
    if case in ("archive", "packed"):
        archive = Path(shutil.make_archive(str(tmp_path / "zips/raw"), "zip", folder))
        folder = archive if case == "archive" else archive.parent
    elif case == "away":
        (tmp_path / "other").mkdir()
        to = tmp_path / "other/it.parquet"
    elif case == "suffix":
        to = tmp_path / "it.csv"
    elif case == "bytes":
        (folder / "train/cat" / b"caf\xe9.jpg".decode("utf-8", "surrogateescape")).touch()
    elif case == "missing":
        folder = tmp_path / "gone"
    assert main(folder, to, format) == 2
    error = capsys.readouterr().err
    assert re.search(f"^error: .*{message}", error), error
    assert not to.exists()
