"""Pretraining without Ray: in the stage's own process, and where nothing but torch, timm, numpy, pyarrow and pydantic is installed."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from components.pretrain import checkpoints
from components.stage import canonical_yaml
from components.work import alone

from .test_run import SCRATCH, pretrain

ROOT = SCRATCH.parents[2]
BARE = """
import sys
class Without:
    def __init__(self, finder):
        self.finder = finder
    def find_spec(self, name, *where):
        absent = {"ray", "mlflow", "prefect", "dvc", "matplotlib", "scipy", "sklearn", "psutil", "pynvml"}
        return None if name.split(".")[0] in absent else self.finder.find_spec(name, *where)
sys.meta_path[:] = map(Without, sys.meta_path)
from components.pretrain.local import main
sys.exit(main(sys.argv[1:]))
"""


def bare(folder: Path, values: dict[str, Any], toy: Path, output: str = "out") -> subprocess.Popen[str]:
    (folder / "pretrain.yaml").write_text(canonical_yaml(values))
    flags = ["--params", "pretrain.yaml", "--dataset", str(toy), "--output", output, "--init", str(SCRATCH)]
    return subprocess.Popen(
        [sys.executable, "-c", BARE, *flags], cwd=folder, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip


def test_without_ray_and_mlflow_it_trains_what_the_stage_trains(
    tmp_path: Path, tiny: dict[str, Any], toy_images: Path
) -> None:
    """The stage with `backend: none`, and the loop alone: the same bytes."""
    tiny["scale"]["backend"] = "none"
    done = pretrain(tmp_path / "stage", tiny, toy_images)
    assert done.returncode == 0, done.stderr
    assert "step 6/6" in done.stdout and len((tmp_path / "stage/history.csv").read_text().splitlines()) == 7
    alone = bare(tmp_path, tiny, toy_images)
    out, err = alone.communicate(timeout=120)
    assert alone.returncode == 0, err
    assert "step 6/6" in out and "the target encoder after 6 steps" in out
    stage, here = load_file(tmp_path / "stage/encoder.safetensors"), load_file(tmp_path / "out/encoder.safetensors")
    assert stage.keys() == here.keys() and all((stage[name] == here[name]).all() for name in stage)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_saves_the_step_in_hand_and_the_same_command_goes_on(
    tmp_path: Path, tiny: dict[str, Any], toy_images: Path, number: int
) -> None:
    tiny["optimisation"]["epochs"] = 20
    tiny["checkpoint_every"] = 1000
    whole = bare(tmp_path, tiny, toy_images, "whole")
    out, err = whole.communicate(timeout=120)
    assert whole.returncode == 0, err
    first = bare(tmp_path, tiny, toy_images)
    history, deadline = tmp_path / "out/history.jsonl", time.monotonic() + 120
    while not history.is_file() or history.read_text().count("\n") < 5:
        assert time.monotonic() < deadline and first.poll() is None
        time.sleep(0.01)
    first.send_signal(number)
    out, err = first.communicate(timeout=60)
    assert first.returncode == (128 + number), err
    assert "stopping: saving a checkpoint after this step" in out
    (found,) = checkpoints.steps(tmp_path / "out/checkpoints")
    step = checkpoints.step_of(found)
    assert 5 <= step < 60
    again = bare(tmp_path, tiny, toy_images)
    out, err = again.communicate(timeout=120)
    assert again.returncode == 0, err
    assert f"step {step + 1}/60" in out and f"step {step}/60" not in out
    encoders = [(tmp_path / name / "encoder.safetensors").read_bytes() for name in ("whole", "out")]
    assert encoders[0] == encoders[1]
    steps = [json.loads(line)["step"] for line in history.read_text().splitlines()]
    assert steps == list(range(1, 61))


def test_bad_input_is_told_before_anything_is_written(tmp_path: Path, tiny: dict[str, Any], toy_images: Path) -> None:
    tiny["scale"] |= {"workers": 2}
    refused = bare(tmp_path, tiny, toy_images)
    _, err = refused.communicate(timeout=60)
    assert (refused.returncode, (tmp_path / "out").exists()) == (2, False)
    assert err == "error: scale.workers is 2; without Ray there is one: set it to 1, or run the stage\n"
    tiny["scale"] |= {"workers": 1, "device": "gpu"}
    refused = bare(tmp_path, tiny, toy_images)
    _, err = refused.communicate(timeout=60)
    assert refused.returncode == 2 and "scale.device is 'gpu', but torch sees no CUDA device here" in err
    tiny["scale"]["device"] = "cpu"
    other = bare(tmp_path, tiny, toy_images)
    _, err = other.communicate(timeout=60)
    assert other.returncode == 2 and "out has training of other params" in err


def test_other_data_do_not_continue_it_and_two_at_once_come_one_after_the_other(
    tmp_path: Path, tiny: dict[str, Any], toy_images: Path
) -> None:
    with alone(tmp_path / "out", ""):
        waiting = bare(tmp_path, tiny, toy_images)
        assert waiting.stdout
        said = f"another process trains in {tmp_path / 'out'}; waiting\n"
        assert said in iter(waiting.stdout.readline, ""), waiting.communicate()  # others tell what is not installed
        assert not (tmp_path / "out/params.yaml").exists()
    _, err = waiting.communicate(timeout=120)
    assert waiting.returncode == 0, err
    changed = tmp_path / "changed"
    changed.mkdir()
    for file in toy_images.iterdir():
        (changed / file.name).symlink_to(file)
    card = json.loads((toy_images / "card.json").read_text()) | {"content": "another"}
    (changed / "card.json").unlink()
    (changed / "card.json").write_text(json.dumps(card))
    refused = bare(tmp_path, tiny, changed)
    _, err = refused.communicate(timeout=60)
    told = f"error: {tmp_path / 'out'} has training with other content of --dataset; give another --output, or the same data\n"
    assert (refused.returncode, err) == (2, told)


@pytest.mark.faults
def test_a_disk_that_is_full_ends_training_with_one_line_and_with_room_it_goes_on(
    tmp_path: Path, tiny: dict[str, Any], toy_images: Path
) -> None:
    """A real file system with room for one checkpoint and a half."""
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16m", "none", str(disk)], capture_output=True).returncode:
        pytest.skip("no right to mount a small disk here")
    try:
        whole = bare(tmp_path, tiny, toy_images, "whole")
        assert whole.wait(timeout=120) == 0
        size = checkpoints.steps(tmp_path / "whole/checkpoints")[-1] / "state.safetensors"
        (disk / "filler").write_bytes(b"x" * (16 * 2**20 - 3 * size.stat().st_size // 2))
        full = bare(tmp_path, tiny, toy_images, "disk")
        out, err = full.communicate(timeout=120)
        assert full.returncode == 2, out
        assert re.match(r"error: the checkpoint of step 4 cannot be written to .*training goes on from step 2\n$", err)
        (disk / "filler").unlink()
        again = bare(tmp_path, tiny, toy_images, "disk")
        out, err = again.communicate(timeout=120)
        assert again.returncode == 0, err
        assert "step 3/6" in out and "step 2/6" not in out
        encoders = [(folder / "encoder.safetensors").read_bytes() for folder in (tmp_path / "whole", disk)]
        assert encoders[0] == encoders[1]
    finally:
        subprocess.run(["umount", str(disk)], check=True)
