"""The dataset's card: what is in it, for a person to read and for stages to trust."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from components.images import AS_THEY_CAME, store
from components.prepare.contract import DatasetParams
from components.prepare.published import Release, Size
from components.prepare.readers import Listing
from components.prepare.shards import Tally, together

SHOWN = 20
"""Pairs of duplicates that a card names."""


def card(
    name: str, params: DatasetParams, listing: Listing, tallies: dict[str, list[Tally]], lacks: list[str]
) -> dict[str, Any]:
    """The card's content. Raises ValueError when a whole class or split was skipped."""
    splits = {}
    for split, shards in tallies.items():
        rows = [row.tobytes() for row in together(shards, "digests")]
        splits[split] = store.about_split(rows, sum(bool(tally.file_bytes) for tally in shards))
        splits[split]["bytes"] = sum(tally.bytes for tally in shards)
        splits[split]["sizes"] = _sizes(together(shards, "sizes"))
        classes = _classes(name, listing, split, together(shards, "places"))
        if classes:
            splits[split]["classes"] = classes
    mean, std = _mean_std(np.sum([tally.histogram for shards in tallies.values() for tally in shards], axis=0))
    copies, pairs = _duplicates(listing, tallies)
    return {
        "name": name,
        "kind": listing.kind,
        "format": params.format,
        "licence": params.licence,
        "stored": _stored(params),
        "classes": listing.classes,
        "splits": splits,
        "mean": mean,
        "std": std,
        "missing": lacks,
        "skipped": [entry for shards in tallies.values() for tally in shards for entry in tally.skipped],
        "duplicates": {"images": copies, "pairs": pairs},
    }


def _stored(params: DatasetParams) -> str:
    if not params.resize_short_side:
        return AS_THEY_CAME
    return f"a short side of at most {params.resize_short_side} pixels, larger ones as JPEG of quality {params.quality}"


def sizes(listing: Listing) -> Release:
    """How many classes and images each split of a listing has."""
    found = {}
    for split, items in listing.splits.items():
        found[split] = Size(len({item.group for item in items} - {""}), len(items))
    return found


def _sizes(sizes_N2: NDArray[np.int32]) -> dict[str, list[int]]:
    """Least, median and greatest width and height in pixels."""
    middle = len(sizes_N2) // 2
    ordered = np.sort(sizes_N2, axis=0)
    return {
        side: [int(ordered[place, column]) for place in (0, middle, -1)]
        for column, side in enumerate(("width", "height"))
    }


def _classes(name: str, listing: Listing, split: str, places: NDArray[np.int64]) -> dict[str, int]:
    """Images of each class of a split, {} where there are no classes."""
    items = listing.splits[split]
    counts = dict.fromkeys(dict.fromkeys(item.group for item in items), 0)
    for place in places.tolist():
        counts[items[place].group] += 1
    lost = sorted(group for group, count in counts.items() if not count)
    if lost:
        what = f"class {lost[0]!r} of split {split!r}" if lost[0] else f"split {split!r}"
        raise ValueError(f"{name}: every image of {what} was skipped; bring them back or remove the folder")
    return {} if counts.keys() == {""} else counts


def _mean_std(histogram: NDArray[np.int64]) -> tuple[list[float], list[float]]:
    """Mean and standard deviation [3] of the sampled pixels / 255, from whole numbers: exact, in whatever order."""
    levels = np.arange(256)
    pixels = histogram.sum(1)
    mean = histogram @ levels / pixels
    variance = histogram @ levels**2 / pixels - mean**2
    return (mean / 255).tolist(), (np.sqrt(variance.clip(0)) / 255).tolist()  # rounding


def _duplicates(listing: Listing, tallies: dict[str, list[Tally]]) -> tuple[int, list[list[str]]]:
    """How many images have the bytes of another, and the first pairs; those across two splits come first, since they leak."""
    raw = np.concatenate([together(shards, "raw") for shards in tallies.values()])
    origin = [(split, int(place)) for split, shards in tallies.items() for place in together(shards, "places")]
    order = np.argsort(raw, kind="stable")
    same = np.flatnonzero(raw[order][1:] == raw[order][:-1])
    copies = len(np.unique(np.concatenate([order[same], order[same + 1]])))
    found = [(origin[order[place]], origin[order[place + 1]]) for place in same]
    found.sort(key=lambda pair: (pair[0][0] == pair[1][0], pair))
    return copies, [[listing.splits[split][place].path for split, place in pair] for pair in found[:SHOWN]]
