"""What a pipeline's row shows of its stages, from the files that they left."""

import json
from collections.abc import Collection
from pathlib import Path
from typing import Any

from components.stage import current_names, flatten
from components.tracking.run import numbers_and_tags


def headline_metrics(root: Path, finished: Collection[str] | None = None) -> dict[str, float]:
    """`<stage>/<member>/<metric>` from the files under metrics/, whose paths are those names."""
    return {name: float(value) for name, value in numbers_and_tags(_headlines(root, finished))[0].items()}


def headline_tags(root: Path, finished: Collection[str] | None = None) -> dict[str, str]:
    """`protocol.<stage>.<member>` of every evaluation, from the same files: what says which scores compare."""
    return numbers_and_tags(_headlines(root, finished))[1]


def _headlines(root: Path, finished: Collection[str] | None) -> dict[str, Any]:
    values: dict[str, Any] = {}
    current = current_names(root / "params")
    for path in sorted((root / "metrics").rglob("*.json")):
        name = path.relative_to(root / "metrics").with_suffix("").as_posix()
        if name in current and wanted(name, finished):
            nested = json.loads(path.read_text(encoding="utf-8"))
            values |= {f"{name}/{key}": value for key, value in flatten(nested, "/").items()}
    return values


def wanted(name: str, finished: Collection[str] | None) -> bool:
    """Whether `finished`, DVC's names of stages (None: all), has the stage `name` of ours, such as `finetune/cifar10`."""
    return finished is None or name.replace("/", "@", 1) in finished
