"""What drawing masks costs, and what it gives: `python benchmarks/masks.py`.

Milliseconds for 256 images on a 14×14 grid, on one core; then the mean number of context patches by the images that one worker
has in a step, over 100 steps. With one image nothing is cut to the shortest.
"""

import os
import platform
import statistics
import time
from pathlib import Path

import torch

from components.mim import masks
from components.mim.grid import Size
from components.pretrain.contract import PretrainParams
from components.pretrain.model_params import Masks
from components.stage import read_yaml

ROOT = Path(__file__).parents[1]


def main() -> None:
    torch.set_num_threads(1)
    print(f"{platform.processor() or platform.machine()}, one of {os.cpu_count()} cores, torch {torch.__version__}")
    settings = PretrainParams(**read_yaml(ROOT / "params/presets/vit_b16.yaml")["pretrain"]).masks
    for sampler in ("multiblock", "legacy", "random"):
        chosen, places, seconds = settings.model_copy(update={"sampler": sampler}), torch.arange(256), []
        for step in range(55):
            start = time.perf_counter()
            masks.sample(0, step, places, Size(14, 14), chosen)
            seconds.append(time.perf_counter() - start)
        kept = sorted(seconds[5:])
        print(f"{sampler}: median {1e3 * statistics.median(kept):.1f} ms, slowest of 50 steps {1e3 * kept[-1]:.1f} ms")
    for sampler in ("multiblock", "legacy"):
        chosen = settings.model_copy(update={"sampler": sampler})
        print(
            f"context patches, {sampler}:",
            ", ".join(f"{length(chosen, n):.1f} at {n}" for n in (1, 16, 32, 64, 128, 256)),
        )


def length(settings: Masks, images: int) -> float:
    """Mean context of a worker's `images`."""
    places = torch.arange(images)
    drawn = (masks.sample(0, step, places, Size(14, 14), settings) for step in range(100 if images > 1 else 6400))
    return statistics.mean(one.context_BK.shape[1] for one in drawn)


if __name__ == "__main__":
    main()
