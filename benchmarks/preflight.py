"""What the preflight predicts beside what is measured on this CPU: `python benchmarks/preflight.py [--size vit_b16 vit_s16 demo]`.

The peak of this machine is measured before the steps of each size and after them, and the better one counts. Steps are those of the
trainer on random pixels, the fastest and the median of `--steps`, in seconds and in processor seconds a thread, which other work on the
machine spoils less. Peak memory is that of the weights, gradients and moments that are there before a step, and of what torch's
allocator held at most for what the step made. Each size has a process of its own.

`--workers 2 --sharding fsdp` compares the memory of one of so many workers, processes over gloo with `--batch` images each; no times.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import distributed, multiprocessing
from torch.distributed.tensor import DTensor

sys.path.insert(0, str(Path(__file__).parents[1]))  # where the project is not installed

from step import Steps, allocated, timed

from components.preflight.machine import this_machine
from components.preflight.prediction import costs, predict
from components.pretrain.contract import PretrainParams
from components.pretrain.loop import Trainer
from components.pretrain.parallel import Alone, Replicated
from components.pretrain.sharding import Sharded
from components.stage import read_yaml

ROOT = Path(__file__).parents[1]
ALONE = Alone(torch.device("cpu"))
PHOTOGRAPHS = {"image_size": 224, "patch_size": 16}
SIZES: dict[str, dict[str, Any]] = {
    "vit_b16": {
        "encoder": PHOTOGRAPHS | {"width": 768, "layers": 12, "heads": 12},
        "predictor": {"width": 384, "layers": 6, "heads": 12},
    },
    "vit_s16": {
        "encoder": PHOTOGRAPHS | {"width": 384, "layers": 12, "heads": 6},
        "predictor": {"width": 192, "layers": 6, "heads": 6},
    },
    "demo": {},
}


def trainer(size: str, batch: int, threads: int, sharding: str = "ddp", parallel: Alone = ALONE) -> Trainer:
    """A worker's trainer with the masks of params/pretrain.yaml, which are the paper's."""
    values = read_yaml(ROOT / "params/pretrain.yaml")
    for section, chosen in SIZES[size].items():
        values[section] |= chosen
    values["collapse"] |= {"effective_rank_floor": 0.0}  # no rule for so few images
    values["optimisation"] |= {"epochs": 1, "warmup_epochs": 0.0, "global_batch_size": batch * parallel.world}
    values["scale"] |= {"backend": "ray", "workers": parallel.world, "sharding": sharding}
    values["scale"] |= {"device": "cpu", "cpus_per_worker": threads, "precision": "fp32", "loaders": 0}
    params = PretrainParams.model_validate(values)
    steps: Any = Steps(params.encoder.image_size, batch)
    return Trainer(params, steps, parallel, Path("scratch"))


def steps_of(one: Trainer) -> Callable[[], float]:
    """Makes a step, with other masks each time."""

    def step() -> float:
        one.set_schedules()
        one.update(one.batches.batch, measure=False)  # type: ignore[attr-defined]
        one.step += 1
        return 0.0

    return step


def compare(size: str, batch: int, count: int, threads: int) -> None:
    one = trainer(size, batch, threads)
    cost = costs(one.params)
    before = this_machine(threads, 1)

    step = steps_of(one)
    step()
    seconds, processor = [], []
    for _ in range(count):
        start = time.process_time()
        seconds.append(timed(step, "cpu"))
        processor.append((time.process_time() - start) / threads)
    after = this_machine(threads, 1)
    machine = before._replace(fp32=max(before.fp32, after.fp32), bandwidth=max(before.bandwidth, after.bandwidth))
    predicted = predict(cost, machine)
    reached = batch * cost.flops.model / min(processor) / machine.fp32
    print(f"\n{size}, batch {batch}, {threads} threads, torch {torch.__version__}")
    print(f"  this machine: {machine.fp32 / 1e9:.0f} GFLOP/s at the peak, copies {machine.bandwidth / 1e9:.0f} GB/s")
    print(
        f"  step, s: predicted {predicted.step_s:.3f}; fastest {min(seconds):.3f}, median {statistics.median(seconds):.3f}"
    )
    print(f"  step, processor s a thread: fastest {min(processor):.3f}, median {statistics.median(processor):.3f}")
    print(
        f"  predicted / fastest processor {predicted.step_s / min(processor):.2f}; model-FLOPs utilisation {reached:.2f}"
    )
    compare_memory(one, step)


def compare_memory(one: Trainer, step: Callable[[], float]) -> None:
    """After a step, when all that lasts is there."""
    held, peak = costs(one.params).memory, standing(one) + allocated(step)
    if one.parallel.rank == 0:
        print(
            f"  memory: predicted {held.tensors / 2**20:.0f} MiB, measured {peak / 2**20:.0f}: {held.tensors / peak:.2f}",
            flush=True,
        )


def standing(one: Trainer) -> int:
    """Bytes of this worker's weights, gradients and moments."""
    assert one.target is not None
    tensors = [*one.model.parameters(), *one.target.parameters()]
    tensors += [weight.grad for weight in one.model.parameters() if weight.grad is not None]
    tensors += [value for state in one.adamw.state.values() for value in state.values()]
    return sum((t.to_local() if isinstance(t, DTensor) else t).nbytes for t in tensors)


def share(rank: int, options: argparse.Namespace, meeting: str) -> None:
    """One of several workers."""
    torch.set_num_threads(options.threads)
    distributed.init_process_group("gloo", f"file://{meeting}", rank=rank, world_size=options.workers)
    kind = Sharded if options.sharding == "fsdp" else Replicated
    one = trainer(options.size[0], options.batch, options.threads, options.sharding, kind(torch.device("cpu")))
    if rank == 0:
        print(
            f"\n{options.size[0]}, {options.workers} × {options.batch}, {options.sharding}, torch {torch.__version__}"
        )
    step = steps_of(one)
    step()
    step()  # in the second one DDP makes its buffers anew, in the order of the gradients
    compare_memory(one, step)
    distributed.destroy_process_group()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", nargs="+", choices=list(SIZES), default=list(SIZES))
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--sharding", choices=("ddp", "fsdp"), default="ddp")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    if len(options.size) == 1 and options.workers > 1:
        with tempfile.TemporaryDirectory() as folder:
            multiprocessing.spawn(share, (options, f"{folder}/meeting"), nprocs=options.workers)
        return
    if len(options.size) == 1:
        compare(options.size[0], options.batch, options.steps, options.threads)
        return
    for size in options.size:
        flags = ["--size", size, "--batch", options.batch, "--steps", options.steps, "--threads", options.threads]
        flags += ["--workers", options.workers, "--sharding", options.sharding]
        subprocess.run([sys.executable, __file__, *map(str, flags)], check=True)


if __name__ == "__main__":
    main()
