"""Readers of raw layouts: each lists what there is, in one order, and opens no image.

A reader is a module of the format's name with `LAYOUT`, a line for a person; `PUBLISHED`, the sizes of its releases; and `read(tree) ->
Listing`, which raises ValueError when the files are not laid out as they should be. A reader whose source is a file of its own kind has
`read_file(path) -> Listing` as well.
"""

import hashlib
import os
from collections import defaultdict
from collections.abc import Iterable
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from components.images.subset import listed
from components.prepare.holders import Files
from components.prepare.tree import Tree

# Those that cannot be decoded are listed all the same, so that they are reported and never silently left out.
IMAGE_SUFFIXES = frozenset((".jpg", ".jpeg", ".png", ".webp", ".gif", ".bmp", ".tif", ".tiff", ".heic", ".avif"))


class Item(NamedTuple):
    """One image.

    `path` is its name in the prepared dataset, the same whatever it was read from; `file` is what `Listing.files` reads it by.
    """

    path: str
    values: dict[str, Any]  # of its kind's own columns
    group: str  # images of one group and split are counted together: their class, "" without
    unit: str  # images of one unit are kept or dropped together
    file: Any
    mask: Any = None  # the annotation's file, None where there is none


class Listing(NamedTuple):
    """All images of a raw dataset, by split; `train` is first where there is one."""

    files: Files
    kind: str
    classes: list[str]
    splits: dict[str, list[Item]]
    stamp: str  # changes when a raw file does


def item(
    tree: Tree,
    name: str,
    values: dict[str, Any],
    *,
    group: str = "",
    unit: str = "",
    path: str = "",
    mask: str = "",
) -> Item:
    """The image that is the tree's file `name`. Without `path` and `unit` they are its name."""
    path = path or printable(name)
    return Item(path, values, group, unit or path, tree.entries[name], tree.entries[mask] if mask else None)


def printable(name: str) -> str:
    """A file's name as text: bytes that are no UTF-8, which file systems allow, are written as `\\xff`."""
    return name if name.isascii() else os.fsencode(name).decode("utf-8", "backslashreplace")


def find_root(tree: Tree, inner: str, marker: str) -> Tree | None:
    """The tree or its folder `inner`, whichever holds the folder `marker`."""
    if marker in tree.folders:
        return tree
    return tree.under(inner) if f"{inner}/{marker}" in tree.folders else None


def there(tree: Tree, names: list[str], where: str) -> None:
    """Raises ValueError when some of the files that the list `where` names are not in the tree."""
    lacks = [name for name in names if name not in tree.entries]
    if lacks:
        raise ValueError(
            f"{len(lacks)} of the {len(names)} images that {where!r} names are no files; the first is {tree.where(lacks[0])!r}: "
            "complete the copy"
        )


def in_order(items: list[Item], where: str) -> list[Item]:
    """Sorted by path. Raises ValueError when the list `where` names an image twice."""
    ordered = sorted(items, key=lambda each: each.path)
    twice = next((one.path for one, other in pairwise(ordered) if one.path == other.path), None)
    if twice is not None:
        raise ValueError(f"{where!r} has image {twice!r} twice; an image has one class: remove the other")
    return ordered


def train_first(names: Iterable[str]) -> list[str]:
    """Split names in the order every card has."""
    return sorted(names, key=lambda name: (name != "train", name))


def is_image(name: str) -> bool:
    """Whether the name is that of an image."""
    return os.path.splitext(name)[1].lower() in IMAGE_SUFFIXES


def keep(items: list[Item], per_class: int, seed: int) -> list[Item]:
    """At most `per_class` units of each group, in their old order: those whose (seed, unit) hash lowest, so files that are
    added or removed elsewhere do not change the choice. 0 keeps all.
    """
    if per_class == 0:
        return items
    units: dict[str, set[str]] = defaultdict(set)
    for each in items:
        units[each.group].add(each.unit)
    kept = {
        (group, unit)
        for group, names in units.items()
        for unit in sorted(names, key=lambda name: hashlib.sha256(f"{seed}/{name}".encode()).digest())[:per_class]
    }
    return [each for each in items if (each.group, each.unit) in kept]


def only(items: list[Item], names: list[str] | None, where: str) -> list[Item]:
    """The images of the list `names`, None for all. Raises ValueError, starting with `where`, when one is missing."""
    if names is None:
        return items
    return [items[row] for row in listed(names, np.array([each.path for each in items], object), where).tolist()]
