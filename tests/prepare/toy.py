"""The whole stage on one dataset `toy`, with values that a test changes."""

import hashlib
from pathlib import Path
from typing import Any

from components.prepare.contract import DatasetParams, PrepareInputs, PrepareMetrics, PrepareOutputs, PrepareParams
from components.prepare.run import run

EVERY = Path(__file__).parents[2] / "params/subsets/all.txt"
VALUES: dict[str, Any] = {
    "source": "data/raw/toy",
    "format": "image_folder",
    "licence": "unknown",
    "counts": "any",
    "subset": {
        "per_class": 0,
        "list": "params/subsets/all.txt",
        "sha256": hashlib.sha256(EVERY.read_bytes()).hexdigest(),
    },
    "seed": 0,
    "check": "decode",
    "on_error": "fail",
    "skip_budget": 0,
    "resize_short_side": 0,
    "quality": 0,
    "scenes": 0,
    "clips": 0,
    "shard_mib": 1,
}


def prepare(
    raw: Path,
    folder: Path,
    format: str = "image_folder",
    *,
    per_class: int = 0,
    subset_list: Path = EVERY,
    work: Path | None = None,
    **values: Any,
) -> PrepareMetrics:
    """Writes `folder`/toy and toy.png; `work` is beside `folder` unless it is given."""
    subset = {**VALUES["subset"], "per_class": per_class}
    dataset = DatasetParams(**{**VALUES, "format": format, "subset": subset, **values})
    outputs = {"dataset": folder / "toy", "sheet": folder / "toy.png", "metrics": folder / "m", "run": folder / "r"}
    return run(
        PrepareParams(datasets={"toy": dataset}),
        PrepareInputs(source=raw, subset_list=subset_list),
        PrepareOutputs(**outputs, work=work or folder.with_name(f"{folder.name}_work")),
    )


def digests(folder: Path) -> dict[str, str]:
    """sha256 of each file by its path in the folder."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}
