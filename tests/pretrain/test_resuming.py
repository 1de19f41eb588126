"""Where a run goes on from: never from zero in silence, nor from less than it has come to."""

from pathlib import Path

import pytest

from components.pretrain.checkpoints import Checkpoints
from components.pretrain.history import HISTORY, append
from components.pretrain.resuming import begin, ended

from .test_checkpoints import saved, state


def spoil(folder: Path, step: int) -> None:
    file = folder / f"checkpoints/step-{step:08d}/state.safetensors"
    file.write_bytes(file.read_bytes()[:-1])


def test_a_start_has_nothing_and_what_it_left_behind_goes(tmp_path: Path) -> None:
    append(tmp_path / HISTORY, {"step": 1, "loss": 1.0}, [])
    assert begin(tmp_path) is None and (tmp_path / HISTORY).read_text() == ""


def test_checkpoints_that_somebody_has_removed_are_missed(tmp_path: Path) -> None:
    append(tmp_path / HISTORY, {"step": 1, "loss": 1.0}, [])
    with pytest.raises(ValueError, match="has reached step 400 and has no checkpoint any more; bring .* back"):
        begin(tmp_path, 400)
    assert (tmp_path / HISTORY).read_text(), "the curves are gone"


def test_the_last_step_is_exported_or_nothing(tmp_path: Path) -> None:
    assert ended(saved(tmp_path, 2, 4), 4)["step"] == 4
    spoil(tmp_path, 4)
    with pytest.raises(
        ValueError, match="its last step, 4, is not whole any more; start again: it goes on from step 2"
    ):
        ended(tmp_path, 4)
    with pytest.raises(ValueError, match="goes on from step 2"):  # nor when it has been set aside before
        ended(tmp_path, 4)


def test_other_libraries_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`state` was made with this torch and, as it says, without any other library."""
    made, saving = state(2), Checkpoints(tmp_path, 2, 0)
    made["about"]["versions"]["torch"] = "1.13.0"
    saving.save(made)
    saving.wait()
    assert begin(tmp_path)
    said = capsys.readouterr().out
    assert (
        "WARNING: training goes on with other libraries, torch 1.13.0 there, " in said and "numpy nothing there" in said
    )
