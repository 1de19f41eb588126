"""What probing costs: `python benchmarks/probe.py [--size vit_s16] [--device cuda]`.

A training step of 32 heads beside one of a single head, on random crops (decoding and the frozen forward included) and on kept
features; and the extraction of features beside the bare forward pass of the encoder on the same pixels. Both sides of a
comparison take turns in one process after their results were found equal: the single head among the 32, the pooled tokens of the
bare pass among the features. A figure is the median of the turns' ratios, with their middle half. The images are drawn from a
seed: JPEG, 256 pixels.
"""

import argparse
import os
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import redirect_stdout
from io import BytesIO, StringIO
from pathlib import Path

import numpy as np
import torch
from PIL import Image

sys.path.insert(0, str(Path(__file__).parents[1]))  # where the project is not installed

from components.images import decoding, store
from components.images.loading import threaded
from components.images.transforms import View, normalise
from components.mim.encoder import Encoder, EncoderConfig
from components.mim.initialise import initialise
from components.probe.dataset import Part, Subject
from components.probe.extraction import DECODERS
from components.probe.heads import Heads, Source, Task, fit
from components.probe.kept import pooled
from components.probe.params import Encoding, HeadParams
from components.probe.sources import Augmented, Cached, Crop

clock = time.perf_counter
SIZES = {"vit_tiny16": (192, 12, 3), "vit_s16": (384, 12, 6), "vit_b16": (768, 12, 12)}
RATES = [0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0]


def grid(rates: list[float], batch_norm: str, batch: int) -> HeadParams:
    values = {"batch_size": batch, "optimiser": "sgd", "learning_rates": rates, "weight_decays": [0.0005]}
    more = {"batch_norm": batch_norm, "schedule": "cosine", "milestones": []}
    return HeadParams.model_validate(values | more)


def images(folder: Path, count: int, classes: int) -> store.Store:
    """A prepared dataset of smooth noise, so that JPEG has something to decode."""
    draws, rows = np.random.default_rng(0), []
    for i in range(count):
        small = Image.fromarray(draws.integers(0, 256, (32, 32, 3), dtype=np.uint8))
        file = BytesIO()
        small.resize((256, 256), Image.Resampling.BICUBIC).save(file, "JPEG", quality=90)
        rows.append({"path": f"train/{i:05d}.jpg", "image": file.getvalue(), "label": i % classes})
    splits = store.write(folder, "images", {"train": rows}, shard_mib=64)
    card = {"name": "noise", "kind": "images", "format": "image_folder", "splits": splits}
    names = [f"class {i}" for i in range(classes)]
    store.write_card(folder, {**card, "classes": names, "mean": [0.5] * 3, "std": [0.2] * 3, "skipped": []})
    return store.Store(folder, "train")


def timed(work: Callable[[], object], device: torch.device) -> float:
    start = clock()
    with redirect_stdout(StringIO()):
        work()
    if device.type == "cuda":
        torch.cuda.synchronize()
    return clock() - start


def turns(many: Callable[[], object], one: Callable[[], object], device: torch.device, count: int) -> str:
    """Median and middle half of many/one, the two in turns, and the seconds of each."""
    seconds = [(timed(many, device), timed(one, device)) for _ in range(count)]
    ratios = sorted(a / b for a, b in seconds)
    low, _, high = statistics.quantiles(ratios, n=4)
    first, second = (statistics.median(side) for side in zip(*seconds, strict=True))
    return f"{statistics.median(ratios):.2f} ({low:.2f} to {high:.2f}) | {first:.3f} s / {second:.3f} s"


def equal(all_of_them: Heads, alone: Heads, rate: float) -> None:
    """The head that was trained alone is the same among the 32."""
    group = next(g for g in all_of_them.groups if (g.features, g.batch_norm) == ("last4", True))
    torch.testing.assert_close(group.weight[RATES.index(rate)], alone.groups[0].weight[0], rtol=1e-4, atol=1e-6)


def heads(source: Callable[[], Source], classes: int, batch: int, device: torch.device, repeats: int) -> str:
    task = Task("benchmark", [str(i) for i in range(classes)], 1)

    def train(params: HeadParams, only: str = "") -> Heads:
        chosen = source()
        chosen.widths = {name: width for name, width in chosen.widths.items() if only in ("", name)}
        return fit(params, task, chosen, 0, device)

    many, one = grid(RATES, "both", batch), grid([0.1], "yes", batch)
    with redirect_stdout(StringIO()):
        trained = train(many)
        assert len(trained.heads) == 32
        equal(trained, train(one, "last4"), 0.1)
    return turns(lambda: train(many), lambda: train(one, "last4"), device, repeats)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", choices=SIZES, default="vit_s16")
    parser.add_argument("--batch", type=int, default=64, help="images in a training step and in a pass of the encoder")
    parser.add_argument("--classes", type=int, default=1000)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument(
        "--clock",
        choices=("wall", "cpu"),
        default="wall",
        help="cpu: seconds of all threads, for a machine that others use",
    )
    options = parser.parse_args()
    if options.clock == "cpu":
        global clock
        clock = time.process_time
    width, layers, count = SIZES[options.size]
    device, batch = torch.device(options.device), options.batch
    encoder = Encoder(EncoderConfig(image_size=224, patch_size=16, width=width, layers=layers, heads=count))
    initialise(encoder, 0, "fixed", "encoder.")
    encoder = encoder.eval().requires_grad_(False).to(device)
    subject = Subject("pretrained", encoder, Path("encoder.safetensors"), "0" * 64 + "-pretrained")
    print(
        f"{options.size}, batch {batch}, {options.classes} classes, {options.device}; {options.clock} seconds; ", end=""
    )
    print(f"{os.cpu_count()} cores, {torch.get_num_threads()} threads, {platform.machine()}, torch {torch.__version__}")
    print("\n| | ratio | seconds |\n|---|---|---|", flush=True)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        part = Part(images(folder / "noise", 2 * batch, options.classes), np.arange(2 * batch))
        one_batch, view = Part(part.store, np.arange(batch)), View(224, 224, 256, mirror=False)
        how, made = Encoding(batch, 1, torch.get_num_threads()), 0

        def extract() -> np.ndarray:
            nonlocal made
            made += 1
            where = folder / "work" / str(made)
            return pooled(subject, part, view, layers=4, encoding=how, folder=where, label="").matrix

        def read() -> list[torch.Tensor]:
            plan = iter(np.split(part.rows, 2))

            def reader(rows: np.ndarray) -> Callable[[int], np.ndarray]:
                return lambda i: view(decoding.pixels(part.store, int(rows[i])))

            return [pixels for _, pixels in threaded(plan, reader, DECODERS)]

        pixels = read()

        @torch.inference_mode()
        def bare() -> list[torch.Tensor]:
            return [encoder(normalise(x.to(device))) for x in pixels]

        with redirect_stdout(StringIO()):
            tokens = torch.cat(bare()).mean(dim=1).cpu().numpy()
            np.testing.assert_allclose(extract()[:, -width:], tokens, rtol=1e-3, atol=1e-4)
        print("| extraction / bare forward |", turns(extract, bare, device, options.repeats), "|", flush=True)
        print("| decoding alone / bare forward |", turns(read, bare, device, options.repeats), "|", flush=True)
        labels, crop = one_batch.labels(), Crop(224, 0.08, 1.0, True)
        crops = heads(
            lambda: Augmented(subject, one_batch, labels, crop, 0, 4, batch),
            options.classes, batch, device, options.repeats,
        )  # fmt: skip
        print("| 32 heads / 1 head, random crops |", crops, "|", flush=True)
        with redirect_stdout(StringIO()):
            kept = pooled(subject, one_batch, view, layers=4, encoding=how, folder=folder / "kept", label="")
        kept_step = heads(
            lambda: Cached([kept], np.arange(batch), labels, 0, device), options.classes, batch, device, options.repeats
        )
        print("| 32 heads / 1 head, kept features |", kept_step, "|", flush=True)


if __name__ == "__main__":
    main()
