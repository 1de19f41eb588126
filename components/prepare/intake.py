"""Images on their way into the store: checked by threads, counted, and passed on in the listing's order."""

from collections import Counter, deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice

import numpy as np

from components import progress
from components.images import store
from components.prepare.check import Checked, check
from components.prepare.contract import DatasetParams
from components.prepare.readers import Item, Listing

SAMPLE = 2000  # images that mean and std are measured on
CHUNK = 32  # images a task of the pool: one alone, of 32 pixels, takes no longer than handing it over


class Intake:
    """Rows of each split of a listing, and what was found on the way. `threads` changes speed and no byte."""

    def __init__(self, name: str, listing: Listing, params: DatasetParams, threads: int) -> None:
        self.images = 0
        self.bytes = 0
        self.skipped: list[dict[str, str]] = []
        self.classes: dict[str, dict[str, int]] = {}  # images of each class, by split
        self._name, self._listing, self._params, self._threads = name, listing, params, threads
        total = sum(len(items) for items in listing.splits.values())
        self._meter = progress.Meter(f"prepare {name}", total, "images")
        self._histogram = np.zeros((3, 256), np.int64)

    def rows(self, split: str) -> Iterator[store.Row]:
        """Rows of the images that decode. Raises ValueError for a damaged one, as `on_error` and `skip_budget` say."""
        items = self._listing.splits[split]
        groups: Counter[str] = Counter()
        for item, checked in zip(items, self._checked(items, self._sample(split)), strict=True):
            self._meter.advance(1)
            if checked.fault:
                self._skip(item, checked.fault)
                continue
            if checked.histogram:
                self._histogram += np.reshape(checked.histogram, (3, 256))
            groups[item.group] += 1
            self.images += 1
            self.bytes += sum(len(value) for value in checked.row.values() if isinstance(value, bytes))
            yield checked.row
        lost = sorted({item.group for item in items} - set(groups))
        if lost:
            what = f"class {lost[0]!r} of split {split!r}" if lost[0] else f"split {split!r}"
            raise ValueError(f"{self._name}: every image of {what} was skipped; bring them back or remove the folder")
        if groups.keys() != {""}:
            self.classes[split] = dict(groups)

    def mean_std(self) -> tuple[list[float], list[float]]:
        """Mean and standard deviation [3] of the sampled pixels / 255, from whole numbers: exact, in whatever order."""
        levels = np.arange(256)
        pixels = self._histogram.sum(1)
        mean = self._histogram @ levels / pixels
        variance = self._histogram @ levels**2 / pixels - mean**2
        return (mean / 255).tolist(), (np.sqrt(variance.clip(0)) / 255).tolist()  # rounding

    def _sample(self, split: str) -> set[int]:
        """Places of the images that mean and std are measured on: of the first split, spread evenly."""
        count = len(self._listing.splits[split]) if split == next(iter(self._listing.splits)) else 0
        return {place * count // SAMPLE for place in range(SAMPLE if count else 0)}

    def _checked(self, items: list[Item], sample: set[int]) -> Iterator[Checked]:
        """Each item's check, in order. Only a few chunks are under way at a time, so that memory stays flat."""
        root, kind = self._listing.root, self._listing.kind

        def chunk(start: int) -> list[Checked]:
            stop = min(start + CHUNK, len(items))
            return [check(root, items[place], kind, place in sample) for place in range(start, stop)]

        with ThreadPoolExecutor(self._threads) as pool:
            starts = iter(range(0, len(items), CHUNK))
            under_way = deque(pool.submit(chunk, start) for start in islice(starts, 2 * self._threads))
            try:
                while under_way:
                    yield from under_way.popleft().result()
                    under_way.extend(pool.submit(chunk, start) for start in islice(starts, 1))
            finally:  # the consumer may stop early, at a fault
                pool.shutdown(cancel_futures=True)

    def _skip(self, item: Item, fault: str) -> None:
        if self._params.on_error == "fail":
            way_out = "replace the file"
            if self._listing.kind != "video":
                way_out += ", remove it, or set on_error: skip (with a skip_budget) to leave such images out"
            raise ValueError(
                f"{self._name}: image {str(self._listing.root / item.path)!r} cannot be read: {fault}; {way_out}"
            )
        self.skipped.append({"path": item.path, "reason": fault})
        if len(self.skipped) > self._params.skip_budget:
            names = ", ".join(entry["path"] for entry in self.skipped[:3])
            raise ValueError(
                f"{self._name}: {len(self.skipped)} images cannot be read (the first: {names}), and skip_budget is "
                f"{self._params.skip_budget}; repair the copy in {str(self._listing.root)!r} or raise skip_budget"
            )
