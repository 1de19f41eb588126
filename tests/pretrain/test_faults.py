"""SIGKILL of the driver, or of everything, in the middle of pretraining loses nothing but the steps since the last checkpoint."""

import csv
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
from mlflow import MlflowClient

from components.mim.weights import read_about
from components.stage import canonical_yaml

from .test_run import SCRATCH

FLAGS = {
    "encoder": "encoder.safetensors", "predictor": "predictor.safetensors", "state": "state.safetensors", "history": "history.csv",
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
        "--quality",
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
        start_new_session=True,
    )


def kill_tree(process: subprocess.Popen[str]) -> None:
    for child in [*psutil.Process(process.pid).children(recursive=True), psutil.Process(process.pid)]:
        child.send_signal(signal.SIGKILL)
    process.wait()


def kill_driver(process: subprocess.Popen[str]) -> None:
    """The driver alone; its workers, whom nobody tells, must not train on beside the next one's."""
    children = psutil.Process(process.pid).children(recursive=True)
    workers = [child for child in children if "RayTrainWorker" in " ".join(child.cmdline())]
    process.kill()
    process.wait()
    gone, alive = psutil.wait_procs(workers, timeout=30)
    assert gone and not alive, alive


def kill_after(
    folder: Path,
    values: dict[str, Any],
    toy: Path,
    rows: int,
    kill: Callable[[subprocess.Popen[str]], object] = kill_tree,
) -> Path:
    """Starts pretraining in `folder`, kills everything once more than `rows` steps are logged; its resume state."""
    process = start(folder, values, toy)
    deadline = time.monotonic() + 240
    while not (found := [path for path in (folder / "work").glob("*/history.jsonl") if logged(path) > rows]):
        assert time.monotonic() < deadline and process.poll() is None, process.stdout and process.stdout.read()
        time.sleep(0.05)
    kill(process)
    return found[0].parent


def logged(path: Path) -> int:
    return path.read_text().count("\n")


def steps_shown(output: str) -> list[int]:
    return [int(step) for step in re.findall(r"^step (\d+)/", output, re.MULTILINE)]


def steps_of(history: Path) -> list[int]:
    return [int(float(line.split(",")[0])) for line in history.read_text().splitlines()[1:]]


@pytest.mark.faults
def test_a_second_run_continues_and_ends_where_an_uninterrupted_one_does(
    tmp_path: Path, tiny: dict[str, Any], toy_images: Path
) -> None:
    tiny["optimisation"]["epochs"] = 20
    place = tmp_path / "killed"
    state = kill_after(place, tiny, toy_images, 8, kill_driver)
    assert 8 < logged(state / "history.jsonl") < 60
    client = MlflowClient(f"sqlite:///{place / 'mlflow.db'}")
    (before,) = client.search_runs(["1"])
    reached = json.loads((state / "about.json").read_text())["step"]
    known = client.get_metric_history(before.info.run_id, "pretrain/loss")
    assert before.info.status == "RUNNING" and len(known) >= 2
    assert {point.step for point in known} <= set(range(1, reached + 3))  # with checkpoints, each second step

    again = start(place, tiny, toy_images)
    output, _ = again.communicate(timeout=300)
    assert again.returncode == 0, output
    assert steps_of(place / "history.csv") == list(range(1, 61))
    assert steps_shown(output)[0] > 2 and steps_shown(output)[-1] == 60, "it started from zero"

    (after,) = client.search_runs(["1"])
    assert (after.info.run_id, after.info.status, after.data.tags["attempt"]) == (before.info.run_id, "FINISHED", "2")
    table = list(csv.DictReader((place / "history.csv").open()))
    for curve in ("loss", "A_norm", "effective_rank"):
        points = client.get_metric_history(after.info.run_id, f"pretrain/{curve}")
        assert [point.step for point in points] == list(range(1, 61))
        assert [point.value for point in points] == pytest.approx([float(row[curve]) for row in table], rel=1e-6)
    assert after.data.metrics["pretrain/loss_best"] == min(
        point.value for point in client.get_metric_history(after.info.run_id, "pretrain/loss")
    )
    assert after.data.metrics["pretrain/A_norm_final"] == after.data.metrics["pretrain/A_norm"]

    whole = start(tmp_path / "whole", tiny, toy_images)
    output, _ = whole.communicate(timeout=300)
    assert whole.returncode == 0, output
    assert (tmp_path / "whole/encoder.safetensors").read_bytes() == (place / "encoder.safetensors").read_bytes()


@pytest.mark.faults
def test_changed_params_tell_of_the_unfinished_state_and_go_on_from_it_on_purpose(
    tmp_path: Path, tiny: dict[str, Any], toy_images: Path
) -> None:
    tiny["optimisation"]["epochs"] = 20
    old = kill_after(tmp_path, tiny, toy_images, 8)
    reached = json.loads((old / "about.json").read_text())["step"]
    tiny["optimisation"]["lr"] = 0.002
    (tmp_path / "mlflow.db").unlink()
    told = start(tmp_path, tiny, toy_images)
    assert told.stdout
    lines = list[str]()
    while not lines or not lines[-1].startswith("and start it again"):
        lines.append(told.stdout.readline())
        assert lines[-1], "".join(lines)
    kill_tree(told)
    text = "".join(lines)
    assert f"unfinished: {old} reached step {reached} of 60, started" in text
    assert "  pretrain.optimisation.lr: 0.001 there, 0.002 here\n" in text and "code" not in text
    (command,) = re.findall(r"python -m (components.resume .*)", text)
    (new,) = (path for path in old.parent.iterdir() if path.is_dir() and path != old)
    assert command == f"components.resume {new} --resume-from {old}"

    def resume(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", *arguments],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            env=os.environ | {"PYTHONPATH": str(SCRATCH.parents[2])},
        )

    done = resume(*command.split())
    assert done.returncode == 0, done.stderr
    taken = json.loads((new / "about.json").read_text())["step"]
    assert done.stdout.splitlines()[0] == f"{new} goes on from step {taken} of 60 when its stage starts"
    refused = resume(*command.split())
    assert (refused.returncode, refused.stderr) == (
        2, f"error: {new} has {taken} steps of its own; give --replace to put those of {old} in their place\n"
    )  # fmt: skip
    assert resume(*command.split(), "--replace").stdout.splitlines()[0] == done.stdout.splitlines()[0]

    again = start(tmp_path, tiny, toy_images)
    output, _ = again.communicate(timeout=300)
    assert again.returncode == 0, output
    assert steps_shown(output) == list(range(taken + 1, 61)) and "unfinished" not in output
    source = f"{old.name} at step {taken}"
    assert read_about(tmp_path / "encoder.safetensors")[1]["resumed_from"] == source
    rates = [float(row["lr"]) for row in csv.DictReader((tmp_path / "history.csv").open())]
    assert max(rates[:taken]) <= 0.001 < max(rates[taken:])
    (run,) = (
        run
        for run in MlflowClient(f"sqlite:///{tmp_path / 'mlflow.db'}").search_runs(["1"])
        if run.info.status == "FINISHED"
    )
    assert run.data.tags["resumed_from"] == source
    points = MlflowClient(f"sqlite:///{tmp_path / 'mlflow.db'}").get_metric_history(run.info.run_id, "pretrain/loss")
    assert [point.step for point in points] == list(range(1, 61))
    assert json.loads((old / "about.json").read_text())["continued_as"] == new.name
    assert json.loads((new / "about.json").read_text())["finished"]


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
