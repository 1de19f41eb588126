"""What preparing a dataset costs beside copying its files: `python benchmarks/preparing.py --images FOLDER`.

FOLDER holds photographs; they are repeated until there are enough. One core, files read from the page cache, until what is written is on
the disk, since a dataset is larger than what memory can hold back; in turns, medians and the middle half of the ratios.
Both preparations decode 2,000 images for mean and std, whatever the dataset's size, so a rate is that of the images by which
the larger of two sizes exceeds the smaller; ImageNet has 500 times as many. The bytes stored are compared with the files first. Then what
`resize_short_side: 256` saves: bytes stored, and the time of decoding and cropping to 224 pixels.
"""

import argparse
import contextlib
import hashlib
import io
import os
import platform
import shutil
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np
import torch

from components.images import decoding
from components.images.store import Store
from components.images.transforms import crop_draws, random_crop
from components.prepare.contract import LIST, DatasetParams, PrepareInputs, PrepareOutputs, PrepareParams
from components.prepare.run import run

ROOT = Path(__file__).parents[1]
WAYS = ("copy", "structure", "decode", "resize")


def repeated(photos: list[Path], folder: Path, count: int) -> Path:
    for number in range(count):
        path = folder / f"train/{number % 10}/{number:06d}{photos[0].suffix}"
        path.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(photos[number % len(photos)], path)
    return folder


def seconds(way: str, raw: Path, work: Path) -> float:
    start = time.perf_counter()
    if way == "copy":
        shutil.copytree(raw, work / "copy")
    else:
        prepare(way, raw, work)
    os.sync()
    return time.perf_counter() - start


def prepare(check: str, raw: Path, work: Path) -> None:
    subset = {"per_class": 0, "list": LIST, "sha256": hashlib.sha256((ROOT / LIST).read_bytes()).hexdigest()}
    fields = {"licence": "unknown", "counts": "any", "subset": subset, "seed": 0, "check": check, "on_error": "fail"}
    short, quality = (256, 90) if check == "resize" else (0, 0)
    fields["check"] = "decode" if check == "resize" else check
    sizes = {
        "skip_budget": 0,
        "resize_short_side": short,
        "quality": quality,
        "scenes": 0,
        "clips": 0,
        "shard_mib": 256,
    }
    dataset = DatasetParams(source="data/raw/photos", format="image_folder", **fields, **sizes)
    names = ("dataset", "sheet", "work", "metrics", "run")
    outputs = PrepareOutputs(**{name: work / check / name for name in names})
    inputs = PrepareInputs(source=raw, subset_list=ROOT / LIST)
    with contextlib.redirect_stdout(io.StringIO()):
        run(PrepareParams(datasets={"photos": dataset}), inputs, outputs)


def check_bytes(raw: Path, work: Path) -> None:
    store = Store(work / "structure/dataset", "train")
    paths = store.column("path")
    assert len(paths) == sum(1 for _ in raw.rglob("*.*"))
    assert all(store.bytes(row) == (raw / path).read_bytes() for row, path in enumerate(paths))


def crops_ms(store: Store, rows: int) -> float:
    """Milliseconds an image for decoding and cropping."""
    draws = crop_draws(0, 0, np.arange(rows))
    start = time.perf_counter()
    for row in range(rows):
        random_crop(decoding.pixels(store, row), draws[row], size=224, scale_min=0.3, scale_max=1.0, flip=False)
    return 1e3 * (time.perf_counter() - start) / rows


def resized(raw: Path, work: Path, repeats: int) -> str:
    """What scaling down saves, as a line."""
    for way in ("structure", "resize"):
        prepare(way, raw, work)
    whole, small = (Store(work / way / "dataset", "train") for way in ("structure", "resize"))
    rows = min(500, len(whole))
    pairs = [(crops_ms(whole, rows), crops_ms(small, rows)) for _ in range(repeats)]
    before, after = (store.card["splits"]["train"]["bytes"] / len(store) / 1000 for store in (whole, small))
    faster = statistics.median(one / other for one, other in pairs)
    times = " and ".join(f"{statistics.median(side):.2f}" for side in zip(*pairs, strict=True))
    stored = f"{after:.0f} kB an image instead of {before:.0f}"
    return f"resize_short_side 256, quality 90: {stored}; decoded and cropped {faster:.2f} times as fast ({times} ms)"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--images", type=Path, required=True, help="folder of photographs")
    parser.add_argument(
        "--count", type=int, default=2500, help="files of the smaller size; the larger has three times as many"
    )
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    photos = sorted(path for path in options.images.rglob("*") if path.suffix.lower() in (".jpg", ".jpeg"))
    if not photos:
        raise SystemExit(
            f"error: --images is {str(options.images)!r}, which holds no .jpg; give a folder of photographs"
        )
    torch.set_num_threads(1)
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    took: dict[str, list[float]] = {way: [] for way in WAYS}
    with tempfile.TemporaryDirectory(dir=ROOT / "work" if (ROOT / "work").is_dir() else None) as folder:
        sizes = options.count, 3 * options.count
        raws = [repeated(photos, Path(folder) / f"raw{size}", size) for size in sizes]
        for repeat in range(options.repeats):
            for way in WAYS:
                each = []
                for raw in raws:
                    work = Path(folder) / "out"
                    each.append(seconds(way, raw, work))
                    if way == "structure" and not repeat:
                        check_bytes(raw, work)
                    shutil.rmtree(work)
                took[way].append((each[1] - each[0]) / (sizes[1] - sizes[0]))
        saved = resized(raws[0], Path(folder) / "out", options.repeats)
    mean = sum(path.stat().st_size for path in photos) / len(photos)
    print(
        f"{platform.processor() or platform.machine()}, one core; {len(photos)} photographs of {mean / 1000:.0f} kB, repeated\n"
    )
    print("| way | images/s | MB/s | of copying |\n|---|---|---|---|")
    for way in WAYS:
        rate = 1 / statistics.median(took[way])
        ratios = sorted(copy / own for copy, own in zip(took["copy"], took[way], strict=True))
        quarter = len(ratios) // 4
        spread = f"{statistics.median(ratios):.2f} ({ratios[quarter]:.2f} to {ratios[-1 - quarter]:.2f})"
        label = {"copy": "copy the files", "resize": "resize_short_side: 256"}.get(way, f"check: {way}")
        print(f"| {label} | {rate:.0f} | {rate * mean / 1e6:.0f} | {spread} |")
    print(f"\n{saved}")


if __name__ == "__main__":
    main()
