"""What the preflight predicts beside what is measured on this CPU: `python benchmarks/preflight.py [--size vit_b16 vit_s16 demo]`.

The peak of this machine is measured before the steps of each size and after them, and the better one counts. Steps are those of the
trainer on random pixels, the fastest and the median of `--steps`, in seconds and in processor seconds a thread, which other work on the
machine spoils less. Peak memory is that of the weights, gradients and moments that are there before a step, and of what torch's
allocator held at most for what the step made. Each size has a process of its own.
"""

import argparse
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))  # where the project is not installed

from step import Steps, allocated, timed

from components.preflight.machine import this_machine
from components.preflight.prediction import costs, predict
from components.pretrain.contract import PretrainParams
from components.pretrain.loop import Trainer
from components.pretrain.parallel import Alone
from components.stage import read_yaml

ROOT = Path(__file__).parents[1]
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


def trainer(size: str, batch: int, threads: int) -> Trainer:
    """One worker's trainer with the masks of params/pretrain.yaml, which are the paper's."""
    values = read_yaml(ROOT / "params/pretrain.yaml")
    for section, chosen in SIZES[size].items():
        values[section] |= chosen
    values["collapse"] |= {"effective_rank_floor": 0.0}  # no rule for so few images
    values["optimisation"] |= {"epochs": 1, "warmup_epochs": 0.0, "global_batch_size": batch}
    values["scale"] |= {"workers": 1, "device": "cpu", "cpus_per_worker": threads, "precision": "fp32", "loaders": 0}
    params = PretrainParams.model_validate(values)
    steps: Any = Steps(params.encoder.image_size, batch)
    return Trainer(params, steps, Alone(torch.device("cpu")), Path("scratch"))


def compare(size: str, batch: int, count: int, threads: int) -> None:
    one = trainer(size, batch, threads)
    cost = costs(one.params)
    before = this_machine(threads, 1)

    def step() -> float:
        one.set_schedules()
        one.update(one.batches.batch, measure=False)  # type: ignore[attr-defined]
        one.step += 1  # other masks each time
        return 0.0

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
    held = cost.memory
    standing = held.parameters + held.gradients + held.optimiser + held.target
    peak = standing + allocated(step)
    print(
        f"  memory: predicted {held.tensors / 2**20:.0f} MiB, measured {peak / 2**20:.0f}: {held.tensors / peak:.2f}",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", nargs="+", choices=list(SIZES), default=list(SIZES))
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    if len(options.size) == 1:
        compare(options.size[0], options.batch, options.steps, options.threads)
        return
    for size in options.size:
        flags = ["--size", size, "--batch", options.batch, "--steps", options.steps, "--threads", options.threads]
        subprocess.run([sys.executable, __file__, *map(str, flags)], check=True)


if __name__ == "__main__":
    main()
