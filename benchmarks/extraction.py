"""What sharing the encoding of features gives: `python benchmarks/extraction.py [--workers 2] [--size vit_s16]`.

The same images by one process and by Ray workers, in turns, each process on one thread, after their features were found equal to the
bit. A rate is that of the middle pieces, where all workers work; what comes before the first piece, Ray's start and the import of torch in
its workers, stands beside it in seconds. Beside both stands what the machine allows: as many processes without Ray, which start together
and know nothing of each other. The images are drawn from a seed: JPEG, 256 pixels.
"""

import argparse
import os
import platform
import statistics
import sys
import tempfile
import time
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parents[1]))  # where the project is not installed
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

from probe import SIZES, images

from components.images.store import Store
from components.images.transforms import View
from components.mim.encoder import Encoder, EncoderConfig
from components.mim.initialise import initialise
from components.mim.weights import save
from components.probe import extraction, workers
from components.probe.dataset import Part, subjects
from components.probe.extraction import Request, columns
from components.probe.params import Encoding
from components.probe.pieces import Pieces, cut

VIEW = View(224, 224, 256, mirror=False)
LAYERS = 4


class Turn:
    """One extraction into `folder`, timed."""

    def __init__(self, encoder: Path, folder: Path, batch: int, count: int) -> None:
        self.subject, _ = subjects(encoder, 224, 224, torch.device("cpu"))
        store = Store(encoder.parent / "images", "train")
        self.request = Request(Part(store, np.arange(len(store))), VIEW, LAYERS, Encoding(batch, count, 1))
        width = max(part.stop for part in columns(self.subject.encoder, LAYERS).values())
        self.pieces = Pieces(folder, cut(len(store), batch), width)
        self.ends: list[float] = []
        """When each piece was there, s from the start."""

    def run(self) -> "Turn":
        start, count = time.perf_counter(), self.request.encoding.workers

        def advance(_: int) -> None:
            self.ends.append(time.perf_counter() - start)

        if count > 1:
            workers.fill(self.pieces, self.pieces.all, self.subject, self.request, advance, "")
        else:
            for piece in self.pieces.all:  # one by one, as workers get them
                extraction.fill(self.pieces, [piece], self.subject, self.request, lambda _: None)
                advance(piece.rows)
        return self

    def rate(self) -> float:
        """Images per second while all workers worked."""
        count, rows = self.request.encoding.workers, self.pieces.all[0].rows
        first, last = 2 * count - 1, len(self.ends) - count
        return (last - first) * rows / (self.ends[last] - self.ends[first])

    def matrix(self) -> np.ndarray:
        self.pieces.join(path := self.pieces.folder.with_suffix(".npy"))
        return np.load(path)


def beside_others(encoder: Path, folder: Path, batch: int, together: Any, rates: Any) -> None:
    """A process of those that know nothing of each other."""
    turn = Turn(encoder, folder, batch, 1)
    together.wait()
    rates.put(turn.run().rate())


def unconnected(encoder: Path, folder: Path, batch: int, count: int) -> float:
    """Images per second of `count` such processes."""
    context = get_context("spawn")
    together, rates = context.Barrier(count), context.Queue()
    arguments = [(encoder, folder / f"alone{i}", batch, together, rates) for i in range(count)]
    processes = [context.Process(target=beside_others, args=each) for each in arguments]
    for process in processes:
        process.start()
    found = [rates.get(timeout=600) for _ in processes]
    for process in processes:
        process.join()
    return sum(found)


def spread(values: list[float], digits: int = 2) -> str:
    """Median and middle half."""
    low, _, high = statistics.quantiles(values, n=4)
    return f"{statistics.median(values):.{digits}f} ({low:.{digits}f} to {high:.{digits}f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", choices=SIZES, default="vit_s16")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--images", type=int, default=256)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    width, layers, heads = SIZES[options.size]
    print(
        f"{options.size}, {options.images} images in batches of {options.batch}, one thread each; {os.cpu_count()} cores, ",
        end="",
    )
    print(f"{platform.machine()}, torch {torch.__version__}, load {os.getloadavg()[0]:.1f} before")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        encoder = Encoder(EncoderConfig(image_size=224, patch_size=16, width=width, layers=layers, heads=heads))
        initialise(encoder, 0, "fixed", "encoder.")
        save(path := folder / "encoder.safetensors", encoder, {"seed": 0, "weight_init": "fixed"})
        images(folder / "images", options.images, 10)
        ratios, limits, starts = list[float](), list[float](), list[float]()
        for turn in range(options.repeats):
            one = Turn(path, folder / f"one{turn}", options.batch, 1).run()
            many = Turn(path, folder / f"many{turn}", options.batch, options.workers).run()
            limits.append(unconnected(path, folder / str(turn), options.batch, options.workers) / one.rate())
            ratios.append(many.rate() / one.rate())
            starts.append(many.ends[0] - one.ends[0])
            np.testing.assert_array_equal(many.matrix(), one.matrix())
    print(f"\n| | {options.workers} beside 1 |\n|---|---|")
    print(f"| Ray workers, images/s | {spread(ratios)} |")
    print(f"| processes that know nothing of each other | {spread(limits)} |")
    print(f"| Ray workers / those | {spread([a / b for a, b in zip(ratios, limits, strict=True)])} |")
    print(f"| seconds more until the first piece | {spread(starts, 1)} |")


if __name__ == "__main__":
    main()
