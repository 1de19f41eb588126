"""From a dataset's params to the listing of what it keeps: the raw data found or made, read, counted and cut down."""

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from components import progress
from components.images.subset import read_list
from components.prepare.card import sizes
from components.prepare.contract import READ_AS, DatasetParams
from components.prepare.published import missing
from components.prepare.readers import Listing, keep, only
from components.prepare.tree import grow
from components.stage import remove


@contextmanager
def raw(name: str, dataset: DatasetParams, source: Path, scratch: Path) -> Iterator[Path]:
    """The raw data: `source` itself or, for an embedded set, a folder made for as long as it is read."""
    if dataset.format not in READ_AS:
        yield source
        return
    generator = importlib.import_module(f"components.prepare.embedded.{dataset.format}")  # so that DVC's dependency is
    if not source.samefile(str(generator.__file__)):  # the one file, `source`, and not all generators
        raise ValueError(
            f"{name}: source is {str(source)!r}, but the generator that runs is {generator.__file__}; DVC would not "
            f"see it change: start the stage in the checkout that its source belongs to"
        )
    made = {"shapes": {"scenes": dataset.scenes}, "shapes_video": {"clips": dataset.clips}}.get(dataset.format, {})
    remove(scratch)
    progress.show(f"prepare {name}: making it from seed {dataset.seed}")
    try:
        generator.generate(scratch, seed=dataset.seed, **made)
        yield scratch
    finally:
        remove(scratch)


def read(name: str, dataset: DatasetParams, source: Path, scratch: Path) -> tuple[Listing, list[str]]:
    """All images of the raw data by its reader, and what they lack beside the published dataset.

    Raises ValueError for data that is not laid out as its format says, and for what lacks when `counts` says published.
    """
    reader = importlib.import_module(f"components.prepare.readers.{READ_AS.get(dataset.format, dataset.format)}")
    if hasattr(reader, "read_file"):
        listing: Listing = reader.read_file(source)
    else:
        listing = reader.read(grow(source, scratch))
    lacks = [] if dataset.format in READ_AS else missing(reader.PUBLISHED, sizes(listing))
    if dataset.counts == "published":
        if not reader.PUBLISHED:
            raise ValueError(
                f"{name}: counts is 'published', but format {dataset.format!r} was never published; set counts: any"
            )
        if lacks:
            raise ValueError(
                f"{name}: {str(source)!r} is not the whole dataset: {'; '.join(lacks)}. Complete the copy, or set counts: any to take "
                "what is there"
            )
    for line in lacks:
        progress.show(f"prepare {name}: {line}")
    return listing, lacks


def cut(name: str, dataset: DatasetParams, listing: Listing, subset_list: Path) -> Listing:
    """What `subset` keeps. Raises ValueError for a list of another hash, and for one that names what is not there."""
    subset = dataset.subset
    try:
        names = read_list(subset_list, subset.sha256)
    except ValueError as error:
        raise ValueError(
            str(error).replace("train list", "list").replace("train_list_sha256", "subset.sha256")
        ) from None
    if names is not None and "train" not in listing.splits:
        raise ValueError(f"{name}: subset.list keeps images of split train, and there is none; take all of them")
    splits = {}
    for split, items in listing.splits.items():
        chosen = only(
            items, names if split == "train" else None, f"{name}: subset.list {subset.list!r}, split {split!r}"
        )
        splits[split] = keep(chosen, subset.per_class, dataset.seed)
    return listing._replace(splits=splits)
