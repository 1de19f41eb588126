"""Readers of raw layouts: each lists what there is, in one order, and opens no image.

A reader is `read(source) -> Listing`; it raises ValueError when the folder is not laid out as it should be.
"""

import hashlib
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

# The last ones cannot be stored. They are listed all the same, so that they are reported and never silently left out.
IMAGE_SUFFIXES = frozenset((".jpg", ".jpeg", ".png", ".webp", ".gif", ".bmp", ".tif", ".tiff", ".heic", ".avif"))


class Item(NamedTuple):
    """One image: its path under the listing's root, the values of its kind's own columns, and what `limit` counts."""

    path: str
    values: dict[str, Any]
    group: str  # images of one group and split share a limit
    unit: str  # images of one unit are kept or dropped together
    mask: str = ""  # path of the annotation, "" where there is none


class Listing(NamedTuple):
    """All images of a raw dataset, by split; `train` is first where there is one."""

    root: Path
    kind: str
    classes: list[str]
    splits: dict[str, list[Item]]


def find_root(source: Path, inner: str, marker: str) -> Path | None:
    """`source` or its folder `inner`, whichever holds `marker`."""
    return next((root for root in (source, source / inner) if (root / marker).is_dir()), None)


def train_first(names: Iterable[str]) -> list[str]:
    """Split names in the order every card has."""
    return sorted(names, key=lambda name: (name != "train", name))


def is_image(path: Path) -> bool:
    """Whether the name is that of an image; hidden files, such as macOS's `._x.jpg`, are none."""
    return path.suffix.lower() in IMAGE_SUFFIXES and not path.name.startswith(".")


def keep(items: list[Item], limit: int, seed: int) -> list[Item]:
    """At most `limit` units of each group, in their old order: those whose (seed, unit) hash lowest, so files that are
    added or removed elsewhere do not change the choice.
    """
    if limit == 0:
        return items
    units: dict[str, set[str]] = defaultdict(set)
    for item in items:
        units[item.group].add(item.unit)
    kept = {
        (group, unit)
        for group, names in units.items()
        for unit in sorted(names, key=lambda name: hashlib.sha256(f"{seed}/{name}".encode()).digest())[:limit]
    }
    return [item for item in items if (item.group, item.unit) in kept]
