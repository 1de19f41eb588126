"""Trees of folders and archives: the same names and bytes whatever they lie in."""

import os
import pickle
import shutil
import socket
import subprocess
import tempfile
import zipfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from components.prepare.readers import image_folder, images, printable

from .packed import CONTENTS, PACKED, Contents, grown, held, room, tarred, write, zipped

# The same tree, whatever it lies in


@pytest.mark.parametrize("name", PACKED)
def test_an_archive_holds_what_its_folder_does(name: str, tmp_path: Path) -> None:
    folder = grown(write(tmp_path / "raw", CONTENTS))
    archive = grown(PACKED[name](tmp_path / name, CONTENTS))
    assert held(folder) == held(archive) == dict(sorted(CONTENTS.items()))
    assert list(archive.entries) == sorted(CONTENTS)
    assert folder.folders == archive.folders == {"train", "train/a b", "train/b", "train/b/deep", "train/b/deep/er"}
    again = pickle.loads(pickle.dumps(archive.files))
    assert [again.read(entry) for entry in archive.entries.values()] == list(held(archive).values())


@pytest.mark.parametrize("name", PACKED)
def test_an_archive_at_the_top_of_a_folder_counts_as_unpacked_there(name: str, tmp_path: Path) -> None:
    half = {"val/x.jpg": b"val"}
    folder = write(tmp_path / "raw", CONTENTS)
    PACKED[name](folder / name, half)
    assert held(grown(folder)) == dict(sorted((CONTENTS | half).items()))
    write(folder, half)  # and beside what was unpacked from it, it counts for nothing
    assert held(grown(folder)) == dict(sorted((CONTENTS | half).items()))


@pytest.mark.parametrize("tool", [["tar", "-cf"], ["tar", "-czf"], ["zip", "-qr"], ["zip", "-qry0"]])
def test_archives_of_the_tools_that_people_use(tool: list[str], tmp_path: Path) -> None:
    if shutil.which(tool[0]) is None:
        pytest.skip(f"no {tool[0]} here")
    folder = write(tmp_path / "raw", CONTENTS | {f"train/{'long' * 40}/{'name' * 40}.jpg": b"long"})
    (folder / "train/empty").mkdir()
    archive = tmp_path / {"tar": "a.tar", "zip": "a.zip"}[tool[0]]
    subprocess.run([*tool, str(archive), "."], cwd=folder, check=True)
    tree, expected = grown(archive), grown(folder)
    assert (held(tree), tree.folders) == (held(expected), expected.folders)


def test_a_zip_whose_names_are_utf_8_though_it_does_not_say_so(tmp_path: Path) -> None:
    path = zipped(tmp_path / "a.zip", {"train/ü.jpg": b"1"})
    data = path.read_bytes()
    for place, signature in ((6, b"PK\3\4"), (8, b"PK\1\2")):
        start = data.index(signature) + place
        flags = int.from_bytes(data[start : start + 2], "little")
        assert flags & 0x800
        data = data[:start] + (flags & ~0x800).to_bytes(2, "little") + data[start + 2 :]
    path.write_bytes(data)
    assert held(grown(path)) == {"train/ü.jpg": b"1"}


def test_a_tar_that_ends_with_a_zip_is_a_tar(tmp_path: Path) -> None:
    inner = zipped(tmp_path / "inner.zip", {"x": b"1"}).read_bytes()
    path = tarred(tmp_path / "a.tar", {"train/1.jpg": b"1", "train/boxes.zip": inner})
    assert zipfile.is_zipfile(path)
    assert held(grown(path)) == {"train/1.jpg": b"1", "train/boxes.zip": inner}


NAMES = st.text("ab é.~'\"\n\t%", min_size=1, max_size=5).filter(lambda name: not name.startswith("."))
FOLDERS = st.recursive(
    st.binary(max_size=60), lambda inner: st.dictionaries(NAMES, inner, min_size=1, max_size=4), max_leaves=12
).filter(lambda found: isinstance(found, dict))


def flat(folder: dict[str, object], above: str = "") -> Contents:
    contents: Contents = {}
    for name, inner in folder.items():
        if isinstance(inner, dict):
            contents |= flat(inner, f"{above}{name}/")
        else:
            assert isinstance(inner, bytes)
            contents[above + name] = inner
    return contents


@settings(max_examples=60, deadline=None, derandomize=True)
@given(FOLDERS)
def test_any_folder_its_tars_and_its_zip_are_one_tree(folder: dict[str, object]) -> None:
    contents = flat(folder)
    with room() as top:
        expected = grown(write(top / "raw", contents))
        assert held(expected) == contents
        for name in ("a.tar", "a.tar.gz", "a.tgz", "a.zip"):
            tree = grown(PACKED[name](top / name, contents))
            assert (list(tree.entries), held(tree)) == (sorted(contents), held(expected))
            assert tree.folders == expected.folders


# What is not there, and what is not looked at


def test_hidden_files_and_what_macos_adds_are_no_part(tmp_path: Path) -> None:
    extra = {
        "train/.DS_Store": b"",
        "train/b/._2.jpg": b"",
        ".git/config": b"",
        "__MACOSX/train/b/._2.jpg": b"",
        "__MACOSX/2.jpg": b"",
    }
    folder = write(tmp_path / "raw", CONTENTS | extra | {"._images.zip": b"what macOS leaves beside an archive"})
    assert held(grown(folder)) == dict(sorted(CONTENTS.items()))
    for name in ("a.tar", "a.zip"):
        tree = grown(PACKED[name](tmp_path / name, CONTENTS | extra))
        assert held(tree) == dict(sorted(CONTENTS.items()))
        assert tree.folders == grown(folder).folders


def test_names_that_are_no_utf_8_are_read_and_shown(tmp_path: Path) -> None:
    name = os.fsdecode(b"train/caf\xe9.jpg")
    folder = write(tmp_path / "raw", {name: b"1"})
    for tree in (grown(folder), grown(tarred(tmp_path / "a.tar", {name: b"1"}))):
        assert held(tree) == {name: b"1"}
        assert [printable(each) for each in tree.entries] == [r"train/caf\xe9.jpg"]


def test_empty_folders_and_archives(tmp_path: Path) -> None:
    (tmp_path / "raw/train/dog").mkdir(parents=True)
    tree = grown(tmp_path / "raw")
    assert (tree.entries, tree.folders) == ({}, {"train", "train/dog"})
    for name in ("a.tar", "a.tar.gz", "a.zip"):
        assert not grown(PACKED[name](tmp_path / name, {})).entries


def test_a_folder_named_like_an_archive_is_a_folder(tmp_path: Path) -> None:
    assert held(grown(write(tmp_path / "raw", {"x.zip/1.jpg": b"1"}))) == {"x.zip/1.jpg": b"1"}


def test_what_is_not_there_is_named(tmp_path: Path) -> None:
    tree = grown(write(tmp_path / "raw", {"a": b"1"}))
    with pytest.raises(ValueError, match=f"'{tmp_path}/raw/b' is missing"):
        tree.read("b")
    (tmp_path / "raw/a").unlink()
    with pytest.raises(ValueError, match=f"'{tmp_path}/raw/a' cannot be read: .*No such file"):
        tree.read("a")


def test_an_archive_counts_for_nothing_only_where_all_of_it_was_unpacked(tmp_path: Path) -> None:
    folder = tmp_path / "raw"
    folder.mkdir()
    for part in "ab":  # the same folder at their top: parts of one dataset
        zipped(folder / f"{part}.zip", {f"photos/{part}.jpg": part.encode()})
    assert held(grown(folder)) == {"photos/a.jpg": b"a", "photos/b.jpg": b"b"}
    write(folder, {"photos/c.jpg": b"c"})
    assert list(grown(folder).entries) == ["photos/a.jpg", "photos/b.jpg", "photos/c.jpg"]
    write(folder, {"photos/a.jpg": b"mine", "photos/b.jpg": b"mine"})
    assert held(grown(folder)) == {"photos/a.jpg": b"mine", "photos/b.jpg": b"mine", "photos/c.jpg": b"c"}
    zipped(folder / "c.zip", {"photos/c.jpg": b"c", "photos/d.jpg": b"d"})
    with pytest.raises(ValueError, match="c.zip' holds 'photos/c.jpg', which is there already; remove one of the two"):
        grown(folder)


def test_members_deeper_than_any_folder_are_refused(tmp_path: Path) -> None:
    path = zipped(tmp_path / "a.zip", {"d/" * 20_000 + "x.jpg": b"1"})
    with pytest.raises(ValueError, match="a.zip': member 'd/d/.*…' has a name of 40005 letters; no dataset needs that"):
        grown(path)
    path = zipped(tmp_path / "a.zip", {"d/" * 1_100 + "x.jpg": b"1"})
    assert [each.path for each in images.read(grown(path)).splits["train"]] == ["train/x.jpg"]
    with pytest.raises(ValueError, match="has no folder train, val, test"):
        image_folder.read(grown(path))


# Links, pipes and depth


def test_links_are_followed_and_those_to_nothing_told_when_they_are_read(tmp_path: Path) -> None:
    outside = write(tmp_path / "outside", {"1.jpg": b"1"})
    folder = write(tmp_path / "raw", {"train/2.jpg": b"2"})
    (folder / "train/dog").symlink_to(outside)
    (folder / "train/3.jpg").symlink_to(outside / "1.jpg")
    (folder / "train/gone.jpg").symlink_to(outside / "nothing")
    (folder / "train/self.jpg").symlink_to("self.jpg")
    tree = grown(folder)
    assert sorted(tree.entries) == [
        "train/2.jpg",
        "train/3.jpg",
        "train/dog/1.jpg",
        "train/gone.jpg",
        "train/self.jpg",
    ]
    assert (tree.read("train/dog/1.jpg"), tree.read("train/3.jpg")) == (b"1", b"1")
    for name, why in {"gone": "No such file", "self": "symbolic links"}.items():
        with pytest.raises(ValueError, match=f"train/{name}.jpg' cannot be read: .*{why}"):
            tree.read(f"train/{name}.jpg")


@pytest.mark.parametrize("target", [".", "..", "../.."])
def test_a_link_to_a_folder_above_it_is_refused(target: str, tmp_path: Path) -> None:
    folder = write(tmp_path / "raw", {"train/dog/1.jpg": b"1"})
    (folder / "train/dog/loop").symlink_to(target)
    with pytest.raises(
        ValueError, match="loop' is a link to a folder above it, so that it has no end; remove the link"
    ):
        grown(folder)


def test_an_archive_that_is_a_link_to_nothing_is_named(tmp_path: Path) -> None:
    folder = write(tmp_path / "raw", {"train/1.jpg": b"1"})
    (folder / "val.tar").symlink_to("nothing")
    with pytest.raises(
        ValueError, match=f"archive '{folder}/val.tar' cannot be read: No such file.*put it there again"
    ):
        grown(folder)


@pytest.mark.parametrize("kind", ["pipe", "socket", "device"])
def test_what_is_neither_file_nor_folder_is_refused_and_never_opened(kind: str, tmp_path: Path) -> None:
    folder = write(tmp_path / "raw", {"train/1.jpg": b"1"})
    path = folder / "train/2.jpg"
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "device":
        path.symlink_to("/dev/zero")
    else:
        with tempfile.TemporaryDirectory() as short, socket.socket(socket.AF_UNIX) as bound:
            bound.bind(f"{short}/s")
            shutil.move(f"{short}/s", path)
    with pytest.raises(ValueError, match="train/2.jpg' is a pipe, a socket or a device"):
        grown(folder)


def test_folders_may_be_deeper_than_python_calls(tmp_path: Path) -> None:
    depth = (4000 - len(str(tmp_path))) // 2
    assert depth > 1000
    folders = [tmp_path / "raw" / "/".join("d" * level) for level in range(depth)]
    try:
        for folder in folders:
            folder.mkdir()
        write(folders[-1], {"1.jpg": b"1"})
        assert held(grown(folders[0])) == {"d/" * (depth - 1) + "1.jpg": b"1"}
    finally:
        subprocess.run(["rm", "-r", str(folders[0])], check=True)  # pytest could not


# The stamp


def test_the_stamp_changes_when_a_file_does(tmp_path: Path) -> None:
    folder = write(tmp_path / "raw", {"train/1.jpg": b"1", "train/2.jpg": b"2"})
    stamps = [grown(folder).stamp]
    assert grown(folder).stamp == stamps[0]

    def changed(path: Path, at_ns: int) -> None:
        os.utime(path, ns=(at_ns, at_ns))
        stamps.append(grown(folder).stamp)

    changed(folder / "train/1.jpg", 10**18)
    write(folder, {"train/1.jpg": b"11"})
    changed(folder / "train/1.jpg", 10**18)
    (folder / "train/1.jpg").rename(folder / "train/3.jpg")
    changed(folder / "train/3.jpg", 10**18)
    changed(zipped(folder / "a.zip", {"val/1.jpg": b"1"}), 10**18)
    changed(folder / "a.zip", 10**18 + 1)
    assert len(set(stamps)) == len(stamps) == 6
    moved = folder.rename(tmp_path / "moved")
    assert grown(moved).stamp == stamps[-1]  # where it lies does not matter


def test_a_compressed_tar_is_uncompressed_once_and_anew_when_it_changed(tmp_path: Path) -> None:
    path = tarred(tmp_path / "a.tar.gz", {"1.jpg": b"1"}, "w:gz")
    first = grown(path)
    (plain,) = (tmp_path / "scratch").iterdir()
    made = plain.stat().st_mtime_ns
    assert held(grown(path)) == held(first) and plain.stat().st_mtime_ns == made
    tarred(path, {"2.jpg": b"2"}, "w:gz")
    os.utime(path, ns=(made + 1, made + 1))
    assert held(grown(path)) == {"2.jpg": b"2"}
