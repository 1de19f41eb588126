"""One rank in a Ray worker process: joins the process group that Ray Train made, trains, reports."""

import time
from pathlib import Path
from typing import Any

import ray.train
import ray.train.torch
import torch

from components.pretrain.contract import PretrainParams
from components.pretrain.loop import Row
from components.pretrain.parallel import Alone, Replicated
from components.pretrain.session import Job, work
from components.pretrain.sharding import Sharded

STOP = "stop"
"""A file of this name in the resume state asks workers to save and end."""
LOOK_S = 0.5


def train_worker(config: dict[str, Any]) -> bool:
    """Trains this rank's share. `config` is a `Job` in plain values; what `session.work` gives."""
    params = PretrainParams.model_validate(config["params"])
    paths = {name: Path(config[name]) for name in ("dataset", "init", "quality", "folder")}
    job = Job(params, **paths, checkpoint=Path(config["checkpoint"]) if config["checkpoint"] else None)
    if params.scale.device == "cpu":
        torch.set_num_threads(params.scale.cpus_per_worker)
    parallel = parallel_of(params, ray.train.torch.get_device(), ray.train.get_context().get_world_size())
    asked = _Asked(job.folder / STOP) if parallel.rank == 0 else lambda: False

    def report(row: Row, own: Row) -> None:
        ray.train.report({"row": row, "own": own})

    return work(job, parallel, report, asked)


def parallel_of(params: PretrainParams, device: torch.device, world: int) -> Alone:
    """How so many workers share the model; they have a process group by now."""
    if world == 1:
        return Alone(device)
    return Sharded(device) if params.scale.sharding == "fsdp" else Replicated(device)


class _Asked:
    """Whether the file is there, looked for twice a second."""

    def __init__(self, path: Path) -> None:
        self._path, self._next, self._found = path, 0.0, False

    def __call__(self) -> bool:
        if time.monotonic() >= self._next:
            self._next, self._found = time.monotonic() + LOOK_S, self._path.exists()
        return self._found
