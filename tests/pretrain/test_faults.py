"""SIGKILL of everything in the middle of pretraining loses nothing but the steps since the last checkpoint."""

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
