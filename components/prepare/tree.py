"""The files of a raw dataset as one tree of names, whether they lie in a folder, in an archive or in archives in a folder.

Archives count as if they were unpacked where they lie; nothing of them is written to disk, but that a compressed tar, in which
nothing can be found without reading all before it, is first uncompressed into a scratch folder.
"""

import hashlib
import lzma
import os
import re
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import BinaryIO

from components.prepare.holders import Entry, Folder, Holder, Holders, Tar, Zip
from components.prepare.uncompress import uncompressed

ARCHIVES = (".zip", ".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz")
Member = tuple[str, str, int, int]
"""Its name in the tree and in the archive, where it starts in a tar, and its size, -1 of a folder."""
IGNORED = re.compile(
    r"(^|/)(\.|__MACOSX(/|$))"
)  # hidden files, DVC's own among them, and what macOS puts into archives


class Tree:
    """Names of files, sorted, with `/` between folders; and what reads them.

    `folders` are all folders, the empty ones too. `stamp` changes when a file's name, size or time of change does.
    """

    def __init__(self, source: Path, files: Holders, entries: dict[str, Entry], folders: set[str], stamp: str) -> None:
        self.source, self.files, self.folders, self.stamp = source, files, folders, stamp
        self.entries = dict(sorted(entries.items()))

    def under(self, folder: str) -> "Tree":
        """The tree of one of its folders."""
        start = f"{folder}/"
        entries = {name.removeprefix(start): entry for name, entry in self.entries.items() if name.startswith(start)}
        folders = {name.removeprefix(start) for name in self.folders if name.startswith(start)}
        return Tree(self.source / folder, self.files, entries, folders, self.stamp)

    def read(self, name: str) -> bytes:
        """The bytes of one file. Raises ValueError when it is not there or cannot be read."""
        if name not in self.entries:
            raise ValueError(f"{self.where(name)!r} is missing")
        try:
            return self.files.read(self.entries[name])
        except (OSError, ValueError) as error:
            raise ValueError(f"{self.where(name)!r} cannot be read: {error}") from error

    def where(self, name: str) -> str:
        """The file's path for a person: in an archive, below the archive's."""
        entry = self.entries.get(name)
        return str(self.source / name) if entry is None else self.files.where(entry)


class _Growing:
    def __init__(self) -> None:
        self.holders: list[Holder] = []
        self.entries: dict[str, Entry] = {}
        self.folders: set[str] = set()
        self.stamps: list[str] = []

    def add(self, name: str, entry: Entry, changed_ns: int) -> None:
        self.entries[name] = entry
        self.stamps.append(f"{name}\0{entry.size}\0{changed_ns}")

    def tree(self, source: Path) -> Tree:
        digest = hashlib.sha256()
        for stamp in sorted(self.stamps):
            digest.update(os.fsencode(stamp) + b"\n")
        return Tree(source, Holders(self.holders), self.entries, self.folders, digest.hexdigest())


def grow(source: Path, scratch: Path) -> Tree:
    """The tree of a folder or an archive.

    Raises ValueError for a file that is no archive, a link that leads back into a folder above it, and an archive that holds links,
    names that lead out of it, a name twice, or sizes that cannot be true.
    """
    growing = _Growing()
    if source.is_dir():
        _add_folder(growing, source)
        for archive in sorted(path for path in source.iterdir() if path.name.lower().endswith(ARCHIVES)):
            _add_archive(growing, archive, scratch)
    else:
        _add_archive(growing, source, scratch)
    return growing.tree(source)


def _add_folder(growing: _Growing, source: Path) -> None:
    growing.holders.append(Folder(source))
    holder = len(growing.holders) - 1
    for name, size, changed_ns in _walk(str(source), "", ()):
        if size < 0:
            growing.folders.add(name)
        elif "/" in name or not name.lower().endswith(ARCHIVES):
            growing.add(name, Entry(holder, name, 0, size), changed_ns)


def _walk(top: str, folder: str, above: tuple[tuple[int, int], ...]) -> Iterator[tuple[str, int, int]]:
    """Name, size and time of change of each file below; folders have size -1. Links are followed."""
    path = os.path.join(top, folder)
    status = os.stat(path)
    here = (status.st_dev, status.st_ino)
    if here in above:
        raise ValueError(f"folder {path!r} is a link to a folder above it, so that it has no end; remove the link")
    with os.scandir(path) as entries:
        for entry in entries:
            name = f"{folder}/{entry.name}" if folder else entry.name
            if entry.name.startswith(".") or entry.name == "__MACOSX":
                continue
            if entry.is_dir():
                yield name, -1, 0
                yield from _walk(top, name, (*above, here))
            else:
                try:
                    found = entry.stat()
                    yield name, found.st_size, found.st_mtime_ns
                except FileNotFoundError:  # a link to nothing: it is told when it is read
                    yield name, 0, 0


def _add_archive(growing: _Growing, path: Path, scratch: Path) -> None:
    changed_ns = path.stat().st_mtime_ns
    if zipfile.is_zipfile(path):
        holder: Holder = Zip(path)
        members = list(_zip_members(path))
    elif _is_tar(path):
        plain = uncompressed(path, scratch)
        holder = Tar(plain)
        members = list(tar_members(path, plain))
    else:
        raise ValueError(f"{str(path)!r} is neither a folder nor a zip or tar archive; give one, or download it again")
    tops = {name.partition("/")[0] for name, *_ in members}
    if members and tops <= growing.folders | growing.entries.keys():
        return  # it lies beside what was unpacked from it
    seen: set[str] = set()
    growing.holders.append(holder)
    for name, inner, start, size in members:
        growing.folders.update(str(parent) for parent in PurePosixPath(name).parents if parent.name)
        if size < 0:
            growing.folders.add(name)
            continue
        if name in seen or name in growing.entries:
            raise ValueError(f"archive {str(path)!r} holds {name!r}, which is there already; remove one of the two")
        seen.add(name)
        growing.add(name, Entry(len(growing.holders) - 1, inner, start, size), changed_ns)


def _is_tar(path: Path) -> bool:
    try:
        return tarfile.is_tarfile(path)
    except (EOFError, OSError, zlib.error, lzma.LZMAError) as error:
        if isinstance(error, OSError) and error.errno:
            raise
        raise ValueError(f"archive {str(path)!r} is damaged: {error}; download it again") from error


def _zip_members(path: Path) -> Iterator[Member]:
    with zipfile.ZipFile(path) as archive:
        for info in archive.infolist():
            if (info.external_attr >> 16) & 0o170000 == 0o120000:
                raise _refused(path, info.filename, "is a link")
            if info.flag_bits & 1:
                raise _refused(path, info.filename, "is encrypted")
            if info.file_size > 2000 * max(info.compress_size, 1000):
                raise _refused(path, info.filename, f"would grow from {info.compress_size} to {info.file_size} bytes")
            name = _safe(path, info.filename)
            if name and not IGNORED.search(name):
                yield name, info.filename, 0, -1 if info.is_dir() else info.file_size


def tar_members(path: Path, plain: Path, start: int = 0, end: int | None = None) -> Iterator[Member]:
    """Members of the tar that lies in the bytes from `start` to `end` of the file `plain`, all of it as a rule; `path` is for a person."""
    length = plain.stat().st_size if end is None else end
    try:
        with plain.open("rb") as file, tarfile.open(fileobj=_at(file, start), mode="r:", errorlevel=1) as archive:
            for member in archive:
                if (
                    member.offset >= length
                ):  # a tar in a tar, without its end marker: this is the outer one's next header
                    return
                if member.issym() or member.islnk():
                    raise _refused(path, member.name, "is a link")
                if not (member.isreg() or member.isdir()):
                    raise _refused(path, member.name, "is neither a file nor a folder")
                if member.issparse() or member.offset_data + member.size > length:
                    raise _refused(path, member.name, f"claims {member.size} bytes, more than the archive holds")
                name = _safe(path, member.name)
                if name and not IGNORED.search(name):
                    yield name, name, member.offset_data, -1 if member.isdir() else member.size
                archive.members = []  # type: ignore[attr-defined]  # else tarfile keeps them all, 1 KB each
    except tarfile.TarError as error:
        raise ValueError(f"archive {str(path)!r} is damaged: {error}; download it again") from error


def _at(file: BinaryIO, start: int) -> BinaryIO:
    file.seek(start)
    return file


def _safe(path: Path, name: str) -> str:
    """The name without `./` and a last `/`. Raises ValueError when it leads out of the archive."""
    parts = [part for part in name.split("/") if part not in ("", ".")]
    if name.startswith("/") or ".." in parts or "\\" in name or "\0" in name or re.match(r"[A-Za-z]:", name):
        raise _refused(path, name, "leads out of the archive")
    return "/".join(parts)


def _refused(path: Path, name: str, what: str) -> ValueError:
    return ValueError(
        f"archive {str(path)!r}: member {name!r} {what}; no dataset needs that, so the archive is not read: get it from its "
        "makers, or unpack it yourself and look"
    )
