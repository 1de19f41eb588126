"""Folders and archives of known content, and what is found in them again."""

import io
import tarfile
import tempfile
import warnings
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

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
