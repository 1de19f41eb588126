"""The Places205 reader on its makers' lists and on a folder for each class; torchvision's ImageFolder is the witness of the latter."""

import io
import shutil
import tarfile
from pathlib import Path
from typing import Any

import pytest
from torchvision.datasets import ImageFolder

from components.prepare.readers import Listing
from components.prepare.readers.places205 import read
from components.prepare.tree import grow

IMAGES = "data/vision/torralba/deeplearning/images256"
CLASSES = ["a/abbey", "a/apartment_building/outdoor", "b/bar", "c/church/indoor", "c/church/outdoor"]
TRAIN = [(f"{name}/gsun_{place}{number}.jpg", place) for place, name in enumerate(CLASSES) for number in (7, 10, 1)]
VAL = [(f"{name}/gsun_val{place}.jpg", place) for place, name in enumerate(CLASSES)]
LISTS = {"train": TRAIN, "val": VAL[::-1]}
EXPECTED = {
    split: sorted((f"{split}/{path}", {"label": label}, CLASSES[label], path.encode()) for path, label in listed)
    for split, listed in LISTS.items()
}


def write(folder: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


def images() -> dict[str, str]:
    extra = {f"{IMAGES}/b/bar/gsun_test.jpg": "in no list"}
    return {f"{IMAGES}/{path}": path for listed in LISTS.values() for path, _ in listed} | extra


def lists(folder: str = "trainvalsplit_places205/") -> dict[str, str]:
    texts = {split: "".join(f"{path} {label}\n" for path, label in listed) for split, listed in LISTS.items()}
    return {f"{folder}{split}_places205.csv": text for split, text in texts.items()} | {
        f"{folder}test_places205.csv": "gsun_0.jpg\n"
    }


def folders(folder: Path, flat: bool = False) -> Path:
    files = {f"{split}/{path}": path for split, listed in LISTS.items() for path, _ in listed}
    return write(folder, {name.replace("/b/bar/", "/bar/") if flat else name: text for name, text in files.items()})


def archives(folder: Path) -> Path:
    folder.mkdir()
    for name, files in (("imagesPlaces205_resize", images()), ("trainvalsplit_places205", lists())):
        with tarfile.open(folder / f"{name}.tar.gz", "w:gz") as archive:
            for path, text in files.items():
                member = tarfile.TarInfo(path)
                member.size = len(text)
                archive.addfile(member, io.BytesIO(text.encode()))
    return folder


def unpacked(folder: Path) -> Path:
    return write(folder, images() | lists())


def beside(folder: Path) -> Path:
    """Only the last folders, and the lists without theirs."""
    write(folder, {name.removeprefix(IMAGES.removesuffix("images256")): text for name, text in images().items()})
    return write(folder, lists(""))


def packed(folder: Path) -> Path:
    return Path(shutil.make_archive(str(folder / "places"), "tar", folders(folder / "top/places").parent))


def listed(folder: Path) -> Listing:
    return read(grow(folder, folder.parent / "scratch"))


@pytest.mark.parametrize(
    "form", [unpacked, archives, beside, folders, packed, lambda folder: folders(folder, flat=True)]
)
def test_every_form_gives_the_same_images_in_the_same_order(form: Any, tmp_path: Path) -> None:
    listing = listed(form(tmp_path / "raw"))
    assert (listing.kind, listing.classes, list(listing.splits)) == ("images", CLASSES, ["train", "val"])
    found = {
        split: [(each.path, each.values, each.group, listing.files.read(each.file)) for each in items]
        for split, items in listing.splits.items()
    }
    assert found == EXPECTED


def test_torchvision_gives_flat_class_folders_the_same_labels(tmp_path: Path) -> None:
    for name in ("abbey", "bar", "church"):
        write(tmp_path / "raw", {f"train/{name}/{number}.jpg": "" for number in range(3)})
    theirs = ImageFolder(tmp_path / "raw/train")
    items = listed(tmp_path / "raw").splits["train"]
    assert [(listed(tmp_path / "raw").files.where(each.file), each.values["label"]) for each in items] == theirs.imgs
    assert [each.path for each in items[::3]] == ["train/a/abbey/0.jpg", "train/b/bar/0.jpg", "train/c/church/0.jpg"]


def test_the_labels_are_the_lists(tmp_path: Path) -> None:
    swapped = {name: text.replace(" 0\n", " x\n").replace(" 1\n", " 0\n") for name, text in lists().items()}
    write(tmp_path / "raw", images() | {name: text.replace(" x\n", " 1\n") for name, text in swapped.items()})
    listing = listed(tmp_path / "raw")
    assert listing.classes == [CLASSES[1], CLASSES[0], *CLASSES[2:]]
    assert all(listing.classes[each.values["label"]] == each.group for each in listing.splits["train"])


def test_one_list_alone_will_do(tmp_path: Path) -> None:
    (unpacked(tmp_path / "raw") / "trainvalsplit_places205/train_places205.csv").unlink()
    assert {split: len(items) for split, items in listed(tmp_path / "raw").splits.items()} == {"val": 5}


def test_images_that_are_no_files_are_counted(tmp_path: Path) -> None:
    home = unpacked(tmp_path / "raw") / IMAGES
    (home / "b/bar/gsun_21.jpg").unlink()
    (home / "a/abbey/gsun_010.jpg").unlink()
    with pytest.raises(
        ValueError,
        match=rf"2 of the 15 images that '.*/train_places205.csv' names.*first is '{home}/a/abbey/gsun_010.jpg",
    ):
        listed(tmp_path / "raw")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda text: text + "a/abbey/x.jpg\n", "has the line 'a/abbey/x.jpg'; it must be a path, a space and a label"),
        (lambda text: text.replace(" ", ","), "has the line 'a/abbey/gsun_07.jpg,0'"),
        (lambda text: text + "x.jpg 0\n", "has the line 'x.jpg 0'"),
        (lambda text: "", "lists no image"),
        (lambda text: text + "a/abbey/gsun_07.jpg 0\n", "has image 'train/a/abbey/gsun_07.jpg' twice"),
        (
            lambda text: text.replace("gsun_07.jpg 0", "gsun_07.jpg 2"),
            "gives 'b/bar/gsun_27.jpg' the label 2, which is that of class 'a/abbey'",
        ),
        (lambda text: text.replace(" 4\n", " 5\n"), "gives class 'c/church/outdoor' two labels"),
        (lambda text: text.replace(" 4\n", " 6\n"), "has label 5, though labels go up to 6"),
    ],
)
def test_wrong_lists_are_refused(tmp_path: Path, change: Any, message: str) -> None:
    path = unpacked(tmp_path / "raw") / "trainvalsplit_places205/train_places205.csv"
    path.write_text(change(path.read_text()))
    with pytest.raises(ValueError, match=message):
        listed(tmp_path / "raw")


def test_wrong_folders_are_named(tmp_path: Path) -> None:
    with pytest.raises(
        ValueError, match=r"has neither lists nor a folder train or val; Places205 is laid out as images"
    ):
        listed(write(tmp_path / "a", {"abbey/1.jpg": ""}))
    with pytest.raises(ValueError, match=r"train/1.jpg' lies in no class folder"):
        listed(write(tmp_path / "b", {"train/1.jpg": ""}))
    with pytest.raises(ValueError, match=r"class 'z/zoo' in 'val', which 'train' does not have"):
        listed(write(folders(tmp_path / "c"), {"val/zoo/1.jpg": ""}))
    with pytest.raises(ValueError, match="split '.*/val' holds no images"):
        listed(write(tmp_path / "d", {"val/bar/readme.txt": "", "train/bar/1.jpg": ""}))
    with pytest.raises(ValueError, match="has image 'train/b/bar/gsun_21.jpg' twice"):
        listed(write(folders(tmp_path / "e"), {"train/bar/gsun_21.jpg": ""}))
