"""One rank: joins the process group that Ray Train made, restores, trains, reports. Runs in a Ray worker process."""

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ray.train
import ray.train.torch
import torch
from torch import Tensor, distributed, nn
from torch.nn.parallel import DistributedDataParallel

from components.images.store import Store
from components.pretrain.batches import Batches
from components.pretrain.contract import PretrainParams
from components.pretrain.loop import Row, Trainer

STATE = "state.pt"


def train_worker(config: dict[str, Any]) -> None:
    """Trains this rank's share. `config` holds the params as plain values and the absolute paths of the dataset and of the init file."""
    params = PretrainParams.model_validate(config["params"])
    context = ray.train.get_context()
    rank, world = context.get_world_rank(), context.get_world_size()
    if params.scale.device == "cpu":
        torch.set_num_threads(params.scale.cpus_per_worker)
    device = ray.train.torch.get_device()
    batches = Batches(params, Store(Path(config["dataset"]), "train"), rank, world)
    trainer = Trainer(params, batches, _distribute(world, device), _gather(world), device, Path(config["init"]))
    checkpoint = ray.train.get_checkpoint()
    if checkpoint is not None:
        with checkpoint.as_directory() as folder:
            trainer.restore(torch.load(Path(folder) / STATE, map_location=device, weights_only=True))

    def report(row: Row, checkpoint_due: bool) -> None:
        if not (checkpoint_due and rank == 0):
            ray.train.report(row)
            return
        with tempfile.TemporaryDirectory() as folder:
            torch.save(trainer.state(), Path(folder) / STATE)
            ray.train.report(row, checkpoint=ray.train.Checkpoint.from_directory(folder))

    trainer.train(report)


def _distribute(world: int, device: torch.device) -> Any:
    """DDP across several workers; a single one needs no process group."""

    def wrap(model: nn.Module) -> nn.Module:
        if world == 1:
            return model
        return DistributedDataParallel(model, device_ids=[device] if device.type == "cuda" else None)

    return wrap


def _gather(world: int) -> Callable[[Tensor], Tensor]:
    """Joins equal tensors of all workers in rank order, so that diagnostics describe the global batch."""

    def gather(tensor: Tensor) -> Tensor:
        if world == 1:
            return tensor
        parts = [torch.empty_like(tensor) for _ in range(world)]
        distributed.all_gather(parts, tensor.contiguous())
        return torch.cat(parts)

    return gather
