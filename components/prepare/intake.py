"""Images on their way into shards: checked by threads or processes, counted, and passed on in the listing's order."""

import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from components import progress
from components.prepare import shards
from components.prepare.check import Checked, Checker
from components.prepare.contract import DatasetParams
from components.prepare.readers import Item, Listing
from components.prepare.workers import KilledError, by_processes, by_threads

SAMPLE = 2000  # images that mean and std are measured on
CHUNK = 32  # images a task of the pool: one alone, of 32 pixels, takes no longer than handing it over
MANY = 20_000
"""Images from which on processes are worth their start; below, threads do, which share one Python lock."""


class Intake:
    """Shards of each split of a listing. The number of processes changes the speed and no byte."""

    def __init__(self, name: str, listing: Listing, params: DatasetParams, processes: int) -> None:
        self._name, self._listing, self._params = name, listing, params
        self._processes = processes
        self._total = sum(len(items) for items in listing.splits.values())
        self._meter = progress.Meter(f"prepare {name}", self._total, "images")
        self._skipped: list[str] = []
        self._checker = Checker(
            listing.files, listing.kind, params.check == "decode", params.resize_short_side, params.quality
        )

    def run(self, folder: Path) -> dict[str, list[shards.Tally]]:
        """Fills `folder`/<split>. Raises ValueError for a damaged image, as `on_error` and `skip_budget` say."""
        tallies: dict[str, list[shards.Tally]] = {}
        for split, items in self._listing.splits.items():
            before = shards.finished(folder / split)
            self._skipped += [entry["path"] for tally in before for entry in tally.skipped]
            done = sum(tally.items for tally in before)
            if done:
                progress.show(f"prepare {self._name}: {done} of {len(items)} images of {split} are there, going on")
                self._meter.skip(done)
            limit = self._params.shard_mib * 2**20
            tallies[split] = shards.fill(
                folder / split,
                self._listing.kind,
                items,
                limit,
                partial(self._checked, items, self._sample(split)),
                self._on_fault,
            )
        return tallies

    def _sample(self, split: str) -> set[int]:
        """Places of the images that mean and std are measured on: of the first split, spread evenly."""
        count = len(self._listing.splits[split]) if split == next(iter(self._listing.splits)) else 0
        return {place * count // SAMPLE for place in range(SAMPLE if count else 0)}

    def _checked(self, items: list[Item], sample: set[int], first: int) -> Iterator[Checked]:
        """Each item's check, in order."""
        chunks = (
            [(items[place], place in sample) for place in range(start, min(start + CHUNK, len(items)))]
            for start in range(first, len(items), CHUNK)
        )
        alone = self._processes == 1 or len(items) - first < MANY
        by = by_threads if alone else by_processes
        try:
            for chunk in by(self._checker, chunks, self._processes):
                for each in chunk:
                    self._meter.advance(1)
                    yield each
        except KilledError as error:
            raise RuntimeError(
                f"{self._name}: {error}; whole shards are kept: start the stage again, with more memory or fewer cores"
            ) from error

    def _on_fault(self, item: Item, fault: str) -> dict[str, str]:
        if self._params.on_error == "fail":
            way_out = "replace the file"
            if self._listing.kind != "video":
                way_out += ", remove it, or set on_error: skip (with a skip_budget) to leave such images out"
            where = self._listing.files.where(item.file)
            raise ValueError(f"{self._name}: image {where!r} cannot be read: {fault}; {way_out}")
        self._skipped.append(item.path)
        if len(self._skipped) > self._params.skip_budget:
            names = ", ".join(self._skipped[:3])
            raise ValueError(
                f"{self._name}: {len(self._skipped)} images cannot be read (the first: {names}), and skip_budget is "
                f"{self._params.skip_budget}; repair the copy in {self._params.source!r} or raise skip_budget"
            )
        return {"path": item.path, "reason": fault}


def processes() -> int:
    """Cores this process may use."""
    return len(os.sched_getaffinity(0))
