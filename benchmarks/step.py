"""What a training step costs: `python benchmarks/step.py [--size vit_b16 vit_tiny4] [--device cuda]`.

Two comparisons in interleaved steps of one process: noise on against noise off, and this project's step against the textbook's
(benchmarks/textbook.py: attention matrix written out, moving average as a loop, AdamW tensor by tensor). Both start from the
same weights and see the same images, masks and noise; equal losses and equal weights afterwards are asserted first. Peak
memory is measured in a process for each variant: of all that is held on a GPU, of what the step allocates on a CPU. Needs
torch, timm, numpy, pyarrow, pydantic and what these need; no Ray, no MLflow.
"""

import argparse
import copy
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch.profiler import ProfilerActivity, profile

sys.path.insert(0, str(Path(__file__).parents[1]))  # where the project is not installed

import yaml
from textbook import Encoder, Predictor, Step

from components.mim import masks
from components.mim.positions import draw_noise
from components.pretrain.batches import Batch
from components.pretrain.contract import PretrainParams
from components.pretrain.loop import Trainer
from components.pretrain.parallel import Alone

ROOT = Path(__file__).parents[1]
SIZES: dict[str, dict[str, Any]] = {
    "vit_b16": {
        "encoder": {"image_size": 224, "patch_size": 16, "width": 768, "layers": 12, "heads": 12},
        "predictor": {"width": 384, "layers": 6, "heads": 12},
    },
    "vit_tiny4": {
        "encoder": {"image_size": 224, "patch_size": 4, "width": 192, "layers": 12, "heads": 3},
        "predictor": {"width": 192, "layers": 6, "heads": 3},
    },
}
VARIANTS = ("ours", "quiet", "textbook")


class Steps:
    """Stands in for the data: random pixels at the places of one worker."""

    steps_per_epoch, total = 1000, 1000

    def __init__(self, size: int, batch: int) -> None:
        pixels = torch.randint(0, 256, (batch, size, size, 3), generator=torch.Generator().manual_seed(0))
        self.batch = Batch(pixels.to(torch.uint8), torch.arange(batch))


class Measured(NamedTuple):
    seconds: list[float]
    losses: list[float]


def trainer(shape: dict[str, Any], batch: int, device: str, precision: str) -> Trainer:
    """One worker's trainer, with the reference's masks: all target blocks of a step are of one size there.

    `shape` holds what differs from params/pretrain.yaml in the sections `encoder` and `predictor`.
    """
    with (ROOT / "params/pretrain.yaml").open(encoding="utf-8") as file:
        values = yaml.safe_load(file)
    for section, chosen in shape.items():
        values[section] |= chosen
    values |= {"weight_init": "fixed"}
    values["collapse"] |= {"effective_rank_floor": 0.0}  # no rule for so few images
    values["masks"] |= {"sampler": "legacy", "min_context": 10}
    values["optimisation"] |= {"epochs": 1, "warmup_epochs": 0.0, "global_batch_size": batch, "final_lr": 1e-5}
    values["scale"] |= {"precision": precision, "device": "gpu" if device == "cuda" else "cpu"}
    params = PretrainParams.model_validate(values)
    steps: Any = Steps(params.encoder.image_size, batch)
    one = Trainer(params, steps, Alone(torch.device(device)), Path("scratch"))
    one.step = typical_step(one)
    return one


def typical_step(one: Trainer) -> int:
    """The one of the first 32 steps whose context is nearest their mean: it is repeated, masks and all, since lengths vary."""
    places: torch.Tensor = one.batches.batch.places  # type: ignore[attr-defined]
    lengths = [masks.sample(0, step, places, one.grid, one.params.masks).context_BK.shape[1] for step in range(32)]
    return min(range(32), key=lambda step: abs(lengths[step] - statistics.mean(lengths)))


def ours(one: Trainer, noise_std: float = 0.25) -> Callable[[], float]:
    """This project's step; noise on and off share their weights, whose place in memory counts for more than the noise."""
    stop = one.params.stop.model_copy(update={"noise_std": noise_std})
    params = one.params.model_copy(update={"stop": stop})

    def step() -> float:
        one.params = params
        one.set_schedules()
        return one.update(one.batches.batch, measure=False).loss  # type: ignore[attr-defined]

    return step


def peer_of(one: Trainer) -> Step:
    """The textbook's model with the weights that `one` started from."""
    encoder, predictor = one.params.encoder, one.params.predictor
    shape = encoder.patch_size, encoder.width, encoder.layers, encoder.heads
    with one.device:  # where its first weights, which are overwritten, cost no time
        trained, target = Encoder(*shape), Encoder(*shape)
        narrow = Predictor(encoder.width, predictor.width, predictor.layers, predictor.heads)
    trained.load_state_dict(one.model.encoder.state_dict())
    target.load_state_dict(one.model.encoder.state_dict())
    narrow.load_state_dict(one.model.predictor.state_dict())
    return Step(trained, narrow, target, 0.0, 0.0)


def textbook(one: Trainer, peer: Step, noise_std: float = 0.25) -> Callable[[], float]:
    """The peer's step, which leaves the weights of `one` alone; masks and noise are drawn as there."""
    encoder, predictor = one.params.encoder, one.params.predictor
    stop = one.params.stop.model_copy(update={"noise_std": noise_std})
    mirror = copy.copy(one)  # its step counter and rates, not its weights
    mirror.adamw = peer.adamw
    del mirror.model, mirror.wrapped, mirror.target

    def step() -> float:
        mirror.set_schedules()
        batch: Batch = one.batches.batch  # type: ignore[attr-defined]
        mean, std = (torch.tensor(v, device=one.device) * 255 for v in ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)))
        images = ((batch.pixels.to(one.device).float() - mean) / std).permute(0, 3, 1, 2).contiguous()
        places = batch.places
        drawn = masks.sample(one.params.seed, mirror.step, places, one.grid, one.params.masks).to(one.device)
        noise = draw_noise(stop, one.params.seed, mirror.step, places, drawn, encoder.width, predictor.width)
        bf16 = one.params.scale.precision == "bf16"
        if noise and noise.masked:
            strays = noise.masked
        else:
            strays = [torch.zeros(*block.shape, encoder.width, device=one.device) for block in drawn.targets]
        return peer(images, drawn.context_BK, drawn.targets, strays, mirror.momentum, bf16)

    return step


Pairs = Sequence[tuple[Callable[[], float], Callable[[], float]]]


def assert_equal(one: Trainer, peer: Step, pairs: Pairs, precision: str) -> tuple[float, float]:
    """The same losses in each pair of steps, ours and the textbook's, taken in turn and, in fp32, the same weights after all.

    Returns the last losses.
    """
    tolerance = 1e-4 if precision == "fp32" else 2e-2
    for mine, other in pairs:
        a, b = mine(), other()
        assert abs(a - b) <= tolerance * abs(b), (a, b)
    if precision == "fp32":
        for name, module in (("encoder", peer.encoder), ("predictor", peer.predictor)):
            ours_by_name = dict(getattr(one.model, name).named_parameters())
            for key, tensor in module.named_parameters():
                own = ours_by_name[key]
                torch.testing.assert_close(own, tensor, rtol=1e-3, atol=2e-5, msg=lambda text, k=key: f"{k}: {text}")
    print(f"equal outputs: {len(pairs)} steps, last loss {a:.6f} against {b:.6f}", flush=True)
    return a, b


def timed(step: Callable[[], float], device: str) -> float:
    if device == "cuda":
        torch.cuda.synchronize()
    start = time.perf_counter()
    step()
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - start


def interleaved(steps: list[Callable[[], float]], pairs: int, device: str) -> list[list[float]]:
    """Seconds of each variant's steps, taken in turns, each turn in the other order."""
    for step in steps:
        timed(step, device)
    seconds: list[list[float]] = [[] for _ in steps]
    for pair in range(pairs):
        order = range(len(steps)) if pair % 2 == 0 else reversed(range(len(steps)))
        for which in order:
            seconds[which].append(timed(steps[which], device))
    return seconds


def noise_alone(one: Trainer) -> float:
    """Fewest seconds of what a step does for noise and for nothing else: the draw, A·n and its gradient."""
    places: torch.Tensor = one.batches.batch.places  # type: ignore[attr-defined]
    drawn = masks.sample(0, one.step, places, one.grid, one.params.masks).to(one.device)
    stop = one.params.stop.model_copy(update={"noise_std": 0.25})

    def alone() -> float:
        noise = draw_noise(stop, 0, 0, places, drawn, one.params.encoder.width, one.params.predictor.width)
        for block in (noise.masked if noise else None) or []:
            one.model.predictor.stray(block).sum().backward()
        return 0.0

    return min(timed(alone, one.device.type) for _ in range(20))


def ratio(numerator: list[float], denominator: list[float]) -> str:
    """Of the fastest steps, which others' work on the machine spoils least; then the median pair and the middle half of all pairs."""
    ratios = sorted(a / b for a, b in zip(numerator, denominator, strict=True))
    low, high = ratios[len(ratios) // 4], ratios[-1 - len(ratios) // 4]
    fastest = min(numerator) / min(denominator)
    return f"{fastest:.3f} of the fastest; pairs: median {statistics.median(ratios):.3f}, middle half {low:.3f} to {high:.3f}"


def peak(size: str, variant: str, options: argparse.Namespace) -> float:
    """MiB that three steps of a variant need, measured in a process of its own."""
    flags = ["--peak", variant, "--size", size, "--batch", str(options.batch), "--device", options.device]
    command = [sys.executable, __file__, *flags, "--precision", options.precision]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return float(json.loads(done.stdout.splitlines()[-1])["mib"])


def measure_peak(size: str, variant: str, options: argparse.Namespace) -> None:
    one = trainer(SIZES[size], options.batch, options.device, options.precision)
    step = textbook(one, peer_of(one)) if variant == "textbook" else ours(one, 0.0 if variant == "quiet" else 0.25)
    if variant == "textbook":
        del one.model, one.wrapped, one.target, one.adamw
    step()  # what is made once, such as the optimiser's moments
    if options.device == "cuda":
        torch.cuda.reset_peak_memory_stats()
        step()
        peak = torch.cuda.max_memory_allocated()
    else:
        peak = allocated(step)
    print(json.dumps({"mib": peak / 2**20}))


def allocated(step: Callable[[], float]) -> int:
    """Most bytes that torch's CPU allocator held at a time for what one step made, after torch's profiler."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
        step()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        profiled.export_chrome_trace(str(path))
        events = json.loads(path.read_text())["traceEvents"]
    return max(event["args"]["Total Allocated"] for event in events if event["name"] == "[memory]")


def report(size: str, options: argparse.Namespace) -> None:
    batch, device, precision = options.batch, options.device, options.precision
    print(f"\n{size}, batch {batch}, {precision}, {device}", flush=True)
    one = trainer(SIZES[size], batch, device, precision)
    peer = peer_of(one)
    assert_equal(one, peer, [(ours(one), textbook(one, peer))] * 2, precision)
    seconds = interleaved([ours(one), textbook(one, peer)], options.pairs, device)
    print(f"  fastest step: ours {min(seconds[0]):.3f} s, textbook {min(seconds[1]):.3f} s")
    print(f"  textbook / ours, time: {ratio(seconds[1], seconds[0])}")
    del peer
    noise = interleaved([ours(one), ours(one, 0.0)], options.noise_pairs, device)
    print(f"  noise on / noise off, time: {ratio(noise[0], noise[1])}")
    print(f"  what the noise itself takes: {noise_alone(one) / min(noise[1]):.4f} of a step without it")
    del one
    peaks = {variant: peak(size, variant, options) for variant in VARIANTS}
    print("  peak memory of a step, MiB: " + ", ".join(f"{name} {mib:.0f}" for name, mib in peaks.items()))
    print(f"  noise on / noise off, memory: {peaks['ours'] / peaks['quiet']:.3f}")
    print(f"  textbook / ours, memory: {peaks['textbook'] / peaks['ours']:.3f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", nargs="+", choices=list(SIZES), default=list(SIZES))
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--precision", choices=["fp32", "bf16"], default="fp32")
    parser.add_argument("--pairs", type=int, default=12, help="steps of each side, ours against the textbook's")
    parser.add_argument("--noise-pairs", type=int, default=40, help="steps of each side, noise on against off")
    parser.add_argument("--peak", choices=VARIANTS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.peak:
        measure_peak(options.size[0], options.peak, options)
        return
    name = torch.cuda.get_device_name() if options.device == "cuda" else platform.processor() or platform.machine()
    print(f"{name}, {os.cpu_count()} cores, torch {torch.__version__}", flush=True)
    for size in options.size:
        report(size, options)


if __name__ == "__main__":
    main()
