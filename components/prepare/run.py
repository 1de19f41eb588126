"""Raw images in, one memory-mapped dataset out: list, check and store, then draw what came of it."""

import importlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from components import progress, tracking
from components.images import store
from components.prepare import sheet
from components.prepare.contract import (
    LAYOUTS,
    READ_AS,
    DatasetParams,
    PrepareInputs,
    PrepareMetrics,
    PrepareOutputs,
    PrepareParams,
)
from components.prepare.intake import Intake
from components.prepare.readers import Listing, clevr, davis, image_folder, keep
from components.stage import atomic, remove

READERS = {"image_folder": image_folder.read, "clevr": clevr.read, "davis": davis.read}


def run(params: PrepareParams, inputs: PrepareInputs, outputs: PrepareOutputs) -> PrepareMetrics:
    """Prepares the one dataset in `params`. Raises ValueError for data not laid out or encoded as it should be."""
    ((name, dataset),) = params.datasets.items()
    with atomic(outputs.dataset) as folder:
        with _raw(name, dataset, inputs.source, outputs.dataset) as source:
            listing = _listed(source, dataset)
            intake = Intake(name, listing, dataset, threads=os.cpu_count() or 1)
            rows = {split: intake.rows(split) for split in listing.splits}
            splits = store.write(folder, listing.kind, rows, dataset.shard_mib)
        for split, classes in intake.classes.items():
            splits[split]["classes"] = classes
        mean, std = intake.mean_std()
        card = {"name": name, "kind": listing.kind, "format": dataset.format, "classes": listing.classes}
        store.write_card(folder, {**card, "splits": splits, "mean": mean, "std": std, "skipped": intake.skipped})
    sheet.draw(outputs.dataset, outputs.sheet)
    tracking.log_figure(outputs.sheet)
    mebibytes = round(intake.bytes / 2**20, 3)
    skipped = f", {len(intake.skipped)} skipped (listed in card.json)" if intake.skipped else ""
    progress.show(f"prepare {name}: {intake.images} images, {mebibytes:.1f} MiB{skipped}, in {outputs.dataset}")
    return PrepareMetrics(
        images=intake.images, classes=len(listing.classes), mebibytes=mebibytes, skipped=len(intake.skipped)
    )


@contextmanager
def _raw(name: str, dataset: DatasetParams, source: Path, output: Path) -> Iterator[Path]:
    """The folder of raw data: `source` itself or, for an embedded set, one made for as long as it is read."""
    if dataset.format not in READ_AS:
        if not source.is_dir():
            raise ValueError(
                f"{name}: source {str(source)!r} is a file; it must be a folder: {LAYOUTS[dataset.format]}"
            )
        yield source
        return
    generator = importlib.import_module(f"components.prepare.embedded.{dataset.format}")  # so that DVC's dependency is
    if not source.samefile(str(generator.__file__)):  # the one file, `source`, and not all generators
        raise ValueError(
            f"{name}: source is {str(source)!r}, but the generator that runs is {generator.__file__}; DVC would not "
            f"see it change: start the stage in the checkout that its source belongs to"
        )
    sizes = {"shapes": {"scenes": dataset.scenes}, "shapes_video": {"clips": dataset.clips}}.get(dataset.format, {})
    folder = output.parent / f".{output.name}.raw"
    remove(folder)
    progress.show(f"prepare {name}: making it from seed {dataset.seed}")
    try:
        generator.generate(folder, seed=dataset.seed, **sizes)
        yield folder
    finally:
        remove(folder)


def _listed(source: Path, dataset: DatasetParams) -> Listing:
    listing = READERS[READ_AS.get(dataset.format, dataset.format)](source)
    kept = {split: keep(items, dataset.limit, dataset.seed) for split, items in listing.splits.items()}
    return listing._replace(splits=kept)
