"""What following objects and scoring them costs: `python benchmarks/davis.py [--width 768 384] [--threads 2] [--device cuda]`.

Label propagation at 480p and patch 16 (30×52 tokens, 8 context frames, radius 12, 5 voters) against the protocol written down
directly (benchmarks/textbook_davis.py: the matrix of all affinities, the neighbourhood built in Python once per video), and J
and F of 3 objects in 854×480 frames against a dilation by a disk for each frame and object. Interleaved in one process, each pair in
the other order; equal outputs are asserted first. Peak memory is of all tensors a pass over 10 frames holds at a time, features
included, in a process for each side. Needs torch, numpy, scipy, pillow and pydantic.
"""

import argparse
import itertools
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import textbook_davis as textbook
import torch
from numpy.typing import NDArray
from scipy import ndimage
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

sys.path.insert(0, str(Path(__file__).parents[1]))  # where the project is not installed

from components.davis import scores
from components.davis.propagation import Context, propagate

H, W, OBJECTS, RECENT, RADIUS, VIDEO = 30, 52, 3, 7, 12, 70
SETTINGS = {"top_k": 5, "temperature": 0.1}
CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}
chosen_clock = "wall"


def features(width: int, count: int, device: str) -> Iterator[Tensor]:
    """Token grids [h,w,D] of a video that changes slowly, made when asked for."""
    draws = torch.Generator().manual_seed(0)
    grid_hwD = torch.randn(H, W, width, generator=draws)
    for _ in range(count):
        grid_hwD = grid_hwD + 0.3 * torch.randn(H, W, width, generator=draws)
        yield grid_hwD.to(device)


def first_labels(device: str) -> Tensor:
    ids = torch.randint(0, OBJECTS + 1, (H, W), generator=torch.Generator().manual_seed(1))
    return torch.nn.functional.one_hot(ids).permute(2, 0, 1).float().to(device)


def ours(width: int, count: int, device: str) -> Iterator[Tensor]:
    grids = features(width, count, device)
    return propagate(grids, first_labels(device), radius=RADIUS, context_frames=RECENT, **SETTINGS)  # type: ignore[arg-type]


def direct(width: int, count: int, device: str, near_NN: Tensor) -> Iterator[Tensor]:
    tokens = (grid.flatten(0, 1) for grid in features(width, count, device))
    labels = first_labels(device).flatten(1)
    for labels_KN in textbook.propagate(tokens, labels, near_NN, context_frames=RECENT, **SETTINGS):  # type: ignore[arg-type]
        yield labels_KN.view(-1, H, W)


def timed(work: Callable[[], object], device: str) -> float:
    clock = CLOCKS[chosen_clock]
    start = clock()
    work()
    if device == "cuda":
        torch.cuda.synchronize()
    return clock() - start


def interleaved(
    one: Callable[[], object], other: Callable[[], object], pairs: int, device: str
) -> tuple[list[float], list[float]]:
    """Seconds of both, taken in turns, each turn in the other order."""
    seconds: tuple[list[float], list[float]] = ([], [])
    timed(one, device), timed(other, device)
    for pair in range(pairs):
        for which in (0, 1) if pair % 2 == 0 else (1, 0):
            seconds[which].append(timed((one, other)[which], device))
    return seconds


def ratio(numerator: list[float], denominator: list[float]) -> str:
    ratios = sorted(a / b for a, b in zip(numerator, denominator, strict=True))
    low, high = ratios[len(ratios) // 4], ratios[-1 - len(ratios) // 4]
    fastest = min(numerator) / min(denominator)
    return f"{fastest:.2f} of the fastest; pairs: median {statistics.median(ratios):.2f}, middle half {low:.2f} to {high:.2f}"


def propagation(width: int, pairs: int, device: str) -> None:
    print(f"\nlabel propagation, width {width}, {H}×{W} tokens, {RECENT + 1} context frames", flush=True)
    built: list[Tensor] = []
    building = timed(lambda: built.append(textbook.neighbourhood(H, W, RADIUS).to(device)), "cpu")
    near_NN = built[0]
    worst = 0.0
    for mine, its in zip(ours(width, RECENT + 6, device), direct(width, RECENT + 6, device, near_NN), strict=True):
        torch.testing.assert_close(mine, its, rtol=0, atol=1e-5)
        worst = max(worst, (mine - its).abs().max().item())
    print(f"  equal outputs: {RECENT + 5} frames, largest difference {worst:.1e}")

    grids = [torch.nn.functional.normalize(grid, dim=-1) for grid in features(width, 2 * RECENT + 2, device)]
    labels_hwK = first_labels(device).permute(1, 2, 0)
    context = Context(grids[0], labels_hwK, RECENT, RADIUS)
    for grid in grids[1 : RECENT + 1]:
        context.add(grid, labels_hwK)
    targets, tokens = itertools.cycle(grids), [grid.flatten(0, 1) for grid in grids[: RECENT + 2]]
    columns = [labels_hwK.flatten(0, 1).T] * (RECENT + 1)

    def mine_once() -> None:
        unit_hwD = torch.nn.functional.normalize(next(targets), dim=-1)
        context.add(unit_hwD, context.vote(unit_hwD, **SETTINGS))  # type: ignore[arg-type]

    def direct_once() -> None:
        textbook.transfer(tokens[-1], torch.stack(tokens[:-1]), torch.cat(columns, 1), near_NN, **SETTINGS)  # type: ignore[arg-type]

    mine, its = interleaved(mine_once, direct_once, pairs, device)
    print(f"  frames/s of the fastest: ours {1 / min(mine):.2f}, direct {1 / min(its):.2f}")
    print(f"  direct / ours, time of a frame: {ratio(its, mine)}")
    whole = building + (VIDEO - 1) * statistics.median(its), (VIDEO - 1) * statistics.median(mine)
    print(
        f"  direct / ours, a video of {VIDEO} frames with its neighbourhood ({building:.1f} s): {whole[0] / whole[1]:.2f}"
    )
    peaks = {side: peak(side, width, device) for side in ("ours", "direct")}
    print(
        f"  peak memory, MiB: ours {peaks['ours']:.0f}, direct {peaks['direct']:.0f}; ours / direct {peaks['ours'] / peaks['direct']:.2f}"
    )


def peak(side: str, width: int, device: str) -> float:
    """MiB that a pass over 10 frames needs, measured in a process of its own."""
    command = [sys.executable, __file__, "--peak", side, "--width", str(width), "--device", device]
    return float(
        json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()[-1])
    )


def measure_peak(side: str, width: int, device: str) -> None:
    near_NN = textbook.neighbourhood(H, W, RADIUS).to(device) if side == "direct" else torch.empty(0)

    def passed() -> None:
        frames = RECENT + 3
        for _ in ours(width, frames, device) if side == "ours" else direct(width, frames, device, near_NN):
            pass

    if device == "cuda":
        passed()
        torch.cuda.reset_peak_memory_stats()
        passed()
        print(torch.cuda.max_memory_allocated() / 2**20)
        return
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
        passed()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        profiled.export_chrome_trace(str(path))
        events = json.loads(path.read_text())["traceEvents"]
    held = near_NN.nbytes  # made before
    print((held + max(event["args"]["Total Allocated"] for event in events if event["name"] == "[memory]")) / 2**20)


def masks(frame: int) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Predicted and true ids [480,854]: three ragged blobs on background, and the same a little elsewhere."""
    draws = np.random.default_rng(frame)
    fields = ndimage.gaussian_filter(draws.normal(size=(OBJECTS + 1, 480, 854)), (0, 25, 25))
    fields[0] += fields.std()
    rough = ndimage.gaussian_filter(draws.normal(size=fields.shape), (0, 4, 4))
    return (fields + 0.15 * rough * fields.std() / rough.std()).argmax(0).astype(np.uint8), fields.argmax(0).astype(
        np.uint8
    )


def measures(pairs: int) -> None:
    print(f"\nJ and F of {OBJECTS} objects in a frame of 854×480", flush=True)
    predicted_HW, true_HW = masks(0)
    cases = [(predicted_HW == label, true_HW == label) for label in range(1, OBJECTS + 1)]

    def mine() -> list[float]:
        return [value for case in cases for value in (scores.region_overlap(*case), scores.boundary_agreement(*case))]

    def direct() -> list[float]:
        return [
            value for case in cases for value in (textbook.region_overlap(*case), textbook.boundary_agreement(*case))
        ]

    np.testing.assert_allclose(mine(), direct(), rtol=0, atol=1e-12)
    print("  equal outputs: J and F " + ", ".join(f"{value:.3f}" for value in mine()))
    own, its = interleaved(mine, direct, pairs, "cpu")
    print(f"  ms of the fastest: ours {1e3 * min(own):.1f}, direct {1e3 * min(its):.1f}")
    print(f"  direct / ours: {ratio(its, own)}", flush=True)


@torch.inference_mode()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--width", type=int, nargs="+", default=[768, 384])
    parser.add_argument("--pairs", type=int, default=15)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument(
        "--clock", choices=list(CLOCKS), default="wall", help="cpu: seconds of CPU, where others work as well"
    )
    parser.add_argument("--peak", choices=["ours", "direct"], help=argparse.SUPPRESS)
    options = parser.parse_args()
    global chosen_clock
    chosen_clock = options.clock
    torch.set_num_threads(options.threads)
    if options.peak:
        measure_peak(options.peak, options.width[0], options.device)
        return
    name = torch.cuda.get_device_name() if options.device == "cuda" else platform.processor() or platform.machine()
    print(
        f"{name}, {options.threads} of {os.cpu_count()} cores, {options.clock} time, torch {torch.__version__}",
        flush=True,
    )
    for width in options.width:
        propagation(width, options.pairs, options.device)
    measures(options.pairs)


if __name__ == "__main__":
    main()
