"""In Ray Train's controller process: what all ranks report becomes a line of the history. Loads neither torch nor timm."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import ray.train

from components.pretrain.history import append


class HistoryWriter(ray.train.UserCallback):  # type: ignore[misc]
    """Ray Train callback: appends each logged step to `path`."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def after_report(self, run_context: Any, metrics: Sequence[Mapping[str, Any]], checkpoint: Any) -> None:
        """Called by Ray once all ranks have reported a step."""
        append(self._path, metrics[0]["row"], [rank["own"] for rank in metrics])  # the row is the same on all ranks
