"""The files of a raw dataset as one tree of names, whether they lie in a folder, in an archive or in archives in a folder.

Archives count as if they were unpacked where they lie; nothing of them is written to disk, but that a compressed tar, in which
nothing can be found without reading all before it, is first uncompressed into a scratch folder.
"""

import errno
import hashlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path

from components.prepare.archives import opened
from components.prepare.holders import Entry, Folder, Holder, Holders

ARCHIVES = (".zip", ".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz")


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

    def add_parents(self, name: str) -> None:
        """The folders that a file or folder lies in."""
        folder = name.rpartition("/")[0]
        while folder and folder not in self.folders:
            self.folders.add(folder)
            folder = folder.rpartition("/")[0]

    def tree(self, source: Path) -> Tree:
        digest = hashlib.sha256()
        for stamp in sorted(self.stamps):
            digest.update(os.fsencode(stamp) + b"\n")
        return Tree(source, Holders(self.holders), self.entries, self.folders, digest.hexdigest())


def grow(source: Path, scratch: Path) -> Tree:
    """The tree of a folder or an archive.

    Raises ValueError for a file that is no archive, a link that leads back into a folder above it, pipes and devices, and an archive that
    is damaged or holds links, names that lead out of it, a name twice, or sizes that cannot be true.
    """
    growing = _Growing()
    if source.is_dir():
        archives = _add_folder(growing, source)
        own = set(growing.entries) if archives else set()
        for archive in archives:
            _add_archive(growing, source / archive, scratch, own)
    else:
        _add_archive(growing, source, scratch, set())
    return growing.tree(source)


def _add_folder(growing: _Growing, source: Path) -> list[str]:
    """Adds its files; returns the names of the archives that lie at its top."""
    growing.holders.append(Folder(source))
    holder, archives = len(growing.holders) - 1, []
    for name, size, changed_ns in _walk(str(source)):
        if size < 0:
            growing.folders.add(name)
        elif "/" in name or not name.lower().endswith(ARCHIVES):
            growing.add(name, Entry(holder, name, 0, size), changed_ns)
        else:
            archives.append(name)
    return sorted(archives)


def _walk(top: str) -> Iterator[tuple[str, int, int]]:
    """Name, size and time of change of each file below; folders have size -1. Links are followed."""
    waiting: list[tuple[str, tuple[tuple[int, int], ...]]] = [("", ())]
    while waiting:
        folder, above = waiting.pop()
        path = os.path.join(top, folder)
        try:
            status = os.stat(path)
            here = (status.st_dev, status.st_ino)
            if here in above:
                raise ValueError(
                    f"folder {path!r} is a link to a folder above it, so that it has no end; remove the link"
                )
            with os.scandir(path) as entries:
                for entry in entries:
                    if entry.name.startswith(".") or entry.name == "__MACOSX":
                        continue
                    name = f"{folder}/{entry.name}" if folder else entry.name
                    size, changed_ns = _size(entry)
                    yield name, size, changed_ns
                    if size < 0:
                        waiting.append((name, (*above, here)))
        except OSError as error:
            raise ValueError(f"folder {path!r} cannot be listed: {error.strerror}; mend or remove it") from error


def _size(entry: os.DirEntry[str]) -> tuple[int, int]:
    """Bytes of a file, or -1 of a folder, and when it was changed. Raises ValueError for what would not end to be read."""
    try:
        status = entry.stat()
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ELOOP):  # a link to nothing or to itself: it is told when it is read
            return 0, 0
        raise
    if stat.S_ISDIR(status.st_mode):
        return -1, 0
    if not stat.S_ISREG(status.st_mode):
        raise ValueError(f"{entry.path!r} is a pipe, a socket or a device; raw data are files and folders: remove it")
    return status.st_size, status.st_mtime_ns


def _add_archive(growing: _Growing, path: Path, scratch: Path, own: set[str]) -> None:
    """Adds its members, unless all its files are among `own`, those that lie in the folder itself: it was unpacked there."""
    holder, members, changed_ns = opened(path, scratch)
    files = [member.name for member in members if member.size >= 0]
    if files and own.issuperset(files):
        return
    growing.holders.append(holder)
    for name, inner, start, size in members:
        growing.add_parents(name)
        if size < 0:
            growing.folders.add(name)
            continue
        if name in growing.entries:
            raise ValueError(f"archive {str(path)!r} holds {name!r}, which is there already; remove one of the two")
        growing.add(name, Entry(len(growing.holders) - 1, inner, start, size), changed_ns)
    both = min(growing.folders & growing.entries.keys(), default=None)
    if both is not None:
        raise ValueError(f"archive {str(path)!r}: {both!r} is both a file and a folder; remove one of the two")
