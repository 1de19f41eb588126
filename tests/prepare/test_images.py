"""Images without labels, wherever they lie: none left out silently, and the same names whatever they were packed in."""

import shutil
from pathlib import Path

import pytest

from components.prepare.readers import Listing
from components.prepare.readers.images import read
from components.prepare.tree import grow

NAMES = ["a/b/2.PNG", "a/b/10.jpeg", "a/1.jpg", "Zoo.JPEG", "é/an image.webp", "a.jpg/x.bmp"]


def images(folder: Path) -> Path:
    for number, name in enumerate(NAMES):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(bytes([number]))
    return folder


def listed(source: Path) -> Listing:
    return read(grow(source, source.parent / "scratch"))


def contents(listing: Listing) -> list[tuple[str, bytes]]:
    return [(each.path, listing.files.read(each.file)) for each in listing.splits["train"]]


def packed(folder: Path, kind: str, inside: str) -> Path:
    return Path(shutil.make_archive(str(folder.with_name("packed")), kind, folder / inside if inside else folder))


@pytest.mark.parametrize("top", ["", "photos/", "train/", "2020/summer/"])
@pytest.mark.parametrize("kind", ["folder", "tar", "gztar", "xztar", "zip", "archives"])
def test_every_form_gives_the_same_images(kind: str, top: str, tmp_path: Path) -> None:
    raw = tmp_path / "raw"
    images(raw / top)
    if kind == "archives":
        source = tmp_path / "downloads"
        source.mkdir()
        packed(raw, "zip", "").rename(source / "photos.zip")
    else:
        source = raw if kind == "folder" else packed(raw, kind, "")
    listing = listed(source)
    assert (listing.kind, listing.classes, list(listing.splits)) == ("images", [], ["train"])
    assert contents(listing) == [(f"train/{name}", bytes([NAMES.index(name)])) for name in sorted(NAMES)]
    assert all(
        (each.values, each.group, each.unit) == ({"label": -1}, "", each.path) for each in listing.splits["train"]
    )


def test_several_archives_in_a_folder_are_one_dataset(tmp_path: Path) -> None:
    for part in ("one", "two"):
        images(tmp_path / part / part)
        shutil.make_archive(str(tmp_path / "all" / part), "tar", tmp_path / part)
    assert [path for path, _ in contents(listed(tmp_path / "all"))] == [
        f"train/{part}/{name}" for part in ("one", "two") for name in sorted(NAMES)
    ]


def test_what_is_no_image_is_counted_and_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = images(tmp_path / "raw")
    for name in ("a/b/notes.txt", "a/no_suffix", "b/deep.zip"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).touch()
    assert len(contents(listed(folder))) == len(NAMES)
    assert f"3 files are no images and are left out, the first is {folder}/a/b/notes.txt" in capsys.readouterr().out


def test_a_folder_without_images_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "raw/empty").mkdir(parents=True)
    with pytest.raises(ValueError, match="raw' has no files and no image; this format reads images"):
        listed(tmp_path / "raw")
    (tmp_path / "raw/readme.txt").touch()
    with pytest.raises(ValueError, match="raw' has 1 files, such as '.*raw/readme.txt', and no image"):
        listed(tmp_path / "raw")


def test_names_that_are_no_text_are_written_out(tmp_path: Path) -> None:
    (tmp_path / "raw").mkdir()
    for name in (b"caf\xe9.jpg", "café.jpg".encode(), b"plain.jpg"):
        Path(str(tmp_path / "raw"), name.decode("utf-8", "surrogateescape")).write_bytes(name)
    assert contents(listed(tmp_path / "raw")) == [
        ("train/caf\\xe9.jpg", b"caf\xe9.jpg"),
        ("train/café.jpg", "café.jpg".encode()),
        ("train/plain.jpg", b"plain.jpg"),
    ]


def test_other_files_change_no_name(tmp_path: Path) -> None:
    folder = tmp_path / "raw"
    images(folder / "photos/2020")
    before = contents(listed(folder))
    for name in ("readme.txt", "photos/index.parquet", "photos/2021/notes.txt"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).touch()
        assert contents(listed(folder)) == before


def test_one_image_and_images_whose_folders_begin_alike(tmp_path: Path) -> None:
    (tmp_path / "raw/ab").mkdir(parents=True)
    (tmp_path / "raw/ab/1.jpg").write_bytes(b"1")
    assert contents(listed(tmp_path / "raw")) == [("train/1.jpg", b"1")]
    (tmp_path / "raw/abc").mkdir()
    (tmp_path / "raw/abc/2.jpg").write_bytes(b"2")
    assert contents(listed(tmp_path / "raw")) == [("train/ab/1.jpg", b"1"), ("train/abc/2.jpg", b"2")]
