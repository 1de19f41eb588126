"""Raw images in, one memory-mapped dataset out: list, check and store, then draw what came of it."""

import shutil
from importlib.metadata import version
from pathlib import Path
from typing import Any

from components import progress, tracking
from components.images import header, shard, store
from components.prepare import sheet
from components.prepare.card import card
from components.prepare.contract import (
    DatasetParams,
    PrepareInputs,
    PrepareMetrics,
    PrepareOutputs,
    PrepareParams,
)
from components.prepare.intake import Intake, processes
from components.prepare.readers import Listing
from components.prepare.shards import Tally, finished
from components.prepare.source import cut, raw, read
from components.prepare.uncompress import room
from components.stage import atomic, digest, file_hash, remove
from components.work import alone, remove_unused


def run(params: PrepareParams, inputs: PrepareInputs, outputs: PrepareOutputs) -> PrepareMetrics:
    """Prepares the one dataset in `params`, or goes on with a preparation of it that was interrupted.

    Raises ValueError for data that is not laid out or encoded as it should be; whole shards are kept for the next try.
    """
    ((name, dataset),) = params.datasets.items()
    work = outputs.work / name
    with (
        alone(work, f"another process prepares {name} in {work}; waiting for it"),
        raw(name, dataset, inputs.source, work / "made") as source,
    ):
        listing, lacks = read(name, dataset, source, work / "unpacked")
        listing = cut(name, dataset, listing, inputs.subset_list)
        folder = _begun(name, dataset, listing, work)
        _check_room(name, listing, folder)
        tallies = Intake(name, listing, dataset, processes()).run(folder)
        about = card(name, dataset, listing, tallies, lacks)
        _assemble(folder, outputs.dataset, tallies, about)
    remove_unused(work)
    return _told(name, about, outputs)


def _begun(name: str, dataset: DatasetParams, listing: Listing, work: Path) -> Path:
    """Where this very preparation goes on; what is left of another one of the dataset is removed."""
    here = Path(__file__).parent
    shared = [Path(module.__file__ or "") for module in (header, shard, store)]
    own = [*here.glob("*.py"), *here.glob("readers/*.py"), *shared]
    # Of the files and not of what happens to be loaded, which differs.
    hashes = {f"{path.parent.name}/{path.name}": file_hash(path) for path in own}
    key = digest([dataset.model_dump(), listing.stamp, hashes, version("pillow")])
    for path in work.glob("begun-*"):
        if path.name != f"begun-{key}":
            progress.show(f"prepare {name}: an interrupted try had other params, raw data or code; starting anew")
            remove(path)
    return work / f"begun-{key}"


def _check_room(name: str, listing: Listing, folder: Path) -> None:
    """Raises ValueError when the images that are still to be stored, as large as they are, do not fit on the disk."""
    needed = 0
    for split, items in listing.splits.items():
        done = sum(tally.items for tally in finished(folder / split))
        needed += sum(listing.files.size(item.file) for item in items[done:])
    room(folder, needed + needed // 50, f"preparing {name}")


def _assemble(folder: Path, dataset: Path, tallies: dict[str, list[Tally]], about: dict[str, Any]) -> None:
    """The shards, numbered without those that hold no row, and the card, at their place in one step."""
    with atomic(dataset) as temporary:
        for split, shards in tallies.items():
            (temporary / split).mkdir(parents=True)
            whole = [number for number, tally in enumerate(shards) if tally.file_bytes]
            for place, number in enumerate(whole):
                target = temporary / split / f"shard-{place:05d}.arrow"
                shutil.move(folder / split / f"shard-{number:05d}.arrow", target)
        store.write_card(temporary, about)


def _told(name: str, about: dict[str, Any], outputs: PrepareOutputs) -> PrepareMetrics:
    """Sheet and card in MLflow, a line for a person, and the metrics."""
    sheet.draw(outputs.dataset, outputs.sheet)
    tracking.log_figure(outputs.sheet)
    tracking.log_figure(outputs.dataset / "card.json")
    images = sum(split["count"] for split in about["splits"].values())
    mebibytes = round(sum(split["bytes"] for split in about["splits"].values()) / 2**20, 3)
    skipped, copies = len(about["skipped"]), about["duplicates"]["images"]
    notes = [f", {skipped} skipped"] * bool(skipped) + [f", {copies} with the bytes of another"] * bool(copies)
    listed = " (card.json names them)" if notes else ""
    progress.show(f"prepare {name}: {images} images, {mebibytes:.1f} MiB{''.join(notes)}{listed}, in {outputs.dataset}")
    return PrepareMetrics(
        images=images, classes=len(about["classes"]), mebibytes=mebibytes, skipped=skipped, duplicates=copies
    )
