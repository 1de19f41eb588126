"""Reader of manifests: a CSV or Parquet file that lists images, with their classes, splits and checksums if there are any."""

import errno
import hashlib
import os
import posixpath
import stat
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from components.prepare import table
from components.prepare.holders import LARGEST
from components.prepare.published import Release
from components.prepare.readers import Item, Listing, train_first
from components.stage import file_hash

LAYOUT = (
    "a CSV or Parquet file, or a folder with manifest.csv or manifest.parquet, with a column path, relative to the file's folder, and, if "
    "you like, label, split, bytes and sha256"
)
PUBLISHED: list[Release] = []
NAMES = ("manifest.csv", "manifest.parquet")
NO_FILE = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG)


class Listed(NamedTuple):
    """One image: its path, its size in bytes now, and what its size (-1 any) and sha256 ("" any) must be when it is read."""

    path: str
    size: int
    bytes: int
    sha256: str


class Paths:
    """`Files` of listed images; relative paths are below `home`."""

    def __init__(self, home: Path) -> None:
        self.home = home

    def read(self, file: Listed) -> bytes:
        """The file as it is now. Raises ValueError when it is not the one that was listed."""
        if file.size > LARGEST:
            raise ValueError(f"it has {file.size / 2**30:.0f} GiB, and an image has at most 1 GiB")
        with open(os.path.join(self.home, file.path), "rb") as opened:
            data = opened.read()
        if file.bytes not in (-1, len(data)):
            raise ValueError(f"it has {len(data)} bytes, and the manifest says {file.bytes}")
        if file.sha256 and (found := hashlib.sha256(data).hexdigest()) != file.sha256:
            raise ValueError(f"its sha256 is {found}, and the manifest says {file.sha256}")
        return data

    def size(self, file: Listed) -> int:
        """As it was when it was listed."""
        return file.size

    def where(self, file: Listed) -> str:
        """Its path."""
        return os.path.join(self.home, file.path)


def read_file(source: Path) -> Listing:
    """Images in the order of their rows, in split train where no other is given.

    An image's path in the dataset is `name`, or its path in the manifest. A split has a label in every row or in none. Raises ValueError
    for what `table.load` refuses, an image or a name that is there twice, images that are no files, and a class that train lacks.
    """
    path = _manifest(source)
    rows = table.load(path)
    count = len(rows.labels)
    paths = [posixpath.normpath(text) for text in rows.columns["path"]]
    names = rows.columns.get("name", [text.lstrip("/") for text in paths])
    for values, what in ((paths, "path"), (names, "name")):
        _check_once(values, what, path)
    home = _home(path, paths[0])
    files, stamp = _files(home, paths, rows, path)
    numbers = {label: number for number, label in enumerate(rows.classes)}
    shared = [{"label": number} for number in range(-1, len(numbers))]
    splits: dict[str, list[Item]] = {}
    for file, name, label, split in zip(
        files, names, rows.labels, rows.columns.get("split", ["train"] * count), strict=True
    ):
        group = "" if label is None else rows.classes[numbers[label]]
        each = shared[0 if label is None else numbers[label] + 1]
        splits.setdefault(split, []).append(Item(name, each, group, name, file))
    _check_labels(splits, path, rows.given)
    return Listing(Paths(home), "images", rows.classes, {split: splits[split] for split in train_first(splits)}, stamp)


def _manifest(source: Path) -> Path:
    if not source.is_dir():
        return source
    there = [source / name for name in NAMES if (source / name).is_file()]
    if len(there) != 1:
        found = "both of them" if there else "neither"
        raise ValueError(f"{str(source)!r} has {found}: {' and '.join(NAMES)}; a folder is read by one of them")
    return there[0]


def _home(path: Path, first: str) -> Path:
    """The manifest's folder. Of a manifest that is a link it may be that of the file itself, if the images are there."""
    here, there = path.parent, path.resolve().parent
    return there if _status(os.path.join(here, first)) is None and _status(os.path.join(there, first)) else here


def _check_once(values: list[str], what: str, path: Path) -> None:
    seen: set[str] = set()
    for row, value in enumerate(values, 1):
        if value in seen:
            raise ValueError(f"{str(path)!r}: row {row} has {what} {value!r} again; list each image once")
        seen.add(value)


def _files(home: Path, paths: list[str], rows: table.Table, path: Path) -> tuple[list[Listed], str]:
    """What reads each image, and a stamp that changes when the manifest or an image does."""
    digest = hashlib.sha256(file_hash(path).encode())
    files: list[Listed] = []
    lost: list[str] = []
    sizes: Iterable[int] = map(int, rows.columns["bytes"]) if "bytes" in rows.columns else [-1] * len(paths)
    hashes = rows.columns.get("sha256", [""] * len(paths))
    for name, size, sha256 in zip(paths, sizes, hashes, strict=True):
        found = _status(os.path.join(home, name))
        if found is None:
            lost.append(name)
            continue
        files.append(Listed(name, found.st_size, size, sha256.lower()))
        digest.update(f"{found.st_size} {found.st_mtime_ns}\n".encode())
    if lost:
        raise ValueError(
            f"{len(lost)} of the {len(paths)} images in {str(path)!r} are no files; the first is {os.path.join(home, lost[0])!r}: paths "
            "are relative to the manifest's folder, or absolute"
        )
    return files, digest.hexdigest()


def _status(path: str) -> os.stat_result | None:
    """Of a file, None where there is none: a name too long and a link in a circle lead to no file either."""
    try:
        found = os.stat(path)
    except OSError as error:
        if error.errno in NO_FILE:
            return None
        raise
    return found if stat.S_ISREG(found.st_mode) else None


def _check_labels(splits: dict[str, list[Item]], path: Path, given: bool) -> None:
    """Raises ValueError for a split in which some rows have no label, and for a class that train lacks, which a slip of the pen makes,
    unless the classes are given.
    """
    groups = {split: {each.group for each in items} for split, items in splits.items()}
    for split, own in groups.items():
        if len(own) > 1 and "" in own:
            bare = sum(not each.group for each in splits[split])
            raise ValueError(
                f"{str(path)!r}: label is empty in {bare} of the {len(splits[split])} rows of split {split!r}; give each a label, or none"
            )
        unknown = sorted(own - groups.get("train", own) - {""})
        if unknown and not given and "" not in groups["train"]:
            raise ValueError(
                f"{str(path)!r}: split {split!r} has label {unknown[0]!r}, which train does not have; every class must have training "
                "images: add some, or correct the label"
            )
