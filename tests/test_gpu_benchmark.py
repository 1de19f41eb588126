"""benchmarks/gpu.py goes through everything on a CPU with tiny models, and needs nothing that a bare GPU machine may lack."""

import json
import math
import os
import subprocess
import sys
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from components.images import store

PROJECT = Path(__file__).parents[1]
BENCHMARKS = PROJECT / "benchmarks"
LACKING = ("ray", "mlflow", "prefect", "dvc")
BLOCKED = f"""
import runpy, sys
sys.modules.update(dict.fromkeys({LACKING!r}))  # None: every import of them raises ImportError
runpy.run_path({str(BENCHMARKS / "gpu.py")!r}, run_name="__main__")
"""
SIDES = [("ours", True), ("ours", False), ("textbook", True)]


def cifar10(folder: Path) -> Path:
    """A prepared dataset of that name, noise of 80 training and 40 test images."""
    draws, splits = np.random.default_rng(0), {}
    for split, count in (("train", 80), ("test", 40)):
        splits[split] = []
        for i in range(count):
            file = BytesIO()
            Image.fromarray(draws.integers(0, 256, (32, 32, 3), dtype=np.uint8)).save(file, "PNG")
            splits[split].append({"path": f"{split}/{i}.png", "image": file.getvalue(), "label": i % 10})
    about: dict[str, Any] = {"name": "cifar10", "kind": "images", "format": "cifar10", "skipped": []}
    about |= {"classes": [f"class {i}" for i in range(10)], "mean": [0.5] * 3, "std": [0.2] * 3}
    store.write_card(folder, {**about, "splits": store.write(folder, "images", splits, shard_mib=1)})
    return folder


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(BENCHMARKS), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", BLOCKED, "--device", "cpu", "--tiny", *arguments]
    return subprocess.run(command, cwd=PROJECT, env=environment, capture_output=True, text=True)


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("gpu")
    out = folder / "gpu.json"
    done = run("--peak", "1e11", "--dataset", str(cifar10(folder / "cifar10")), "--out", str(out))
    assert done.returncode == 0, done.stdout + done.stderr
    read: dict[str, Any] = json.loads(out.read_text())
    return {**read, "stdout": done.stdout}


def numbers(value: Any) -> Iterator[float]:
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list):
        for each in value:
            yield from numbers(each)
    elif not isinstance(value, str):
        yield value


def test_all_variants_of_all_sizes_are_measured(found: dict[str, Any]) -> None:
    assert [part["size"] for part in found["steps"]] == ["tiny32", "tiny48"]
    for part in found["steps"]:
        rows = [(row["side"], row["noise"], row["compiled"]) for row in part["rows"]]
        assert rows == [(*side, compiled) for compiled in (False, True) for side in SIDES]
        assert len(part["ratios"]) == 5
        for row in part["rows"]:
            assert row["images_per_s"] == pytest.approx(part["batch"] / row["ms"] * 1000)
            assert row["mfu"] == pytest.approx(row["flops_per_image"] * row["images_per_s"] / 1e11)
            assert row.pop("peak_mib") is None  # a GPU's alone
        assert f"{part['size']}, batch 8" in found["stdout"]
    assert found["said"] == []
    assert all(math.isfinite(number) for number in numbers(found))


def test_losses_are_equal(found: dict[str, Any]) -> None:
    for part in found["steps"]:
        for ours, textbook in part["losses"].values():
            assert ours == pytest.approx(textbook, rel=2e-2)
        assert sorted(part["losses"]) == ["compiled", "plain"]


def test_flops_are_those_of_the_closed_form(found: dict[str, Any]) -> None:
    """Two for each multiplication; the backward pass twice the forward one, but once where the input is pixels or noise."""

    def layer(seen: int, computed: int, width: int) -> int:
        return 2 * width * (computed * 10 * width + seen * 2 * width) + 4 * computed * seen * width

    for part, width in zip(found["steps"], (32, 48), strict=True):
        patches, narrow, context, (target, *_) = 100, 16, part["context_patches"], part["target_patches"]
        masked, seen = sum(part["target_patches"]), context + target
        embedding, product = 2 * patches * 3 * 64 * width, 2 * width * narrow
        encoders = 3 * embedding + 2 * layer(patches, patches, width) + 3 * 2 * layer(context, context, width)
        towers = len(part["target_patches"]) * (layer(seen, seen, narrow) + layer(seen, target, narrow))
        quiet = encoders + 3 * towers + 3 * product * (context + masked)
        noisy = quiet + 2 * product * masked
        assert [row["flops_per_image"] for row in part["rows"]] == [noisy, quiet, noisy] * 2


def test_cifar10_is_learned_with_noise_and_without(found: dict[str, Any]) -> None:
    assert [run["noise"] for run in found["learning"]] == [True, False]
    for run in found["learning"]:
        steps = [point["step"] for point in run["points"]]
        assert (steps[0], steps[-1]) == (0, run["steps"]) == (0, 2 * 80 // 16)
        assert steps == sorted(set(steps))
        assert all(0 <= point["knn_top1"] <= 100 for point in run["points"])
    with_noise, without = found["learning"]
    assert (
        with_noise["points"][0]["knn_top1"] == without["points"][0]["knn_top1"]
    )  # the same weights before the first step
    assert with_noise["points"][-1]["loss"] != without["points"][-1]["loss"]


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return __import__("gpu")


def test_a_batch_too_large_for_memory_is_halved(gpu: ModuleType) -> None:
    said: list[str] = []

    def work(batch: int) -> int:
        if batch > 2:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return batch

    assert gpu.gpu_step.halving(8, work, said.append) == 2
    assert said == ["out of memory at batch 8: goes on with 4", "out of memory at batch 4: goes on with 2"]
    with pytest.raises(torch.OutOfMemoryError):
        gpu.gpu_step.halving(1, lambda _: work(8), said.append)


def test_a_part_without_time_is_skipped_and_one_that_fails_is_told(gpu: ModuleType, tmp_path: Path) -> None:
    report, done = gpu.Report(tmp_path / "gpu.json", {}), []
    report.part("late", 1.0, lambda: done.append("late"))
    report.part("broken", 60.0, lambda: done[0])
    report.part("sound", 60.0, lambda: done.append("sound"))
    assert done == ["sound"] and report.failed
    said = json.loads((tmp_path / "gpu.json").read_text())["said"]
    assert said == ["late: skipped, 1 s were left for it", "broken: FAILED: IndexError: list index out of range"]


def test_what_a_side_holds_between_steps(gpu: ModuleType) -> None:
    """Weights, gradients and two moments of what is trained, with AdamW's counter of each tensor, and the target's weights: float32."""
    how = gpu.gpu_step.How("cpu", "fp32", "eager", 3, None)
    steps = gpu.gpu_step.Steps(gpu.TINY["tiny32"], 4, how)
    steps.assert_equal(compiled=False)
    model, target = list(steps.one.model.parameters()), list(steps.one.target.parameters())
    held = 4 * (4 * sum(p.numel() for p in model) + len(model) + sum(p.numel() for p in target))
    assert steps.held("ours") == held
    assert steps.held("textbook") == held


@pytest.mark.parametrize(
    ("name", "peak"),
    [
        ("NVIDIA H100 80GB HBM3", 989e12),
        ("NVIDIA H100 PCIe", 756e12),
        ("NVIDIA H200", 989e12),
        ("NVIDIA A100-SXM4-80GB", 312e12),
        ("NVIDIA L4", 121e12),
        ("NVIDIA L40S", 362e12),
        ("Tesla T4", None),
    ],
)
def test_peaks_are_known_by_torchs_names(gpu: ModuleType, name: str, peak: float | None) -> None:
    assert gpu.peak_of(name) == peak


def test_a_folder_that_is_no_dataset_is_refused(gpu: ModuleType, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="is no prepared dataset"):
        gpu.gpu_cifar10.data(tmp_path, tiny=False)
