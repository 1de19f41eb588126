"""Checked images into shards, each with a tally beside it, so that an interrupted preparation goes on at the last whole one."""

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from components.images.shard import bytes_of, write_shard
from components.prepare.check import Checked
from components.prepare.readers import Item
from components.stage import atomic, remove


class Tally(NamedTuple):
    """What one shard took in: of `items` of the listing, those that are no row are in `skipped`."""

    items: int
    skipped: list[dict[str, str]]
    bytes: int  # of images and masks
    file_bytes: int  # of the shard
    histogram: NDArray[np.int64]  # [3, 256]
    digests: NDArray[np.uint8]  # [rows, 32]
    raw: NDArray[np.uint64]  # [rows]
    sizes: NDArray[np.int32]  # [rows, 2], width and height
    places: NDArray[np.int64]  # [rows], of the rows in the split's listing

    def save(self, path: Path) -> None:
        """Atomically; what is there is whole."""
        plain = {"items": self.items, "skipped": self.skipped, "bytes": self.bytes, "file_bytes": self.file_bytes}
        arrays = {name: value for name, value in self._asdict().items() if isinstance(value, np.ndarray)}
        with atomic(path) as temporary, temporary.open("wb") as file:
            np.savez(file, plain=np.array(json.dumps(plain)), allow_pickle=False, **arrays)

    @classmethod
    def load(cls, path: Path) -> "Tally":
        """What `save` wrote."""
        with np.load(path, allow_pickle=False) as found:
            plain = json.loads(str(found["plain"]))
            arrays = {name: found[name] for name in ("histogram", "digests", "raw", "sizes", "places")}
        return cls(**plain, **arrays)


def finished(folder: Path) -> list[Tally]:
    """Tallies of the whole shards that an earlier try left in `folder`, up to the first that is missing; later ones are removed."""
    tallies: list[Tally] = []
    while (path := folder / f"shard-{len(tallies):05d}.npz").is_file():
        tally, shard = Tally.load(path), path.with_suffix(".arrow")
        if tally.file_bytes and not (shard.is_file() and shard.stat().st_size == tally.file_bytes):
            break
        tallies.append(tally)
    for path in folder.glob("shard-*"):
        if int(path.stem.removeprefix("shard-")) >= len(tallies):
            remove(path)
    return tallies


def fill(
    folder: Path,
    kind: str,
    items: list[Item],
    limit: int,
    checked: Callable[[int], Iterator[Checked]],
    on_fault: Callable[[Item, str], dict[str, str]],
) -> list[Tally]:
    """Shards of at most `limit` bytes of images (or one row) in `folder`; the tallies of all, those of earlier tries first.

    `checked` gives what comes of the items from a place on; `on_fault` an entry of the card for one that cannot be stored, or raises.
    """
    folder.mkdir(parents=True, exist_ok=True)
    tallies = finished(folder)
    start = sum(tally.items for tally in tallies)
    shard = _Shard(start)
    for place, each in enumerate(checked(start), start):
        if each.fault:
            shard.skipped.append(on_fault(items[place], each.fault))
        else:
            size = bytes_of(each.row, kind)
            if shard.rows and shard.bytes + size > limit:
                tallies.append(shard.write(folder / f"shard-{len(tallies):05d}", kind, place))
                shard = _Shard(place)
            shard.add(each, place, size)
    if shard.rows or shard.skipped:
        tallies.append(shard.write(folder / f"shard-{len(tallies):05d}", kind, len(items)))
    return tallies


class _Shard:
    def __init__(self, start: int) -> None:
        self.start, self.bytes = start, 0
        self.rows: list[Checked] = []
        self.skipped: list[dict[str, str]] = []
        self.places: list[int] = []
        self.histogram = np.zeros(768, np.int64)

    def add(self, each: Checked, place: int, size: int) -> None:
        self.rows.append(each)
        self.places.append(place)
        self.bytes += size
        if each.histogram:
            self.histogram += each.histogram

    def write(self, path: Path, kind: str, stop: int) -> Tally:
        """Writes the rows to `path`.arrow and then their tally, which says that they are there."""
        shard, written = path.with_suffix(".arrow"), 0
        if self.rows:
            with atomic(shard) as temporary:
                write_shard(temporary, [each.row for each in self.rows], kind)
                _to_disk(temporary)
            written = shard.stat().st_size
        tally = Tally(
            stop - self.start,
            self.skipped,
            self.bytes,
            written,
            self.histogram.reshape(3, 256),
            np.frombuffer(b"".join(each.digest for each in self.rows), np.uint8).reshape(-1, 32),
            np.frombuffer(b"".join(each.raw for each in self.rows), np.uint64),
            np.array([each.size for each in self.rows], np.int32).reshape(-1, 2),
            np.array(self.places, np.int64),
        )
        tally.save(path.with_suffix(".npz"))
        return tally


def _to_disk(path: Path) -> None:
    """A tally must not outlive a crash of the machine that its shard does not."""
    with path.open("rb") as file:
        os.fsync(file.fileno())


def together(tallies: list[Tally], name: str) -> NDArray[Any]:
    """One field of all tallies, joined."""
    return np.concatenate([getattr(tally, name) for tally in tallies])
