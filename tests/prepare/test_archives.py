"""Hostile and damaged archives: the right bytes or one clear error, and nothing outside."""

import os
import shutil
import subprocess
import tarfile
import time
import tracemalloc
import zipfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from components.prepare import uncompress

from .packed import CONTENTS, PACKED, grown, held, room, tarred, write, zipped

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
