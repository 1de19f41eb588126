"""Trees of folders and archives: the same names and bytes whatever they lie in, and nothing from hostile ones."""

import io
import os
import pickle
import shutil
import socket
import subprocess
import tarfile
import tempfile
import time
import tracemalloc
import warnings
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from components.prepare import uncompress
from components.prepare.readers import image_folder, images, printable
from components.prepare.tree import Tree, grow

Contents = dict[str, bytes]
CONTENTS: Contents = {
    "train/b/2.jpg": b"two" * 400,
    "train/a b/ü.jpg": b"one",
    "train/a b/empty.jpg": b"",
    "train/b/deep/er/3.jpg": bytes(range(256)) * 9,
    "notes.txt": b"text",
    "train/inner.zip": b"an archive below the top stays a file",
}


def write(folder: Path, contents: Contents) -> Path:
    for name, data in contents.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return folder


def tarred(path: Path, contents: Contents, mode: str = "w", format: int = tarfile.PAX_FORMAT) -> Path:
    with tarfile.open(path, mode, format=format) as archive:  # type: ignore[call-overload]
        for name, data in contents.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return path


def zipped(path: Path, contents: Contents, packed: int = zipfile.ZIP_DEFLATED) -> Path:
    with warnings.catch_warnings(), zipfile.ZipFile(path, "w", packed) as archive:
        warnings.simplefilter("ignore")  # of a name that is there twice
        for name, data in contents.items():
            archive.writestr(zipfile.ZipInfo(name), data, packed)
    return path


PACKED: dict[str, Callable[[Path, Contents], Path]] = {
    "a.tar": tarred,
    "a.tar.gz": lambda path, contents: tarred(path, contents, "w:gz"),
    "a.tgz": lambda path, contents: tarred(path, contents, "w:gz", tarfile.GNU_FORMAT),
    "a.tar.bz2": lambda path, contents: tarred(path, contents, "w:bz2"),
    "a.tar.xz": lambda path, contents: tarred(path, contents, "w:xz"),
    "a.zip": zipped,
    "stored.zip": lambda path, contents: zipped(path, contents, zipfile.ZIP_STORED),
    "lzma.zip": lambda path, contents: zipped(path, contents, zipfile.ZIP_LZMA),
    "bzip2.zip": lambda path, contents: zipped(path, contents, zipfile.ZIP_BZIP2),
}


def held(tree: Tree) -> Contents:
    return {name: tree.read(name) for name in tree.entries}


def grown(path: Path) -> Tree:
    return grow(path, path.parent / "scratch")


@contextmanager
def room() -> Iterator[Path]:
    """A folder for one of hypothesis' examples."""
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)


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


# Hostile members

OUT = ["../x", "a/../../x", "/etc/x", "//x", "a\\..\\x", "C:/x", "c:x", ".."]


@pytest.mark.parametrize("name", OUT)
def test_names_that_lead_out_are_refused(name: str, tmp_path: Path) -> None:
    for kind in ("a.tar", "a.tar.gz", "a.zip"):
        path = PACKED[kind](tmp_path / kind, {"good.jpg": b"1", name: b"1"})
        with pytest.raises(ValueError, match=f"archive '{path}': member .* leads out of the archive; no dataset needs"):
            grown(path)


@settings(max_examples=150, deadline=None, derandomize=True)
@given(st.lists(st.sampled_from(["..", ".", "", "a", "b.jpg", "C:", "\\", "~", "\0", "é"]), min_size=1, max_size=6))
def test_whatever_its_members_are_called_nothing_is_outside(parts: list[str]) -> None:
    name = "/".join(parts)
    with room() as top:
        for kind in ("a.tar", "a.zip"):
            path = PACKED[kind](top / kind, {name: b"data"})
            try:
                names = list(grown(path).entries)
            except ValueError as error:
                assert str(error).startswith(f"archive '{path}'") and "leads out" in str(error)
            else:
                for each in names:
                    assert (top / each).resolve().is_relative_to(top.resolve()) and not each.startswith("/")
        assert {each.name for each in top.iterdir()} == {"a.tar", "a.zip"}  # nothing was unpacked


@pytest.mark.parametrize(
    ("kind", "what"),
    [
        (tarfile.SYMTYPE, "is a link"),
        (tarfile.LNKTYPE, "is a link"),
        (tarfile.CHRTYPE, "is neither a file nor a folder"),
        (tarfile.BLKTYPE, "is neither a file nor a folder"),
        (tarfile.FIFOTYPE, "is neither a file nor a folder"),
    ],
)
def test_links_and_devices_in_a_tar_are_refused(kind: bytes, what: str, tmp_path: Path) -> None:
    member = tarfile.TarInfo("x.jpg")
    member.type, member.linkname = kind, "/etc/passwd"
    with tarfile.open(tmp_path / "a.tar", "w") as archive:
        archive.addfile(member)
    with pytest.raises(ValueError, match=f"a.tar': member 'x.jpg' {what}"):
        grown(tmp_path / "a.tar")


@pytest.mark.parametrize(
    ("mode", "what"), [(0o120777, "is a link"), (0o020666, "is neither a file"), (0o010666, "is neither a file")]
)
def test_links_and_devices_in_a_zip_are_refused(mode: int, what: str, tmp_path: Path) -> None:
    member = zipfile.ZipInfo("x.jpg")
    member.create_system, member.external_attr = 3, mode << 16
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr(member, "/etc/passwd")
    with pytest.raises(ValueError, match=f"a.zip': member 'x.jpg' {what}"):
        grown(tmp_path / "a.zip")


def test_an_encrypted_zip_is_refused(tmp_path: Path) -> None:
    if shutil.which("zip") is None:
        pytest.skip("no zip here")
    write(tmp_path, {"x.jpg": b"secret"})
    subprocess.run(["zip", "-q", "-P", "word", "a.zip", "x.jpg"], cwd=tmp_path, check=True)
    with pytest.raises(ValueError, match=r"a.zip': member 'x.jpg' is encrypted"):
        grown(tmp_path / "a.zip")


@pytest.mark.parametrize("name", ["a.tar", "a.tar.gz", "a.zip"])
def test_a_name_twice_is_refused(name: str, tmp_path: Path) -> None:
    path = PACKED[name](tmp_path / name, {"train/x.jpg": b"1", "./train/x.jpg": b"2"})
    with pytest.raises(ValueError, match="holds 'train/x.jpg', which is there already; remove one of the two"):
        grown(path)
    folder = write(tmp_path / "raw", {"train/x.jpg": b"1"})
    PACKED[name](folder / name, {"train/x.jpg": b"1", "val/y.jpg": b"1"})
    with pytest.raises(ValueError, match="holds 'train/x.jpg', which is there already"):
        grown(folder)


@pytest.mark.parametrize("name", ["a.tar", "a.zip"])
def test_a_name_of_a_file_and_a_folder_is_refused(name: str, tmp_path: Path) -> None:
    path = PACKED[name](tmp_path / name, {"train": b"1", "train/x.jpg": b"2"})
    with pytest.raises(ValueError, match="'train' is both a file and a folder"):
        grown(path)


# Absurd sizes


def test_a_zip_that_says_it_grows_beyond_measure_is_refused(tmp_path: Path) -> None:
    path = zipped(tmp_path / "a.zip", {"x.jpg": bytes(30_000_000)}, zipfile.ZIP_LZMA)
    with pytest.raises(ValueError, match=r"member 'x.jpg' would grow from \d+ to 30000000 bytes"):
        grown(path)


def test_a_zip_whose_members_share_their_bytes_is_refused(tmp_path: Path) -> None:
    """As the bombs do that name one member's bytes a thousand times."""
    path = zipped(tmp_path / "a.zip", {f"{n}.jpg": os.urandom(1000) for n in range(2)})
    data = path.read_bytes()
    second = data.rindex(b"PK\1\2")
    path.write_bytes(data[: second + 20] + (10**6).to_bytes(4, "little") + data[second + 24 :])
    with pytest.raises(ValueError, match="a.zip' is damaged: its members claim more bytes than it has"):
        grown(path)


def test_a_zip_that_grows_beyond_what_it_says_takes_no_memory(tmp_path: Path) -> None:
    path = zipped(tmp_path / "a.zip", {"x.jpg": bytes(300_000_000)})
    data = bytearray(path.read_bytes())
    for place, signature in ((22, b"PK\3\4"), (24, b"PK\1\2")):  # the size unpacked
        start = data.rindex(signature) + place
        data[start : start + 4] = (100_000).to_bytes(4, "little")
    path.write_bytes(data)
    tree = grown(path)
    tracemalloc.start()
    with pytest.raises(ValueError, match="x.jpg' cannot be read: the archive is damaged there"):
        tree.read("x.jpg")
    assert tracemalloc.get_traced_memory()[1] < 20e6
    tracemalloc.stop()


def test_a_file_of_more_than_a_gibibyte_is_not_read(tmp_path: Path) -> None:
    with (tmp_path / "x.jpg").open("wb") as file:
        file.truncate(2**31)  # a hole, no room
    with pytest.raises(ValueError, match="x.jpg' cannot be read: it claims to have 2 GiB"):
        grown(tmp_path).read("x.jpg")


def test_a_compressed_tar_that_grows_beyond_measure_is_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uncompress, "PIECE", 10_000)
    path = tarred(tmp_path / "a.tar.gz", {"x.jpg": bytes(9_000_000)}, "w:gz")
    with pytest.raises(ValueError, match=r"a.tar.gz' has \d+ bytes and grew beyond \d+; no dataset does"):
        grown(path)
    assert not list((tmp_path / "scratch").iterdir())


def test_a_disk_without_room_for_a_compressed_tar_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tarred(tmp_path / "a.tar.gz", CONTENTS, "w:gz")
    monkeypatch.setattr(uncompress.shutil, "disk_usage", lambda folder: shutil._ntuple_diskusage(1, 1, 10))  # type: ignore[attr-defined]
    with pytest.raises(ValueError, match=r"uncompressing '.*a.tar.gz' needs .* has 0.0 GiB left; make room"):
        grown(path)


def header(name: str, size: bytes, kind: bytes = tarfile.REGTYPE) -> bytes:
    """A tar header with a right checksum and any size."""
    block = bytearray(tarfile.TarInfo(name).tobuf(tarfile.USTAR_FORMAT))
    block[124:136], block[156:157], block[148:156] = size, kind, b" " * 8
    block[148:156] = b"%06o\0 " % sum(block)
    return bytes(block)


@pytest.mark.parametrize(
    ("size", "kind", "what"),
    [
        (b"77777777777\0", tarfile.REGTYPE, "member 'x.jpg' claims 8589934591 bytes, more than the archive holds"),
        (b"\xff" * 11 + b"\0", tarfile.REGTYPE, "member 'x.jpg' claims -256 bytes, more than"),
        (b"\x80" + b"\x7f" * 11, tarfile.REGTYPE, "member 'x.jpg' claims"),
        (b"77777777777\0", tarfile.XHDTYPE, "is damaged: a header claims 8589934592 bytes"),
        (b"\xff" * 10 + b"\xfc\0", tarfile.XHDTYPE, "is damaged: a header claims -1024 bytes"),
        (b"77777777777\0", tarfile.GNUTYPE_LONGNAME, "is damaged: a header claims 8589934592 bytes"),
        (b"00000000000\0", tarfile.GNUTYPE_SPARSE, "member 'x.jpg' claims 0 bytes"),
    ],
)
def test_sizes_in_a_tar_that_cannot_be_true_are_refused_at_once(
    size: bytes, kind: bytes, what: str, tmp_path: Path
) -> None:
    (tmp_path / "a.tar").write_bytes(header("x.jpg", size, kind) + bytes(10240))
    begun = time.monotonic()
    with pytest.raises(ValueError, match=f"archive '{tmp_path}/a.tar'.*{what}"):
        grown(tmp_path / "a.tar")
    assert time.monotonic() - begun < 5


# Damage


@pytest.mark.parametrize("name", PACKED)
def test_an_archive_cut_anywhere_is_an_error_and_no_smaller_dataset(name: str, tmp_path: Path) -> None:
    path = PACKED[name](tmp_path / name, CONTENTS)
    whole = path.read_bytes()
    end = len(whole)
    if name == "a.tar":  # one block of zeros is end enough; behind it they fill the record
        end = len(whole.rstrip(b"\0")) // 512 * 512 + 1024
        assert end < len(whole)
    for length in [*range(0, end, max(1, end // 60)), end - 1]:
        path.write_bytes(whole[:length])
        shutil.rmtree(tmp_path / "scratch", ignore_errors=True)
        with pytest.raises(ValueError, match=f"'{path}'( is|: ).*(damaged|neither).*download it again"):
            grown(path)


def test_two_tars_in_one_file_are_an_error_and_no_half_dataset(tmp_path: Path) -> None:
    one = tarred(tmp_path / "a.tar", {"1.jpg": b"1"})
    two = tarred(tmp_path / "b.tar", {"2.jpg": b"1"})
    one.write_bytes(one.read_bytes() + two.read_bytes())
    with pytest.raises(ValueError, match="a.tar' is damaged: what stands behind byte 1024 is neither a member nor"):
        grown(one)


@settings(max_examples=400, deadline=None, derandomize=True)
@given(
    st.sampled_from(["a.tar.gz", "a.tar.bz2", "a.tar.xz", "a.zip", "stored.zip", "lzma.zip", "bzip2.zip"]),
    st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(1, 255)), min_size=1, max_size=4),
    st.sampled_from(["change", "cut out", "insert"]),
)
def test_a_damaged_archive_gives_the_right_bytes_or_one_error(
    name: str, places: list[tuple[float, int]], how: str
) -> None:
    with room() as top:
        path = PACKED[name](top / name, CONTENTS)
        data = bytearray(path.read_bytes())
        for place, value in places:
            at = int(place * len(data))
            if how == "change":
                data[at] ^= value
            elif how == "cut out":
                del data[at : at + value]
            else:
                data[at:at] = bytes([value]) * 3
        path.write_bytes(data)
        try:
            found = held(grown(path))
        except ValueError as error:
            assert str(path) in str(error)
        else:
            assert found == CONTENTS  # no file less, either


@settings(max_examples=300, deadline=None, derandomize=True)
@given(st.integers(0, 10**6), st.integers(1, 255), st.sampled_from([tarfile.PAX_FORMAT, tarfile.GNU_FORMAT]))
def test_a_tar_with_a_damaged_header_names_all_its_files_or_is_an_error(place: int, value: int, format: int) -> None:
    contents = CONTENTS | {f"{'long' * 40}/{'ü' * 40}.jpg": b"1"}
    with room() as top:
        path = tarred(top / "a.tar", contents, format=format)
        data = bytearray(path.read_bytes())
        with tarfile.open(path) as archive:
            headers = [at for member in archive for at in range(member.offset, member.offset_data)]
        data[headers[place % len(headers)]] ^= value
        path.write_bytes(data)
        try:
            found = grown(path)
        except ValueError as error:
            assert str(path) in str(error)
        else:
            assert len(found.entries) == len(contents)


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
