"""Checkpoints on the disk: what is written is what was, whole or not there, and damage is found."""

import errno
import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from components.pretrain import checkpoints
from components.pretrain.checkpoints import Checkpoints, check, load, newest, steps
from components.pretrain.state import State, read


def state(step: int, fill: float = 1.0) -> State:
    """After two real steps of AdamW on a small layer, so that its moments are there."""
    torch.manual_seed(0)
    layer = nn.Linear(3, 2)
    adamw = torch.optim.AdamW([{"params": [layer.weight], "weight_decay": 0.1}, {"params": [layer.bias]}])
    for _ in range(2):
        layer(torch.full((1, 3), fill)).sum().backward()
        adamw.step()
    history = [{"step": 1, "loss": 0.5}, {"step": 2, "loss": 1 / 3, "knn": 40.0}]
    return State(
        step=step, history=history, skipped=1, model=layer.state_dict(), target={"w": torch.ones(2)},
        optimizer=adamw.state_dict(), about={"seed": 3, "versions": {"torch": torch.__version__}},
    )  # fmt: skip


def saved(folder: Path, *made: int, last: int = 2, every: int = 0) -> Path:
    saving = Checkpoints(folder, last, every)
    for step in made:
        saving.save(state(step))
    saving.wait()
    return folder


def names(folder: Path) -> list[int]:
    return [checkpoints.step_of(path) for path in steps(folder / "checkpoints")]


def test_what_is_read_is_what_was_saved(tmp_path: Path) -> None:
    path = newest(saved(tmp_path, 7))
    assert path is not None and path.name == "step-00000007" and check(path) is None
    was, now = state(7), load(path)
    assert {key: now[key] for key in ("step", "history", "skipped", "about")} == {  # type: ignore[literal-required]
        key: was[key]
        for key in ("step", "history", "skipped", "about")  # type: ignore[literal-required]
    }
    torch.testing.assert_close(dict(now["model"]), dict(was["model"]), rtol=0, atol=0)
    again = torch.optim.AdamW(
        [{"params": [nn.Parameter(torch.zeros(2, 3))]}, {"params": [nn.Parameter(torch.zeros(2))]}]
    )
    again.load_state_dict(now["optimizer"])
    torch.testing.assert_close(again.state_dict()["state"], was["optimizer"]["state"], rtol=0, atol=0)
    groups = json.loads(json.dumps(was["optimizer"]["param_groups"]))  # its pair of betas comes back as a list
    assert again.state_dict()["param_groups"] == groups
    # Any program that reads safetensors finds the weights by their names.
    assert torch.equal(load_file(path / "state.safetensors")["model/weight"], was["model"]["weight"])
    about = json.loads((path / "checkpoint.json").read_text())
    assert (about["step"], about["seed"], about["versions"]["torch"]) == (7, 3, torch.__version__)


def test_training_may_go_on_while_a_checkpoint_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk is held up until the weights have changed: what is written is what was."""
    may_write, write = threading.Event(), checkpoints._write

    def late(path: Path, *what: Any) -> None:
        assert may_write.wait(60)
        write(path, *what)

    monkeypatch.setattr(checkpoints, "_write", late)
    saving, now = Checkpoints(tmp_path, 2, 0), state(4)
    was = now["model"]["weight"].clone()
    saving.save(now)  # comes back, though nothing can be written
    now["model"]["weight"].fill_(9.0)
    now["history"][0]["loss"] = 9.0
    assert names(tmp_path) == []
    may_write.set()
    saving.wait()
    path = newest(tmp_path)
    assert path and torch.equal(load(path)["model"]["weight"], was) and load(path)["history"][0]["loss"] == 0.5


@pytest.mark.parametrize(("last", "every", "left"), [(2, 0, [6, 8]), (1, 4, [4, 8]), (3, 6, [4, 6, 8])])
def test_the_newest_stay_and_those_at_multiples(tmp_path: Path, last: int, every: int, left: list[int]) -> None:
    saved(tmp_path, 2, 4, 6, 8, last=last, every=every)
    assert names(tmp_path) == left
    assert {path.name for path in (tmp_path / "checkpoints").iterdir()} == {f"step-{step:08d}" for step in left}


DAMAGES = {
    "flipped": lambda data: data[:-9] + bytes([data[-9] ^ 1]) + data[-8:],
    "cut": lambda data: data[:-1],
    "longer": lambda data: data + b"x",
    "empty": lambda data: b"",
}


@pytest.mark.parametrize(
    ("file", "damage"), [*(("state.safetensors", damage) for damage in DAMAGES), ("checkpoint.json", "empty")]
)
def test_a_damaged_newest_one_falls_back_and_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], damage: str, file: str
) -> None:
    saved(tmp_path, 2, 4)
    bad = tmp_path / "checkpoints/step-00000004" / file
    bad.write_bytes(DAMAGES[damage](bad.read_bytes()))
    path = newest(tmp_path)
    assert path is not None and path.name == "step-00000002" and load(path)["step"] == 2
    said = capsys.readouterr().out
    assert "step-00000004 is damaged: " in said and "goes on from the checkpoint before, of step 2" in said
    assert names(tmp_path) == [2] and (tmp_path / "checkpoints/damaged-step-00000004").is_dir()
    (path / "state.safetensors").unlink()
    for _ in range(2):  # not from zero, and not when somebody simply tries again
        with pytest.raises(ValueError, match="is whole, step-00000002, step-00000004 are damaged; bring one back"):
            newest(tmp_path)


def test_a_disk_that_does_not_answer_says_nothing_about_a_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved(tmp_path, 2, 4)

    def away(self: Path, *_: Any, **__: Any) -> Any:
        raise OSError(errno.ESTALE, "Stale file handle", str(self))

    with monkeypatch.context() as disk:
        disk.setattr(Path, "read_text", away)
        with pytest.raises(ValueError, match="step-00000004 cannot be read now: .*Stale file handle.*start again"):
            newest(tmp_path)
    path = newest(tmp_path)
    assert names(tmp_path) == [2, 4] and path and load(path)["step"] == 4


def test_a_disk_that_is_away_for_a_moment_costs_no_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither this one nor those before, which an emptier disk would not have helped."""
    saved(tmp_path, 2, 4, last=3)
    write, answers = checkpoints._write, [errno.EIO, errno.ESTALE, 0, *[errno.EIO] * 4]

    def moody(path: Path, *what: Any) -> None:
        if number := answers.pop(0):
            raise OSError(number, os.strerror(number), str(path))
        write(path, *what)

    monkeypatch.setattr(checkpoints, "_write", moody)
    monkeypatch.setattr(checkpoints, "AGAIN_S", (0.0, 0.0, 0.0))
    saved(tmp_path, 6, last=3)
    assert names(tmp_path) == [2, 4, 6]
    with pytest.raises(
        OSError, match=r"of step 8 cannot be written to .*Input/output error.*, 4 times; .* from step 6"
    ):
        saved(tmp_path, 8, last=3)
    assert names(tmp_path) == [2, 4, 6] and not answers


def test_nothing_there_is_no_fault(tmp_path: Path) -> None:
    assert newest(tmp_path) is None
    (tmp_path / "checkpoints/.writing-step-00000002").mkdir(parents=True)
    checkpoints.clear(tmp_path)
    assert newest(tmp_path) is None and not list((tmp_path / "checkpoints").iterdir())


def test_a_file_that_is_no_state_is_told(tmp_path: Path) -> None:
    from safetensors.torch import save_file

    (tmp_path / "a.safetensors").write_bytes(b"nothing")
    with pytest.raises(ValueError, match="cannot be read as a training state"):
        read(tmp_path / "a.safetensors")
    save_file({"w": torch.ones(1)}, tmp_path / "b.safetensors")
    with pytest.raises(ValueError, match="is no training state of this program: its format is None"):
        read(tmp_path / "b.safetensors")


SLOW = """
import sys, time
from pathlib import Path
from components.pretrain import checkpoints
from tests.pretrain.test_checkpoints import state
from components.pretrain.state import write
place = sys.argv[2]
def stand(*_):
    print("here", flush=True)
    time.sleep(600)
saving = checkpoints.Checkpoints(Path(sys.argv[1]), 2, 0)
saving.save(state(2)); saving.wait()
if place == "copying":
    saving._copied = stand
elif place == "writing":
    checkpoints.states.write = lambda path, *_: (Path(path).write_bytes(b"half"), stand())
elif place == "syncing":
    checkpoints._sync = stand
elif place == "removing":
    checkpoints.shutil.rmtree = stand
saving.save(state(4)); saving.join(); saving.save(state(6)); saving.join()
"""


@pytest.mark.parametrize(
    ("place", "left"), [("copying", [2]), ("writing", [2]), ("syncing", [2]), ("removing", [4, 6])]
)
def test_a_writer_killed_anywhere_leaves_the_one_before(tmp_path: Path, place: str, left: list[int]) -> None:
    """SIGKILL while the state is copied, half-way through the file, before it is on the disk, and while an older one goes."""
    root = Path(__file__).parents[2]
    process = subprocess.Popen(
        [sys.executable, "-c", SLOW, str(tmp_path), place], stdout=subprocess.PIPE, cwd=root,
        env={**os.environ, "PYTHONPATH": str(root)},
    )  # fmt: skip
    assert process.stdout and process.stdout.readline() == b"here\n"
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert any(path.name.startswith(".") for path in (tmp_path / "checkpoints").iterdir()) == (place != "copying")
    checkpoints.clear(tmp_path)
    path = newest(tmp_path)
    assert path is not None and names(tmp_path) == left and load(path)["step"] == left[-1]
    assert {each.name for each in (tmp_path / "checkpoints").iterdir()} == {f"step-{step:08d}" for step in left}


@pytest.fixture
def small_disk(tmp_path: Path) -> Any:
    """A file system of 1 MiB, where this user may mount one."""
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "none", str(disk)], capture_output=True).returncode:
        pytest.skip("no right to mount a small disk here")
    yield disk
    subprocess.run(["umount", str(disk)], check=True)


def test_a_full_disk_is_told_and_loses_nothing(small_disk: Path) -> None:
    def save(step: int, last: int) -> None:
        large = state(step)
        large["model"]["large"] = torch.ones(70_000)
        saving = Checkpoints(small_disk, last, 0)
        saving.save(large)
        saving.wait()

    save(4, last=1)
    filler = small_disk / "filler"
    filler.write_bytes(b"x" * 600_000)
    with pytest.raises(
        ValueError,
        match=r"the checkpoint of step 6 cannot be written to .*No space left.*It takes 0.00028 GB, .*training goes on from step 4",
    ):
        save(6, last=1)
    path = newest(small_disk)
    assert path is not None and load(path)["step"] == 4
    filler.write_bytes(b"x" * 300_000)
    save(6, last=3)
    save(8, last=3)  # there is room for two
    assert names(small_disk) == [6, 8]
