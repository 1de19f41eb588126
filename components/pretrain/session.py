"""What one worker does, whoever started it: builds or restores its trainer, trains, saves; and tells what stopped it."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

import torch
from safetensors.torch import save_file
from torch import Tensor

from components.images.store import Store
from components.pretrain import checkpoints
from components.pretrain.batches import Batches
from components.pretrain.checkpoints import Checkpoints
from components.pretrain.contract import PretrainParams
from components.pretrain.loop import OnLog, Row, Trainer
from components.pretrain.parallel import Alone
from components.pretrain.quality import Quality
from components.pretrain.unsound import UnsoundError

FAULTS = "faults"


class Job(NamedTuple):
    """Everything a worker is told; plain values, and absolute paths that every node sees."""

    params: PretrainParams
    dataset: Path
    init: Path
    quality: Path | None
    """The dataset that quality is measured on; None where it is not."""
    folder: Path
    """The resume state of this work."""
    checkpoint: Path | None
    """Where training goes on from."""


def work(job: Job, parallel: Alone, on_log: OnLog, stopping: Callable[[], bool]) -> bool:
    """Trains this worker's share; False when it was asked to stop before the end, and then has left a checkpoint.

    Raises ValueError, with the way out, for a loss that is no number, for memory that is too small, for a disk that is full and for
    images that cannot be read.
    """
    params = job.params
    try:
        batches = Batches(params, Store(job.dataset, "train"), parallel.rank, parallel.world)
        quality = Quality.of(params, job.quality, parallel, batches) if job.quality else None
        trainer = Trainer(params, batches, parallel, job.init, stopping, quality)
        if job.checkpoint:
            _restore(trainer, job.checkpoint)
        return _train(job, trainer, on_log)
    except UnsoundError as error:
        raise ValueError(f"{error}. Its batch and losses are in {_dump(job.folder, parallel.rank, error)}") from error
    except (MemoryError, RuntimeError) as error:
        if not _out_of_memory(error):
            raise
        raise ValueError(smaller(params, str(error))) from error


def _restore(trainer: Trainer, checkpoint: Path) -> None:
    """Raises ValueError for a state of another model, as whoever moved checkpoints about may have left; asks no other worker for that."""
    state = checkpoints.load(checkpoint)
    there, here = _shapes(state["model"]), _shapes(trainer.model.state_dict())
    if wrong := sorted(name for name in there.keys() | here.keys() if there.get(name) != here.get(name)):
        raise ValueError(
            f"the state in {checkpoint} does not fit this model: {wrong[0]} is {there.get(wrong[0], 'nothing')} there and "
            f"{here.get(wrong[0], 'nothing')} here; bring back its own checkpoints, or remove {checkpoint.parents[1]} to begin at step 0"
        )
    trainer.restore(state)


def _shapes(tensors: Mapping[str, Tensor]) -> dict[str, tuple[int, ...]]:
    return {name: tuple(tensor.shape) for name, tensor in tensors.items()}


def _train(job: Job, trainer: Trainer, on_log: OnLog) -> bool:
    saving = Checkpoints(job.folder, job.params.keep_last, job.params.keep_every)

    def save() -> None:
        state = trainer.state()  # all workers take part
        if trainer.parallel.rank == 0:
            saving.save(state)

    def log(row: Row, own: Row) -> None:
        on_log(row, own)
        saving.told()  # a full disk now, and not at the next checkpoint

    try:
        done = trainer.train(log, save)
    finally:
        saving.join()  # also where training ends with an error: the checkpoint before it is worth having
    saving.wait()
    return done


def _dump(folder: Path, rank: int, error: UnsoundError) -> Path:
    path = folder / FAULTS / f"step-{error.step:08d}-rank-{rank}.safetensors"
    path.parent.mkdir(exist_ok=True)
    save_file({name: tensor.contiguous() for name, tensor in error.dump.items()}, path)
    return path


def _out_of_memory(error: BaseException) -> bool:
    """On a GPU, or on a CPU whose allocator has no type of its own for it."""
    return isinstance(error, (MemoryError, torch.OutOfMemoryError)) or "can't allocate memory" in str(error)


def smaller(params: PretrainParams, text: str) -> str:
    """What to do where memory ran out, of which the system said `text`."""
    scale, batch = params.scale, params.optimisation.global_batch_size
    share = batch // scale.workers
    at_once = min(scale.images_at_once or share, share)
    same = ", which changes no result" if params.masks.sampler != "legacy" else ""  # its masks depend on the passes
    ways = [f"set scale.images_at_once to {at_once // 2}{same}"] if at_once > 1 else []
    if not scale.activation_checkpointing:
        ways.append("set scale.activation_checkpointing to true")
    if scale.workers > 1 and scale.sharding == "ddp":
        ways.append("set scale.sharding to fsdp")
    ways = ways or ["give each worker a machine with more memory"]
    return (
        f"out of memory with {at_once} images at once of a worker's {share} (optimisation.global_batch_size {batch}, scale.workers "
        f"{scale.workers}, {-(-share // at_once)} passes a step, activation_checkpointing {str(scale.activation_checkpointing).lower()}): "
        f"{' or '.join(ways)}; `make preflight` tells what fits. It was: {text.splitlines()[0] if text else 'MemoryError'}"
    )
