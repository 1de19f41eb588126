"""Lists of images: which of a split's images a task learns from, such as ImageNet's 1 %.

A list is a text file with an image a line: its name, with or without folders before it and a suffix behind it, in any case
(SimCLR's list has `n01440764_10026.JPEG`). The single line `*` stands for every image, so that every task can name a list.
"""

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

EVERY = "*"
SUFFIXES = (".jpeg", ".jpg", ".png")


def read_list(path: Path, sha256: str) -> list[str] | None:
    """The lines of the list at `path`; None when it stands for every image.

    Raises ValueError for a file of another hash than `sha256`, an empty one and one with a name twice.
    """
    data = path.read_bytes()
    if (found := hashlib.sha256(data).hexdigest()) != sha256:
        raise ValueError(
            f"train list {str(path)!r} has sha256 {found}, but train_list_sha256 is {sha256}: it is another list; "
            f"restore the file, or give its own hash if you mean this list"
        )
    names = [line.strip() for line in data.decode("utf-8").splitlines() if line.strip()]
    if names == [EVERY]:
        return None
    if not names:
        raise ValueError(f"train list {str(path)!r} is empty; name an image a line, or write {EVERY!r} for every image")
    seen: dict[tuple[str, ...], str] = {}
    for name in names:
        if (key := _parts(name)) in seen:
            raise ValueError(f"train list {str(path)!r} names {name!r} twice ({seen[key]!r}); keep one of the lines")
        seen[key] = name
    return names


def listed(names: Sequence[str] | None, paths: NDArray[Any], where: str) -> NDArray[np.int64]:
    """Rows of the images in `names`, in the dataset's order: a name fits the one path [n] that ends in it.

    `where` starts errors and says which list and dataset they are about. Raises ValueError when an image is missing, since a
    score on a part of a list is not that list's protocol, and when a name fits several images.
    """
    if names is None:
        return np.arange(len(paths), dtype=np.int64)
    wanted = [_parts(name) for name in names]
    candidates: dict[str, list[int]] = {parts[-1]: [] for parts in wanted}
    known = [_parts(str(path)) for path in paths]
    for row, parts in enumerate(known):
        if parts[-1] in candidates:
            candidates[parts[-1]].append(row)
    rows, missing = [], []
    for name, parts in zip(names, wanted, strict=True):
        found = [row for row in candidates[parts[-1]] if known[row][-len(parts) :] == parts]
        if len(found) > 1:
            raise ValueError(
                f"{where}: the list's {name!r} fits {len(found)} images, {str(paths[found[0]])!r} and "
                f"{str(paths[found[1]])!r} among them; write the folders before the name"
            )
        rows += found
        missing += [] if found else [name]
    if missing:
        raise ValueError(
            f"{where}: {len(names) - len(missing)} of the list's {len(names)} images found among {len(paths)}, "
            f"{missing[0]!r} is the first that is missing; complete the dataset, or take a list of what it has, under another "
            f"name and hash, since the score will belong to another protocol"
        )
    if len(set(rows)) < len(rows):
        raise ValueError(f"{where}: two lines of the list name the same image; keep one of them")
    return np.array(sorted(rows), dtype=np.int64)


def _parts(name: str) -> tuple[str, ...]:
    """Folders and name without the suffix of an image."""
    *folders, last = name.replace("\\", "/").strip("/").split("/")
    stem, dot, suffix = last.rpartition(".")
    return (*folders, stem if stem and (dot + suffix).lower() in SUFFIXES else last)
