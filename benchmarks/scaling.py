"""What Ray and checkpoints cost a step: `python benchmarks/scaling.py [--only ray checkpoint kill] [--repeats 3] [--batch 128]`.

Real runs of the stage on a synthetic dataset, threads pinned to one a worker, interleaved; the step time of a run is the median of its
logged ones. What a second worker gives: `benchmarks/workers.py`.

- `ray`: a step under `backend: ray`, under `backend: none` (the stage with MLflow) and in the bare loop (`components.pretrain.local`).
- `checkpoint`: for how long a step stands still for a checkpoint, and how long it takes to be written beside training.
- `kill`: seconds from SIGKILL of the worker until a step is logged that was not before.
"""

import argparse
import contextlib
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import torch
from PIL import Image

sys.path.insert(0, str(Path(__file__).parents[1]))  # where the project is not installed

from components.images import store
from components.images.store import Store
from components.pretrain import checkpoints
from components.pretrain.batches import Batches
from components.pretrain.checkpoints import Checkpoints
from components.pretrain.contract import PretrainParams
from components.pretrain.loop import Trainer
from components.pretrain.parallel import Alone
from components.stage import canonical_yaml, read_yaml

ROOT = Path(__file__).parents[1]
INIT = ROOT / "components/mim/initialise.py"
OUTPUTS = {
    "encoder": "encoder.safetensors", "predictor": "predictor.safetensors", "state": "state.safetensors", "history": "history.csv",
    "spectrum": "spectrum.csv", "masks": "masks.png", "work": "work", "metrics": "metrics.json", "run": "run.json",
}  # fmt: skip
IMAGES, SIDE = 512, 64


def dataset(folder: Path) -> Path:
    """So many photographs of noise, as JPEG."""
    generator = np.random.default_rng(0)

    def row(index: int, split: str) -> dict[str, Any]:
        file = BytesIO()
        Image.fromarray(generator.integers(0, 256, (SIDE, SIDE, 3), dtype=np.uint8)).save(file, "JPEG")
        return {"path": f"{split}/{index:04d}.jpg", "image": file.getvalue(), "label": index % 4}

    folder.mkdir()
    rows = {split: [row(index, split) for index in range(count)] for split, count in (("train", IMAGES), ("test", 8))}
    card = {
        "name": "noise", "kind": "images", "format": "image_folder", "classes": ["a", "b", "c", "d"],
        "splits": store.write(folder, "images", rows, shard_mib=64), "mean": [0.5] * 3, "std": [0.25] * 3, "skipped": [],
    }  # fmt: skip
    store.write_card(folder, card)
    return folder


def values(steps: int, batch: int, backend: str = "ray", workers: int = 1) -> dict[str, Any]:
    """A ViT 192 wide and 6 layers deep for at least so many steps."""
    chosen = read_yaml(ROOT / "params/pretrain.yaml")
    chosen["dataset"] = "noise"
    chosen["encoder"] |= {"image_size": SIDE, "patch_size": 8, "width": 192, "layers": 6, "heads": 3}
    chosen["predictor"] |= {"width": 96, "layers": 3, "heads": 3}
    chosen["quality"] |= {"every_epochs": 0.0, "dataset": "noise"}
    epochs = -(-steps * batch // IMAGES)
    chosen["optimisation"] |= {"epochs": epochs, "warmup_epochs": 0.0, "global_batch_size": batch}
    chosen["scale"] |= {"backend": backend, "workers": workers, "device": "cpu", "cpus_per_worker": 1, "loaders": 0}
    return chosen | {"log_every": 5, "checkpoint_every": 10**6}


def begin(folder: Path, data: Path, chosen: dict[str, Any], bare: bool = False) -> subprocess.Popen[bytes]:
    """Starts the stage, or the bare loop."""
    folder.mkdir()
    (folder / "pretrain.yaml").write_text(canonical_yaml(chosen))
    common = ["--params", "pretrain.yaml", "--dataset", str(data), "--init", str(INIT)]
    if bare:
        command = ["components.pretrain.local", *common, "--output", "work/bare"]
    else:
        flags = [text for name, path in OUTPUTS.items() for text in (f"--{name}", path)]
        command = ["components", "pretrain", *common, "--quality", str(data), *flags]
    return subprocess.Popen(
        [sys.executable, "-m", *command], cwd=folder, stdout=(folder / "log").open("wb"), stderr=subprocess.STDOUT,
        env={**os.environ, "DVC_ROOT": str(folder), "PYTHONPATH": str(ROOT), "OMP_WAIT_POLICY": "passive"},
    )  # fmt: skip


def rows(folder: Path) -> list[dict[str, Any]]:
    """What is logged so far."""
    found = list(folder.glob("work/*/history.jsonl"))
    return [json.loads(line) for line in found[0].read_text().splitlines()] if found else []


def step_seconds(folder: Path, data: Path, chosen: dict[str, Any], bare: bool = False) -> float:
    """Median of the logged step times of a whole run, without its first two."""
    process = begin(folder, data, chosen, bare)
    assert process.wait() == 0, (folder / "log").read_text()
    return statistics.median(row["seconds_per_step"] for row in rows(folder)[2:])


def workers_of(process: subprocess.Popen[bytes]) -> list[int]:
    """The process ids of the workers that Ray has started for a stage."""
    with contextlib.suppress(psutil.NoSuchProcess):
        children = psutil.Process(process.pid).children(recursive=True)
        return sorted(child.pid for child in children if "RayTrainWorker" in " ".join(child.cmdline()))
    return []


def interleaved(ways: dict[str, Callable[[Path], float]], home: Path, repeats: int) -> dict[str, list[float]]:
    """Each way so often, by turns."""
    times: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(repeats):
        for name, way in ways.items():
            times[name].append(way(home / f"{name}-{turn}".replace(" ", "_")))
    return times


def said(times: dict[str, list[float]], base: str) -> None:
    """Medians, and the median of each turn's ratio to `base`."""
    for name, found in times.items():
        ratios = [one / other for one, other in zip(found, times[base], strict=True)]
        print(
            f"| {name} | {1000 * statistics.median(found):.1f} ms | {statistics.median(ratios):.3f} ({min(ratios):.3f} to "
            f"{max(ratios):.3f}) |"
        )


def ray_overhead(home: Path, data: Path, repeats: int, steps: int, batch: int) -> None:
    """A step under Ray, in the stage without it, and in the loop alone."""
    alone, ray = values(steps, batch, "none"), values(steps, batch, "ray")
    ways: dict[str, Callable[[Path], float]] = {
        "bare loop": lambda place: step_seconds(place, data, alone, bare=True),
        "stage, backend none": lambda place: step_seconds(place, data, alone),
        "stage, backend ray": lambda place: step_seconds(place, data, ray),
    }
    print("\n| a step in | median | of the bare loop |\n|---|---|---|")
    said(interleaved(ways, home, repeats), "bare loop")


def checkpoint(home: Path, data: Path, repeats: int, batch: int) -> None:
    """In this process: what `save` takes of a step's time, and how long the state is on its way to the disk."""
    torch.set_num_threads(1)
    params = PretrainParams.model_validate(values(10, batch))
    one = Trainer(params, Batches(params, Store(data, "train"), 0, 1), Alone(torch.device("cpu")), INIT)
    one.train(lambda row, own: None, lambda: None)
    saving = Checkpoints(home / "saved", 2, 0)
    stalls, written = list[float](), list[float]()
    for turn in range(repeats + 1):
        one.step = turn
        start = time.perf_counter()
        saving.save(one.state())
        stalls.append(time.perf_counter() - start)
        saving.wait()
        written.append(time.perf_counter() - start)
    size = (checkpoints.steps(home / "saved" / checkpoints.FOLDER)[-1] / checkpoints.STATE).stat().st_size
    stall = statistics.median(stalls[1:])  # the first one also takes the memory
    step = statistics.median(row["seconds_per_step"] for row in one.history[1:])
    print(
        f"\ncheckpoint of {size / 1e6:.1f} MB: training stands still for {1000 * stall:.1f} ms ({size / stall / 1e9:.1f} GB/s; the "
        f"first time {1000 * stalls[0]:.1f} ms), {stall / step:.3f} of a step of {1000 * step:.0f} ms; on the disk after "
        f"{1000 * statistics.median(written[1:]):.0f} ms; every 200 steps {100 * stall / step / 200:.4f} % of the time"
    )


def kill(home: Path, data: Path, repeats: int) -> None:
    """SIGKILL of the only worker of a run in Ray."""
    found = list[float]()
    for turn in range(repeats):
        folder = home / f"kill-{turn}"
        chosen = values(10_000, 32) | {"log_every": 1, "checkpoint_every": 5}
        process = begin(folder, data, chosen)
        until(lambda folder=folder: len(rows(folder)) >= 5)
        (worker,) = workers_of(process)
        os.kill(worker, signal.SIGKILL)
        killed, before = time.monotonic(), max(row["step"] for row in rows(folder))
        until(lambda folder=folder, before=before: max(row["step"] for row in rows(folder)) > before)
        found.append(time.monotonic() - killed)
        process.send_signal(signal.SIGTERM)
        process.wait()
    print(
        f"\nfrom SIGKILL of a worker to a new step: {statistics.median(found):.1f} s ({min(found):.1f} to {max(found):.1f})"
    )


def until(there: Callable[[], bool]) -> None:
    """Waits at most five minutes."""
    deadline = time.monotonic() + 300
    while not there():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    every = ("ray", "checkpoint", "kill")
    parser.add_argument("--only", nargs="+", choices=every, default=every)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--batch", type=int, default=128, help="images a step; 128 are preset cifar10's")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as home_name:
        home = Path(home_name)
        data = dataset(home / "noise")
        print(
            f"torch {torch.__version__}, {os.cpu_count()} cores; ViT 192 wide, 6 layers, {SIDE} px, batch {chosen.batch}"
        )
        if "ray" in chosen.only:
            ray_overhead(home, data, chosen.repeats, chosen.steps, chosen.batch)
        if "checkpoint" in chosen.only:
            checkpoint(home, data, chosen.repeats, chosen.batch)
        if "kill" in chosen.only:
            kill(home, data, chosen.repeats)


if __name__ == "__main__":
    main()
