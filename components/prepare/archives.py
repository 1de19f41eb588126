"""What zip and tar archives say they hold, read from their headers alone and refused where it cannot be true."""

import io
import re
import struct
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, NamedTuple, cast

from components.prepare.holders import DAMAGE, Holder, Tar, Zip
from components.prepare.uncompress import uncompressed

IGNORED = re.compile(
    r"(^|/)(\.|__MACOSX(/|$))"
)  # hidden files, DVC's own among them, and what macOS puts into archives
DEEPEST = 4096
"""Letters of a name; Linux takes no more. One of 65,535, folders in folders all of it, would take gigabytes of memory."""
LONGEST = 2**20
"""Bytes of a tar's header with all that belongs to it; names and times need a few hundred."""
BLOCK = 512
KINDS = {0: "unknown", 4: "folder", 8: "file"}
"""What a member of a zip may be, as the upper 4 bits of its Unix mode."""


class Member(NamedTuple):
    """One file or folder of an archive."""

    name: str  # in the tree
    inner: str  # in the archive
    start: int  # byte of a tar where its content starts, 0 in a zip
    size: int  # in bytes, -1 of a folder


def opened(path: Path, scratch: Path) -> tuple[Holder, list[Member], int]:
    """What reads the archive's members, the members, and when it was changed in ns since 1970.

    Raises ValueError for a file that is no archive, cannot be read or is damaged, and for members that no dataset should have: links,
    names that lead out of it, encrypted ones, sizes that cannot be true.
    """
    try:
        with path.open("rb"):
            changed_ns = path.stat().st_mtime_ns
    except OSError as error:
        raise ValueError(
            f"archive {str(path)!r} cannot be read: {error.strerror}; put it there again or remove it"
        ) from error
    plain = uncompressed(path, scratch)
    if _starts_tar(plain):  # first, since a tar whose last member is a zip ends like one
        return Tar(plain), list(tar_members(path, plain)), changed_ns
    if zipfile.is_zipfile(path):
        return Zip(path), list(_zip_members(path)), changed_ns
    raise ValueError(f"{str(path)!r} is neither a folder nor a zip or tar archive; give one, or download it again")


def _starts_tar(path: Path) -> bool:
    with path.open("rb") as file:
        block = file.read(BLOCK)
    try:
        tarfile.TarInfo.frombuf(block, "utf-8", "surrogateescape")
    except tarfile.EOFHeaderError:  # type: ignore[attr-defined]  # its end marker: an empty one
        return True
    except (tarfile.HeaderError, ValueError):
        return False
    return True


def _zip_members(path: Path) -> Iterator[Member]:
    try:
        with zipfile.ZipFile(path) as archive, path.open("rb") as file:
            infos = archive.infolist()
            count = zipfile._EndRecData(file)[4]  # type: ignore[attr-defined]
    except (*DAMAGE, ValueError) as error:
        raise _damaged(path, error) from error
    if (
        count - len(infos)
    ) % 2**16:  # where a length is damaged, zipfile passes over members; old tools count to 65,535 only
        raise _damaged(path, f"{len(infos)} of its {count} members are listed")
    if sum(info.compress_size for info in infos) > path.stat().st_size:
        raise _damaged(path, "its members claim more bytes than it has")
    for info in infos:
        kind = info.external_attr >> 28
        if kind == 10:
            raise _refused(path, info.filename, "is a link")
        if kind not in KINDS and info.create_system == 3:  # Unix; others keep something else there
            raise _refused(path, info.filename, "is neither a file nor a folder")
        if info.flag_bits & 1:
            raise _refused(path, info.filename, "is encrypted")
        if info.file_size > 2000 * max(info.compress_size, 1000):
            raise _refused(path, info.filename, f"would grow from {info.compress_size} to {info.file_size} bytes")
        name = _safe(path, _text(info))
        if name and not IGNORED.search(name):
            yield Member(name, info.filename, 0, -1 if info.is_dir() else info.file_size)


def _text(info: zipfile.ZipInfo) -> str:
    """The member's name; UTF-8 is understood also where nothing says that it is."""
    if info.flag_bits & 0x800 or info.filename.isascii():
        return info.filename
    try:
        return info.filename.encode("cp437").decode()
    except UnicodeDecodeError:
        return info.filename


def tar_members(path: Path, plain: Path, start: int = 0, end: int | None = None) -> Iterator[Member]:
    """Members of the tar that lies in the bytes from `start` to `end` of the file `plain`, all of it as a rule; `path` is for a person.

    A tar within a tar may lack its end marker, since the outer one says where it ends.
    """
    with plain.open("rb") as file:
        part = _Part(file, start, plain.stat().st_size if end is None else end)
        for member in _headers(path, part, marked=end is None):
            if member.issym() or member.islnk():
                raise _refused(path, member.name, "is a link")
            if not (member.isreg() or member.isdir()):
                raise _refused(path, member.name, "is neither a file nor a folder")
            if member.issparse() or member.size < 0 or member.offset_data + member.size > part.length:
                raise ValueError(
                    f"archive {str(path)!r}: member {member.name!r} claims {member.size} bytes, more than the archive holds, so that it "
                    "was cut short or is damaged; download it again"
                )
            name = _safe(path, member.name)
            if name and not IGNORED.search(name):
                yield Member(name, name, start + member.offset_data, -1 if member.isdir() else member.size)


def _headers(path: Path, part: "_Part", marked: bool) -> Iterator[tarfile.TarInfo]:
    """Every member; with `marked` the archive must have its end marker. tarfile alone stops at a damaged header without a word."""
    try:
        archive = tarfile.open(fileobj=cast(IO[bytes], part), mode="r:")  # noqa: SIM115  # it owns nothing to close
        while (member := archive.next()) is not None:
            archive.members = []  # type: ignore[attr-defined]  # else tarfile keeps them all, 1 KB each
            yield member
        end = archive.offset
        part.seek(end)
        block = part.read(BLOCK)
        if len(block) < BLOCK and marked:
            raise tarfile.ReadError(f"it has no end marker, so that it was cut short after {end} bytes")
        while block:
            if block.strip(b"\0"):
                raise tarfile.ReadError(f"what stands behind byte {end} is neither a member nor the archive's end")
            block = part.read(LONGEST)
    except (tarfile.TarError, ArithmeticError, LookupError, ValueError, struct.error) as error:  # of broken numbers
        raise _damaged(path, error) from error


class _Part(io.RawIOBase):
    """Bytes of a file as tarfile reads its headers, seen as a file of their own."""

    def __init__(self, file: io.BufferedReader, start: int, end: int) -> None:
        self._file, self._start, self.length = file, start, end - start
        self.seek(0)

    def read(self, size: int = -1) -> bytes:
        """Fewer bytes at the end."""
        if not 0 <= size <= LONGEST:
            raise tarfile.ReadError(f"a header claims {size} bytes")
        return self._file.read(min(size, max(0, self.length - self.tell())))

    def seek(self, offset: int, whence: int = 0) -> int:
        """From the part's start only."""
        assert whence == 0
        return self._file.seek(self._start + offset) - self._start

    def tell(self) -> int:
        """From the part's start."""
        return self._file.tell() - self._start


def _safe(path: Path, name: str) -> str:
    """The name without `./` and a last `/`. Raises ValueError when it leads out of the archive or has no end."""
    parts = [part for part in name.split("/") if part not in ("", ".")]
    if name.startswith("/") or ".." in parts or "\\" in name or "\0" in name or re.match(r"[A-Za-z]:", name):
        raise _refused(path, name, "leads out of the archive")
    if len(name) > DEEPEST:
        raise _refused(path, f"{name[:40]}…", f"has a name of {len(name)} letters")
    return "/".join(parts)


def _damaged(path: Path, why: object) -> ValueError:
    return ValueError(f"archive {str(path)!r} is damaged: {why}; download it again")


def _refused(path: Path, name: str, what: str) -> ValueError:
    return ValueError(
        f"archive {str(path)!r}: member {name!r} {what}; no dataset needs that, so the archive is not read: get it from its "
        "makers, or unpack it yourself and look"
    )
