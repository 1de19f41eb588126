"""What loading costs: `python benchmarks/loading.py [--images FOLDER]`.

Per core, on real photographs (the folder `photos` of STOP_SHARED_DATA, or any folder of JPEG files) at 224 pixels: the crops of a training
batch beside the usual pipeline (Pillow, torchvision's RandomResizedCrop, ToTensor and Normalize on its images, stacked) and beside
decoding the same bytes with nothing else. A batch leaves the loader as uint8 and is normalised in the step, where a GPU does it;
the second row counts that on the same core all the same. Both sides draw their crops from one distribution, and the statistics of
what they give are found equal first. Then random against sequential access of a prepared dataset too large for any cache of a
processor, the opening of one with as many rows as ImageNet, and processes that decode: images a second, memory of each.

Sides of a comparison take turns; a figure is the median of the turns' ratios, with their middle half. One thread of torch.
"""

import argparse
import os
import platform
import statistics
import sys
import tempfile
import time
import zlib
from collections.abc import Callable, Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pyarrow as pa
import torch
import yaml
from PIL import Image
from torch import Tensor
from torchvision import transforms as usual
from torchvision.io import ImageReadMode, decode_jpeg

sys.path.insert(0, str(Path(__file__).parents[1]))  # where the project is not installed

from components.images import decoding, store
from components.images import shard as shards
from components.images.transforms import MEAN, STD, normalise
from components.pretrain.batches import Batches
from components.pretrain.contract import PretrainParams

ROOT = Path(__file__).parents[1]
SIZE, IMAGENET, SHARDS = 224, 1_281_167, 550
clock = time.perf_counter


def photographs(folder: Path) -> list[bytes]:
    """RGB JPEG files, those that both pipelines take the same way."""
    paths = sorted(path for path in folder.rglob("*") if path.suffix.lower() in (".jpg", ".jpeg"))
    found = []
    for path in paths:
        with Image.open(path) as image:
            if image.mode == "RGB" and not image.getexif():
                found.append(path.read_bytes())
    if len(found) < 8:
        raise SystemExit(
            f"error: {folder} has {len(found)} JPEG photographs; 8 or more are needed, name another folder by --images"
        )
    return found


def prepared(folder: Path, files: list[bytes], count: int) -> store.Store:
    """A dataset of `count` rows that repeat `files`, each time at other places of the disk and the memory."""
    rows = (
        {"path": f"train/{n:06d}.JPEG", "image": files[n % len(files)], "label": 0, "holdout": 0.5}
        for n in range(count)
    )
    splits = store.write(folder, "images", {"train": rows}, shard_mib=256)
    card(folder, splits)
    return store.Store(folder, "train")


def card(folder: Path, splits: dict[str, Any]) -> None:
    about = {"name": "photographs", "kind": "images", "format": "image_folder", "classes": ["a"], "splits": splits}
    store.write_card(folder, {**about, "mean": [0.5] * 3, "std": [0.2] * 3, "skipped": []})


def many_rows(folder: Path) -> None:
    """As many rows and shards as ImageNet has, each image a kilobyte: opening reads none."""
    (folder / "train").mkdir(parents=True)
    for shard in range(SHARDS):
        numbers = range(IMAGENET * shard // SHARDS, IMAGENET * (shard + 1) // SHARDS)
        values = {
            "path": [f"train/n{n // 1300:08d}/{n:08d}.JPEG" for n in numbers],
            "image": [bytes(1000)] * len(numbers),
        }
        values |= {"label": [n // 1300 for n in numbers], "holdout": [0.5] * len(numbers)}
        values["crc32"] = [zlib.crc32(bytes(1000))] * len(numbers)
        arrays = {name: pa.array(values[name], kind) for name, kind in shards.COLUMNS["images"].items()}
        shards.write_columns(folder / f"train/shard-{shard:05d}.arrow", arrays)
    card(folder, {"train": {"count": IMAGENET, "shards": SHARDS, "content": "0" * 64}})


def recipe(batch: int, loaders: int) -> PretrainParams:
    """I-JEPA's augmentation, which is the crop alone, at 224 pixels."""
    values = yaml.safe_load((ROOT / "params/pretrain.yaml").read_text())
    values["encoder"] |= {"image_size": SIZE, "patch_size": 16}
    values["augmentation"] = {
        "crop_scale_min": 0.3,
        "crop_scale_max": 1.0,
        "flip": False,
        "grayscale": 0.0,
        "blur": 0.0,
    }
    values["optimisation"] |= {"epochs": 1000, "warmup_epochs": 0.0, "global_batch_size": batch}
    values["scale"] |= {"workers": 1, "cpus_per_worker": max(1, loaders), "loaders": loaders}
    return PretrainParams.model_validate(values)


def usual_pipeline() -> Callable[[bytes], Tensor]:
    steps = usual.Compose(
        [
            usual.RandomResizedCrop(SIZE, scale=(0.3, 1.0), interpolation=usual.InterpolationMode.BICUBIC),
            usual.ToTensor(),
            usual.Normalize(MEAN, STD),
        ]
    )
    return lambda data: steps(Image.open(BytesIO(data)).convert("RGB"))


def decoded_barely(data: bytes) -> Tensor:
    return decode_jpeg(torch.frombuffer(bytearray(data), dtype=torch.uint8), ImageReadMode.RGB)


def timed(work: Callable[[], object]) -> float:
    start = clock()
    work()
    return clock() - start


def turns(one: Callable[[], object], other: Callable[[], object], count: int, images: int) -> str:
    """Median and middle half of one/other, the two in turns, and the milliseconds an image takes each."""
    one(), other()
    seconds = [(timed(one), timed(other)) for _ in range(count)]
    ratios = sorted(a / b for a, b in seconds)
    low, _, high = statistics.quantiles(ratios, n=4)
    first, second = (statistics.median(side) / images * 1000 for side in zip(*seconds, strict=True))
    return f"{statistics.median(ratios):.2f} ({low:.2f} to {high:.2f}) | {first:.3f} / {second:.3f} ms an image"


def assert_equal_statistics(
    files: list[bytes], ours: Callable[[int], Tensor], theirs: Callable[[bytes], Tensor]
) -> str:
    """Mean and deviation of each channel over some crops of every photograph, normalised: apart by what chance allows."""
    a, b = [], []
    for epoch in range(12):
        a += list(ours(epoch))
        b += [theirs(data) for data in files]
    moments = [torch.stack(x).transpose(0, 1).flatten(1) for x in (a, b)]
    gaps = [(measure(moments[0], 1) - measure(moments[1], 1)).abs().max().item() for measure in (torch.mean, torch.std)]
    assert max(gaps) < 0.03, (
        f"the outputs differ: means by {gaps[0]:.4f}, deviations by {gaps[1]:.4f} of normalised values"
    )
    return f"means of channels agree to {gaps[0]:.4f}, deviations to {gaps[1]:.4f}, over {len(a)} crops each"


def per_core(files: list[bytes], repeats: int, folder: Path) -> Iterator[str]:
    count = len(files)
    run = Batches(recipe(count, 0), prepared(folder / "small", files, count), 0, 1)
    theirs = usual_pipeline()
    torch.manual_seed(0)
    print(assert_equal_statistics(files, lambda epoch: normalise(run.batch(epoch).pixels), theirs), "\n", flush=True)
    print("| | ratio | |\n|---|---|---|", flush=True)
    step = iter(range(10**6))

    def crops() -> Tensor:
        return run.batch(next(step)).pixels

    def usually() -> Tensor:
        return torch.stack([theirs(data) for data in files])

    def barely() -> list[Tensor]:
        return [decoded_barely(data) for data in files]

    yield f"| usual pipeline / loader (target ≥ 2) | {turns(usually, crops, repeats, count)} |"
    checks = turns(lambda: [zlib.crc32(data) for data in files], crops, repeats, count)
    yield f"| CRC-32 of the stored bytes / loader, which checks it (target ≤ 0.03) | {checks} |"
    both = turns(usually, lambda: normalise(crops()), repeats, count)
    yield f"| usual pipeline / loader and the step's normalisation on this core | {both} |"
    yield f"| bare JPEG decoding / loader (target ≥ 0.6) | {turns(barely, crops, repeats, count)} |"


def access(files: list[bytes], rows: int, repeats: int, folder: Path) -> Iterator[str]:
    data = prepared(folder / "large", files, rows)
    size = sum(path.stat().st_size for path in (folder / "large").rglob("*.arrow")) / 2**30
    few = 2000
    draws = np.random.default_rng(0)

    def places(random: bool) -> list[int]:
        start = int(draws.integers(rows - few))
        return draws.permutation(rows)[:few].tolist() if random else list(range(start, start + few))

    for what, read in (("bytes alone", data.bytes), ("decoded", lambda row: decoding.pixels(data, row))):

        def go(random: bool, read: Callable[[int], object] = read) -> None:
            for row in places(random):
                read(row)

        ratio = turns(lambda: go(True), lambda: go(False), repeats, few)
        yield f"| random / sequential, {what}, {rows} photographs, {size:.1f} GiB (target ≤ 1.3) | {ratio} |"


def opening(folder: Path, repeats: int) -> str:
    many_rows(folder / "many")

    def start() -> None:
        data = store.Store(folder / "many", "train")
        data.column("label")
        data.view(int(np.random.default_rng(0).permutation(len(data))[0]))

    start()
    seconds = [timed(start) for _ in range(repeats)]
    what = f"opening {IMAGENET} rows in {SHARDS} shards, labels, an epoch's order and one image's bytes (target < 2 s)"
    return f"| {what} | {statistics.median(seconds):.2f} s | {min(seconds):.2f} to {max(seconds):.2f} s |"


def held(process: psutil.Process) -> str:
    """A process's share of memory: what it has alone, and its part of what several have."""
    lines = Path(f"/proc/{process.pid}/smaps_rollup").read_text().splitlines()[1:]
    values = {line.split()[0]: int(line.split()[1]) / 1024 for line in lines}
    return f"{values['Pss:']:.0f} MiB, {values['Private_Dirty:']:.0f} of them its own"


def processes(files: list[bytes], folder: Path, batch: int, steps: int) -> Iterator[str]:
    data = prepared(folder / "fed", files, max(batch, len(files)) * 4)
    for loaders in (0, 1, 2):
        given = Batches(recipe(batch, loaders), data, 0, 1).steps(0, steps)
        for _ in range(1 + 2 * loaders):
            next(given)  # what was decoded before the clock runs
        start = time.perf_counter()
        taken = sum(len(batch.pixels) for batch in given) if loaders == 0 else 0
        if loaders:
            for _ in range(steps - 1 - 2 * loaders):
                taken += len(next(given).pixels)
        seconds = time.perf_counter() - start
        servers = [child for child in psutil.Process().children() if "forkserver" in " ".join(child.cmdline())]
        memory = "; ".join(held(process) for server in servers for process in server.children()) or "–"
        yield f"| `scale.loaders` {loaders} | {taken / seconds:.0f} images/s | {memory} |"
        given.close()


def main() -> None:
    shared = os.environ.get("STOP_SHARED_DATA")
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=Path, default=Path(shared) / "photos" if shared else None, required=not shared)
    parser.add_argument("--rows", type=int, default=16000, help="of the dataset for random access, 0.11 MB each")
    parser.add_argument("--batch", type=int, default=64, help="images in a batch of the processes that decode")
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument(
        "--clock",
        choices=("wall", "cpu"),
        default="wall",
        help="cpu: seconds of all threads, for a machine that others use; not for images a second",
    )
    options = parser.parse_args()
    if options.clock == "cpu":
        global clock
        clock = time.process_time
    torch.set_num_threads(1)
    files = photographs(options.images)
    print(
        f"{len(files)} photographs of {sum(map(len, files)) / len(files) / 1000:.0f} kB; {options.clock} seconds; ",
        end="",
    )
    print(f"{os.cpu_count()} cores, {platform.machine()}, {model()}, torch {torch.__version__}")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for line in per_core(files, options.repeats, folder):
            print(line, flush=True)
        for line in access(files, options.rows, options.repeats, folder):
            print(line, flush=True)
        print(opening(folder, options.repeats), flush=True)
        for line in processes(files, folder, options.batch, 24):
            print(line, flush=True)


def model() -> str:
    """The processor's name."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return next((line.partition(": ")[2] for line in lines if line.startswith("model name")), "unknown processor")


if __name__ == "__main__":
    main()
