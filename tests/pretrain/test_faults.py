"""SIGKILL of everything in the middle of pretraining loses nothing but the steps since the last checkpoint."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
from mlflow import MlflowClient

from components.stage import canonical_yaml

from .test_run import SCRATCH

FLAGS = {
    "encoder": "encoder.safetensors", "predictor": "predictor.safetensors", "state": "state.pt", "history": "history.csv",
    "spectrum": "spectrum.csv", "masks": "masks.png", "work": "work", "metrics": "metrics.json", "run": "run.json",
}  # fmt: skip


def start(folder: Path, values: dict[str, Any], toy: Path) -> subprocess.Popen[str]:
    folder.mkdir(exist_ok=True)
    (folder / "pretrain.yaml").write_text(canonical_yaml(values))
    flags = [text for name, path in FLAGS.items() for text in (f"--{name}", path)]
    command = [
        sys.executable,
        "-m",
        "components",
        "pretrain",
        "--params",
        "pretrain.yaml",
        "--dataset",
        str(toy),
        "--init",
        str(SCRATCH),
        *flags,
    ]
    return subprocess.Popen(
        command,
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "DVC_ROOT": str(folder)},
    )


def kill_tree(process: subprocess.Popen[str]) -> None:
    for child in [*psutil.Process(process.pid).children(recursive=True), psutil.Process(process.pid)]:
        child.send_signal(signal.SIGKILL)
    process.wait()


@pytest.mark.faults
def test_a_second_run_continues_and_ends_where_an_uninterrupted_one_does(
    tmp_path: Path, tiny: dict[str, Any], toy_images: Path
) -> None:
    tiny["optimisation"]["epochs"] = 20
    killed = start(tmp_path / "killed", tiny, toy_images)
    deadline = time.monotonic() + 240
    while not any(
        len(file.read_text().splitlines()) > 8 for file in (tmp_path / "killed/work").glob("*/history.jsonl")
    ):
        assert time.monotonic() < deadline and killed.poll() is None, killed.stdout and killed.stdout.read()
        time.sleep(0.05)
    kill_tree(killed)
    rows = next((tmp_path / "killed/work").glob("*/history.jsonl")).read_text().splitlines()
    assert 8 < len(rows) < 60

    again = start(tmp_path / "killed", tiny, toy_images)
    output, _ = again.communicate(timeout=300)
    assert again.returncode == 0, output
    history = (tmp_path / "killed/history.csv").read_text().splitlines()
    assert [int(float(line.split(",")[0])) for line in history[1:]] == list(range(1, 61))
    computed = next((tmp_path / "killed/work").glob("*/history.jsonl")).read_text().splitlines()[len(rows) :]
    resumed_at = int(re.match(r'\{"step": ([0-9.]+)', computed[0])[1].split(".")[0])  # type: ignore[index]
    assert resumed_at > 2, "it started from zero"

    whole = start(tmp_path / "whole", tiny, toy_images)
    output, _ = whole.communicate(timeout=300)
    assert whole.returncode == 0, output
    assert (tmp_path / "whole/encoder.safetensors").read_bytes() == (
        tmp_path / "killed/encoder.safetensors"
    ).read_bytes()


@pytest.mark.faults
def test_two_runs_that_ask_for_the_same_model_train_it_once(
    tmp_path: Path, tiny: dict[str, Any], toy_images: Path
) -> None:
    """Each in its own folder, with `work` a link to one folder, as the workspaces of two pipeline runs have it."""
    (tmp_path / "shared").mkdir()
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "work").symlink_to(tmp_path / "shared")
    running = [start(tmp_path / name, tiny, toy_images) for name in ("one", "two")]
    told = [process.communicate(timeout=300)[0] for process in running]
    assert [process.returncode for process in running] == [0, 0], "\n".join(told)
    assert sum("another process trains this very model in" in text for text in told) == 1
    assert len(next((tmp_path / "shared").glob("*/history.jsonl")).read_text().splitlines()) == 6
    encoders = [(tmp_path / name / "encoder.safetensors").read_bytes() for name in ("one", "two")]
    assert encoders[0] == encoders[1]
    for name in ("one", "two"):  # the one that waited has every point as well
        row = json.loads((tmp_path / name / "run.json").read_text())["mlflow_run_id"]
        points = MlflowClient(f"sqlite:///{tmp_path / name / 'mlflow.db'}").get_metric_history(row, "pretrain/loss")
        assert [point.step for point in points] == [1, 2, 3, 4, 5, 6]
