"""What training costs and learns on one GPU, in ten minutes: `python benchmarks/gpu.py --dataset data/prepared/cifar10 --out gpu.json`.

First table: images/s and model-FLOPs utilisation (MFU) of a whole training step of ViT-S/16, B/16, L/16 and H/14 as the presets have
them, in bf16, ours and the textbook's (benchmarks/textbook.py), with and without noise, with and without `torch.compile`, and on a GPU
the peak memory of each. Equal losses are asserted first; then all take turns, timed by CUDA events; a figure is the median of the turns.
MFU is what the mathematics of our step needs, by torch's counter, over the device's peak in bf16 without sparsity; the textbook's too,
so that its MFU tells nothing but its time. Second table: what the preset `cifar10` learns in the time that is left, noise on and off, by
k-NN on the way; skipped without --dataset, a folder that `prepare` made of CIFAR-10.

Everything fits into --minutes: what does not is left out, and a line says so. A batch that memory is too small for is halved. --out is
written anew after each part. The exit status is 1 where something failed. Needs torch, timm, numpy, pyarrow, pydantic and what these
need; no Ray, MLflow, Prefect or DVC. `--device cpu --tiny` goes through all of it with tiny models in seconds, and measures nothing.
"""

import argparse
import json
import os
import platform
import sys
import time
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))  # where the project is not installed

import gpu_cifar10
import gpu_step

from components.stage import read_yaml

ROOT = Path(__file__).parents[1]
BATCHES = {"vit_s16": 512, "vit_b16": 256, "vit_l16": 256, "vit_h14": 128}
TINY = {
    f"tiny{width}": {
        "encoder": {"image_size": 80, "patch_size": 8, "width": width, "layers": 2, "heads": 2},
        "predictor": {"width": 16, "layers": 2, "heads": 2},
    }
    for width in (32, 48)
}
PEAKS = {
    "GB200": 2500e12,
    "B200": 2250e12,
    "H200 NVL": 835e12,
    "H200": 989e12,
    "H100 PCIe": 756e12,
    "H100 NVL": 835e12,
    "H100": 989e12,
    "A100": 312e12,
    "L40S": 362e12,
    "L40": 181e12,
    "L4": 121e12,
}
"""FLOP/s in bf16 without sparsity, by NVIDIA's data sheets; the first name that is part of torch's name of the device counts."""
STEPS_SHARE = 0.6
"""Of the time, for the first table where there is a second one."""
WORTHWHILE_S = 5.0
"""A part that has less time than this is left out."""


class Report:
    """What was found, on the screen and in the file; `failed` where a part raised an error."""

    def __init__(self, out: Path | None, head: dict[str, Any]) -> None:
        self.out, self.failed = out, False
        self.found: dict[str, Any] = {**head, "steps": [], "learning": [], "said": []}

    def say(self, line: str) -> None:
        print(line, flush=True)
        self.found["said"].append(line)

    def add(self, table: str, part: dict[str, Any]) -> None:
        for line in part.pop("said"):
            self.say(line)
            self.failed |= "FAILED" in line
        self.found[table].append(part)

    def part(self, name: str, seconds: float, work: Callable[[], None]) -> None:
        """Does one part unless it has too little time; an error of it is told and leaves the others their turn."""
        if seconds < WORTHWHILE_S:
            self.say(f"{name}: skipped, {max(seconds, 0):.0f} s were left for it")
            return
        begin = time.monotonic()
        try:
            work()
        except Exception as error:  # hours of waiting for a device are not lost for one part; the exit status tells
            traceback.print_exc()
            self.say(f"{name}: FAILED: {type(error).__name__}: {error}")
            self.failed = True
        self.found.setdefault("seconds", {})[name] = time.monotonic() - begin
        if self.out:
            self.out.write_text(json.dumps(self.found, indent=1, allow_nan=False))


def shape(size: str) -> dict[str, Any]:
    """Encoder and predictor of a preset; the patch size of its name."""
    section = read_yaml(ROOT / "params" / "presets" / f"{size}.yaml")["pretrain"]
    return {part: section[part] for part in ("encoder", "predictor")}


def peak_of(name: str) -> float | None:
    return next((flops for part, flops in PEAKS.items() if part in name), None)


def print_steps(part: dict[str, Any]) -> None:
    blocks = ", ".join(map(str, part["target_patches"]))
    print(
        f"\n{part['size']}, batch {part['batch']}: {part['context_patches']} context patches, target blocks of {blocks}, ",
        end="",
    )
    print(f"{part['rows'][0]['flops_per_image'] / 1e9:.1f} GFLOP an image, {part['turns']} turns")
    print("\n| step | noise | compiled | ms (middle half) | images/s | MFU | peak MiB |\n|---|---|---|---|---|---|---|")
    for row in part["rows"]:
        low, high = row["ms_middle_half"]
        marks = " | ".join("yes" if row[name] else "no" for name in ("noise", "compiled"))
        peak = "–" if row["peak_mib"] is None else f"{row['peak_mib']:.0f}"
        mfu = "–" if row["mfu"] is None else f"{row['mfu']:.1%}"
        print(
            f"| {row['side']} | {marks} | {row['ms']:.1f} ({low:.1f} to {high:.1f}) | {row['images_per_s']:.0f} | ",
            end="",
        )
        print(f"{mfu} | {peak} |")
    for name, (median, low, high) in part["ratios"].items():
        print(f"  time, {name}: {median:.3f} ({low:.3f} to {high:.3f})")
    print(f"  compiling and the first compiled steps took {part['compile_s']:.0f} s", flush=True)


def measure_steps(
    report: Report, shapes: dict[str, Any], options: argparse.Namespace, how: gpu_step.How, end: float
) -> None:
    left = list(shapes)
    for size in shapes:
        now = time.monotonic()
        seconds = (end - now) / len(left)  # what a size leaves goes to those after it
        left.remove(size)

        def work(size: str = size, until: float = now + seconds) -> None:
            say: Callable[[str], None] = lambda line: report.say(f"{size}: {line}")  # noqa: E731
            measured = partial(gpu_step.measure, size, shapes[size], how=how, until=until)
            part = gpu_step.halving(options.batch or BATCHES.get(size, 8), measured, say)
            print_steps(part)
            report.add("steps", part)

        report.part(size, seconds, work)


def measure_learning(report: Report, given: gpu_cifar10.Data, options: argparse.Namespace, end: float) -> None:
    cores = max(1, options.loaders, min(256, len(os.sched_getaffinity(0))))
    begin, device = time.monotonic(), options.device
    top1 = gpu_cifar10.judge(given, device)
    params = gpu_cifar10.recipe(True, device, cores, options.loaders, options.tiny)
    epochs = options.epochs or gpu_cifar10.fitting(params, given, device, (end - begin) / 2)
    params = gpu_cifar10.lasting(params, given, epochs)
    for noise in (True, False):
        stop = gpu_cifar10.recipe(noise, device, cores, options.loaders, options.tiny).stop
        chosen = params.model_copy(update={"stop": stop})
        print(f"\ncifar10, noise {'on' if noise else 'off'}, epochs: {epochs}", flush=True)
        now = time.monotonic()
        until = now + (end - now) / (2 if noise else 1)
        report.add("learning", gpu_cifar10.learn(chosen, given, device, top1, until))
    print_learning(report.found["learning"])


def print_learning(runs: list[dict[str, Any]]) -> None:
    print(
        "\n| step | " + " | ".join(f"noise {'on' if run['noise'] else 'off'}: s | k-NN, top-1" for run in runs) + " |"
    )
    print("|---" * (1 + 2 * len(runs)) + "|")
    for points in zip(*(run["points"] for run in runs), strict=False):  # one that was stopped has fewer
        print(
            f"| {points[0]['step']} | " + " | ".join(f"{p['seconds']:.1f} | {p['knn_top1']:.2f}" for p in points) + " |"
        )
    rates = " and ".join(f"{run['images_per_s']:.0f}" for run in runs if run["images_per_s"])
    print(f"\n{rates} images/s, loading and the curves included, judging not", flush=True)


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--tiny", action="store_true", help="tiny models, to try everything out")
    parser.add_argument(
        "--size", nargs="+", choices=list(BATCHES), default=list(BATCHES), help="presets of the first table"
    )
    parser.add_argument("--batch", type=int, default=0, help=f"images in a step; 0, by size: {BATCHES}")
    parser.add_argument("--precision", choices=("bf16", "fp32"), default="bf16", help="of the first table")
    parser.add_argument("--peak", type=float, help="FLOP/s of the device at best, for one that is not known here")
    parser.add_argument(
        "--backend",
        choices=("inductor", "aot_eager", "eager"),
        help="torch.compile's; default: inductor, eager with --tiny, which makes no code",
    )
    parser.add_argument("--dataset", type=Path, help="CIFAR-10 as `prepare` left it; without, no second table")
    parser.add_argument(
        "--loaders", type=int, help="processes that decode; default: a core each and at most 12 on a GPU, else 0"
    )
    parser.add_argument("--turns", type=int, help="timed steps of each variant at most; default: 100, 3 with --tiny")
    parser.add_argument("--epochs", type=int, help="of cifar10; default: as many as fit the time, 2 with --tiny")
    parser.add_argument("--minutes", type=float, default=9.0, help="for everything")
    parser.add_argument("--out", type=Path, help="JSON file to write")
    options = parser.parse_args()
    if options.device == "cuda" and not torch.cuda.is_available():
        parser.error("device is 'cuda', but torch sees no GPU; `--device cpu --tiny` tries everything out without one")
    if options.batch < 0 or options.batch == 1:
        parser.error(f"batch is {options.batch}; give 2 images or more, or 0")
    if options.loaders is None:
        options.loaders = min(12, len(os.sched_getaffinity(0))) if options.device == "cuda" else 0
    options.backend = options.backend or ("eager" if options.tiny else "inductor")
    options.turns = options.turns or (gpu_step.FEWEST if options.tiny else 100)
    options.epochs = options.epochs or (2 if options.tiny else None)
    try:
        options.given = gpu_cifar10.data(options.dataset, options.tiny) if options.dataset else None
    except ValueError as error:
        parser.error(str(error))
    return options


def main() -> int:
    begin, options = time.monotonic(), parsed()
    device, end = options.device, begin + 60 * options.minutes
    name = torch.cuda.get_device_name() if device == "cuda" else platform.processor() or platform.machine()
    peak = options.peak or (peak_of(name) if device == "cuda" else None)
    reached = gpu_step.matmul_rate(device, options.precision, 256 if device == "cpu" else 8192)
    head = {"device": name, "cores": os.cpu_count(), "torch": torch.__version__, "precision": options.precision}
    report = Report(options.out, {**head, "backend": options.backend, "peak_flops": peak, "matmul_flops": reached})
    print(
        f"{name}, {os.cpu_count()} cores, torch {torch.__version__}; {options.precision}, compiled by {options.backend}"
    )
    known = f"{peak / 1e12:.4g} TFLOP/s" if peak else "not known here, so no MFU: give --peak"
    print(f"peak {known}; a large matrix product runs at {reached / 1e12:.4g} TFLOP/s", flush=True)

    shapes = TINY if options.tiny else {size: shape(size) for size in options.size}
    how = gpu_step.How(device, options.precision, options.backend, options.turns, peak)
    share = STEPS_SHARE if options.given else 1.0
    measure_steps(report, shapes, options, how, begin + share * (end - begin))
    if options.given is None:
        report.say("cifar10: skipped, no --dataset")
    left = end - time.monotonic()
    if options.given is not None:
        report.part("cifar10", left, lambda: measure_learning(report, options.given, options, end))
    if options.out:
        options.out.write_text(json.dumps(report.found, indent=1, allow_nan=False))
    return int(report.failed)


if __name__ == "__main__":
    sys.exit(main())
