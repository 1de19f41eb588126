"""Workers of a real Ray group that are killed, asked to stop or meet what is no number: nothing is lost but steps since a checkpoint."""

import json
import os
import re
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from safetensors.torch import load_file

from components.mim import weights
from components.pretrain import checkpoints
from components.pretrain.building import build
from components.pretrain.contract import PretrainParams

from .test_faults import logged, start, steps_of
from .test_run import SCRATCH, pretrain

pytestmark = pytest.mark.faults


@pytest.fixture(scope="module")
def long(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What an undisturbed run of 60 steps comes to, once it has been asked for."""
    return {"folder": tmp_path_factory.mktemp("whole") / "run"}


def undisturbed(long: dict[str, Any], values: dict[str, Any], toy: Path) -> bytes:
    if "encoder" not in long:
        done = pretrain(long["folder"], values, toy)
        assert done.returncode == 0, done.stderr
        long["encoder"] = (long["folder"] / "encoder.safetensors").read_bytes()
    return bytes(long["encoder"])


def reached(folder: Path, process: subprocess.Popen[str], rows: int) -> Path:
    """The resume state of a run, once more than `rows` steps are logged and a checkpoint is there."""
    deadline = time.monotonic() + 300
    while True:
        for path in (folder / "work").glob("*/history.jsonl"):
            if logged(path) > rows and checkpoints.steps(path.parent / "checkpoints"):
                return path.parent
        assert time.monotonic() < deadline and process.poll() is None, process.stdout and process.stdout.read()
        time.sleep(0.05)


def workers(process: subprocess.Popen[str]) -> list[psutil.Process]:
    """The training processes, as Ray names them."""
    children = psutil.Process(process.pid).children(recursive=True)
    return [child for child in children if "RayTrainWorker" in " ".join(child.cmdline())]


@pytest.mark.parametrize("count", [1, 2])
def test_a_killed_worker_costs_no_more_than_the_steps_since_a_checkpoint(
    tmp_path: Path, tiny: dict[str, Any], toy_images: Path, long: dict[str, Any], count: int
) -> None:
    tiny["optimisation"]["epochs"] = 20
    whole = undisturbed(long, tiny, toy_images) if count == 1 else b""
    tiny["scale"]["workers"] = count
    run = start(tmp_path / "run", tiny, toy_images)
    reached(tmp_path / "run", run, 8)
    found = workers(run)
    assert len(found) == count
    found[-1].send_signal(signal.SIGKILL)
    output, _ = run.communicate(timeout=400)
    assert run.returncode == 0, output
    (step,) = re.findall(r"WARNING: a worker was lost: .*; starting the workers again from step (\d+)", output)
    assert int(step) >= 2
    assert steps_of(tmp_path / "run/history.csv") == list(range(1, 61))
    if count == 1:
        assert (tmp_path / "run/encoder.safetensors").read_bytes() == whole


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_saves_the_step_in_hand_and_a_second_run_goes_on_from_it(
    tmp_path: Path, tiny: dict[str, Any], toy_images: Path, long: dict[str, Any], number: int
) -> None:
    """SIGTERM to the driver, as a cluster's manager sends it; SIGINT to its whole group, as a terminal and flows do."""
    tiny["optimisation"]["epochs"] = 20
    whole = undisturbed(long, tiny, toy_images)
    run = start(tmp_path / "run", tiny, toy_images)
    folder = reached(tmp_path / "run", run, 8)
    tree = psutil.Process(run.pid).children(recursive=True)
    os.killpg(run.pid, number) if number == signal.SIGINT else run.send_signal(number)
    output, _ = run.communicate(timeout=200)
    assert run.returncode == 128 + number, output
    assert "stopping: saving a checkpoint after this step" in output
    step = checkpoints.step_of(checkpoints.steps(folder / "checkpoints")[-1])
    assert f"stopped; started again, training goes on from step {step}" in output
    assert step >= logged(folder / "history.jsonl")  # nothing that was shown is computed again
    assert not psutil.wait_procs(tree, timeout=20)[1], "processes of Ray are left"
    again = start(tmp_path / "run", tiny, toy_images)
    output, _ = again.communicate(timeout=400)
    assert again.returncode == 0, output
    assert f"step {step + 1}/60," in output and f"step {step}/60," not in output
    assert (tmp_path / "run/encoder.safetensors").read_bytes() == whole


def test_a_loss_that_is_no_number_ends_all_workers_with_one_line(
    tmp_path: Path, tiny: dict[str, Any], toy_images: Path
) -> None:
    """An encoder to start from whose first product is infinite. No restart: it would come again."""
    encoder = build(PretrainParams(**tiny), SCRATCH).model.encoder
    tiny["init"] |= {"source": "file", "path": str(tmp_path / "huge.safetensors")}
    with torch.no_grad():
        encoder.patch_embed.proj.weight.mul_(3e38)
    weights.save(tmp_path / "huge.safetensors", encoder, {})
    tiny["scale"]["workers"] = 2
    done = pretrain(tmp_path / "run", tiny, toy_images, tmp_path / "huge.safetensors")
    assert done.returncode == 2, done.stderr
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert (
        "loss is nan at step 1 (lr 0.00055); no step before it was logged." in line
        and "a worker was lost" not in done.stdout
    )
    dump = load_file(line.rpartition(" are in ")[2])
    assert dump["losses"].shape == (8,) and not dump["losses"].isfinite().any()
    (run,) = (tmp_path / "run/work").glob("*/about.json")
    assert json.loads(run.read_text())["step"] == 0
