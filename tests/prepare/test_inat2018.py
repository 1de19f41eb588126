"""The iNaturalist 2018 reader on the competition's files; torchvision's INaturalist is the witness of labels."""

import json
import shutil
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from torchvision.datasets import INaturalist

from components.prepare.readers import Listing
from components.prepare.readers.inat2018 import read
from components.prepare.tree import grow

SUPER = {10: "Amphibia", 2: "Plantae", 0: "Plantae", 1: "Aves", 9: "Aves"} | {number: "Fungi" for number in range(3, 9)}
IMAGES = {
    "train": [
        (1000 + 7 * number, f"train_val2018/{SUPER[number % 11]}/{number % 11}/{number:x}a.jpg") for number in range(25)
    ],
    "val": [(90 - number, f"train_val2018/{SUPER[number]}/{number}/{number:x}f.jpg") for number in range(11)],
}
JPEG = b"\xff\xd8 not opened by a reader"


def annotations(split: str) -> dict[str, Any]:
    """As published; ids in no order, and annotations not in that of the images."""
    return {
        "info": {"year": 2018, "version": 1},
        "licenses": [{"id": 1, "name": "CC-BY", "url": "…"}],
        "images": [
            {"id": id, "width": 800, "height": 600, "file_name": file, "license": 1, "rights_holder": "Ada ©"}
            for id, file in IMAGES[split]
        ],
        "annotations": [
            {"id": place, "image_id": id, "category_id": int(file.split("/")[2])}
            for place, (id, file) in enumerate(reversed(IMAGES[split]))
        ],
        "categories": [{"id": id, "name": f"{id:04x}", "supercategory": name} for id, name in SUPER.items()],
    }


def unpacked(folder: Path) -> Path:
    for split, images in IMAGES.items():
        for _, file in images:
            (folder / file).parent.mkdir(parents=True, exist_ok=True)
            (folder / file).write_bytes(JPEG + file.encode())
        (folder / f"{split}2018.json").write_text(json.dumps(annotations(split)))
    return folder


def downloaded(folder: Path) -> Path:
    source = unpacked(folder.with_name("unpacked"))
    folder.mkdir()
    for name, archive in {
        "train_val2018": "train_val2018",
        "train2018.json": "train2018.json",
        "val2018.json": "val2018.json",
    }.items():
        with tarfile.open(folder / f"{archive}.tar.gz", "w:gz") as tar:
            tar.add(source / name, name)
    return folder


def half(folder: Path) -> Path:
    """Images unpacked beside their archive, lists still packed."""
    downloaded(folder)
    shutil.copytree(folder.with_name("unpacked") / "train_val2018", folder / "train_val2018")
    return folder


def listed(folder: Path) -> Listing:
    return read(grow(folder, folder.parent / "scratch"))


@pytest.mark.parametrize("form", [unpacked, downloaded, half])
def test_every_form_gives_the_same_images_in_the_same_order(form: Callable[[Path], Path], tmp_path: Path) -> None:
    listing = listed(form(tmp_path / "raw"))
    assert (listing.kind, listing.classes) == ("images", [str(number) for number in range(11)])  # 10 comes after 9
    found = {
        split: [(each.path, each.values["label"], each.group, listing.files.read(each.file)) for each in items]
        for split, items in listing.splits.items()
    }
    assert found == {
        split: sorted(
            (file.replace("train_val2018", split), int(file.split("/")[2]), file.split("/")[2], JPEG + file.encode())
            for _, file in images
        )
        for split, images in IMAGES.items()
    }


def test_torchvision_has_the_same_labels(tmp_path: Path) -> None:
    folder = unpacked(tmp_path / "raw")
    listing = listed(folder)
    ours = {
        (Path(listing.files.where(each.file)).name, each.values["label"])
        for items in listing.splits.values()
        for each in items
    }
    (tmp_path / "theirs").mkdir()
    shutil.copytree(folder / "train_val2018", tmp_path / "theirs/2018")  # where torchvision unpacks it to
    theirs = INaturalist(tmp_path / "theirs", "2018", "full")  # which knows no splits
    assert {(name, label) for label, name in theirs.index} == ours


def test_one_list_alone_will_do(tmp_path: Path) -> None:
    (unpacked(tmp_path / "raw") / "train2018.json").unlink()
    assert {split: len(items) for split, items in listed(tmp_path / "raw").splits.items()} == {"val": 11}


def test_images_that_are_no_files_are_counted(tmp_path: Path) -> None:
    folder = unpacked(tmp_path / "raw")
    shutil.rmtree(folder / "train_val2018/Plantae")
    with pytest.raises(
        ValueError,
        match=r"6 of the 25 images that '.*/train2018.json' names are no files; the first is '.*/Plantae/0/0a.jpg'",
    ):
        listed(folder)


@pytest.mark.parametrize(
    ("gone", "lacks"),
    [
        (["train2018.json", "val2018.json"], "train2018.json or val2018.json"),
        (["train_val2018"], "folder train_val2018"),
    ],
)
def test_what_is_missing_is_told(tmp_path: Path, gone: list[str], lacks: str) -> None:
    folder = unpacked(tmp_path / "raw")
    for name in gone:
        shutil.rmtree(folder / name) if (folder / name).is_dir() else (folder / name).unlink()
    with pytest.raises(ValueError, match=f"has no {lacks}; iNaturalist 2018 is laid out as train_val2018/"):
        listed(folder)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda whole: whole["annotations"].pop(),
            "1 of the 25 images in '.*' have no annotation; the first is '.*/0/0a.jpg'",
        ),
        (
            lambda whole: whole["annotations"][3].update(category_id=11),
            "has category_id 11, which its 'categories' do not have",
        ),
        (
            lambda whole: whole["annotations"].append({"image_id": 1000, "category_id": 5}),
            "has two categories of image 1000",
        ),
        (lambda whole: whole["images"].append(whole["images"][0]), "has image 'train/Plantae/0/0a.jpg' twice"),
        (lambda whole: whole["images"][0].pop("file_name"), "must hold 'images' with 'id' and 'file_name'"),
        (lambda whole: whole["annotations"][0].update(category_id="1"), "must hold .*'category_id'"),
        (lambda whole: whole["categories"].clear(), "must hold .*'categories' with 'id'"),
        (lambda whole: whole.pop("annotations"), "is no file of iNaturalist's annotations: KeyError"),
        (lambda whole: whole["categories"].pop(0), "has category_id 10, which its 'categories' do not have"),
    ],
)
def test_files_that_do_not_go_together_are_refused(tmp_path: Path, change: Any, message: str) -> None:
    path = unpacked(tmp_path / "raw") / "train2018.json"
    whole = json.loads(path.read_text())
    change(whole)
    path.write_text(json.dumps(whole))
    with pytest.raises(ValueError, match=message):
        listed(tmp_path / "raw")


def test_lists_of_other_years_are_refused(tmp_path: Path) -> None:
    path = unpacked(tmp_path / "raw") / "val2018.json"
    whole = annotations("val")
    whole["categories"].append({"id": 11, "name": "another", "supercategory": "Fungi"})
    path.write_text(json.dumps(whole))
    with pytest.raises(ValueError, match="val2018.json' has other categories than the file of 'train'"):
        listed(tmp_path / "raw")
    path.write_text("[")
    with pytest.raises(ValueError, match="val2018.json' is no file of iNaturalist's annotations: JSONDecodeError"):
        listed(tmp_path / "raw")
