"""The stage's own process follows what the controller writes: each step once, and drawings on the way."""

import json
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from components.pretrain import following as module
from components.pretrain.following import Listener, following
from components.pretrain.history import Row, append, continued, write_csv

NAMES = ("epoch", "loss", "images_per_second", "seconds_per_step", "effective_rank")


def row(step: int, collapsed: float = 0.0) -> dict[str, float]:
    return {"step": step} | dict.fromkeys(NAMES, 1.0) | {"feature_std": 0.5, "collapsed": collapsed, "skipped": 0.0}


def logs(path: Path, steps: list[int], collapsed: float = 0.0) -> None:
    for step in steps:
        append(path, row(step, collapsed), [{"data_wait": 0.1}, {"data_wait": 0.2}])


def checkpoint(folder: Path, step: int) -> None:
    (folder / "checkpoints" / f"step-{step:08d}").mkdir(parents=True)


class Heard(Listener):
    def __init__(self) -> None:
        self.rows, self.drawings, self.checkpoints, self.warnings = (
            list[int](),
            list[list[float]](),
            list[int](),
            list[str](),
        )
        self.waits = list[list[float]]()

    def points(self, row: Row, ranks: Sequence[Row], when: int) -> None:
        assert not {"time", "ranks"} & row.keys() and abs(when / 1000 - time.time()) < 600
        self.rows.append(int(row["step"]))
        self.waits.append([own["data_wait"] for own in ranks])

    def drawn(self, rows: Sequence[Row]) -> None:
        self.drawings.append([row["step"] for row in rows])

    def saved(self, step: int) -> None:
        self.checkpoints.append(step)

    def warned(self, name: str, text: str) -> None:
        self.warnings.append(f"{name}: {text}")


def test_it_draws_each_tenth_of_the_way_and_leaves_the_end_to_its_caller(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "FIRST_DRAWING_S", 0.0)
    monkeypatch.setattr(module, "DRAWING_SHARE", 1e9)
    path, heard = tmp_path / "history.jsonl", Heard()
    drawn = heard.drawings
    continued(path, [row(1), row(2)])
    seen, deadline = "", time.monotonic() + 60
    with following(path, 100, heard):
        for steps, expected in (([5], 0), ([4, 5, 10], 1), ([15, 19], 1), ([20, 30], 2)):
            logs(path, steps)
            while f"step {steps[-1]}/100," not in seen:
                assert time.monotonic() < deadline, seen
                time.sleep(0.02)
                seen += capsys.readouterr().out
            time.sleep(0.05)
            assert len(drawn) == expected, steps
        logs(path, [100])
    seen += capsys.readouterr().out
    assert drawn[:2] == [[1, 2, 5, 10], [1, 2, 5, 10, 15, 19, 20, 30]]
    shown = [int(line.split("/")[0].removeprefix("step ")) for line in seen.splitlines()]
    assert shown == [5, 10, 15, 19, 20, 30, 100]  # the first two were shown by the run that came so far


class Slow(Listener):
    """Draws for as long as a large figure takes; when it began and ended."""

    def __init__(self) -> None:
        self.times = list[tuple[float, float]]()

    def drawn(self, rows: Sequence[Row]) -> None:
        start = time.monotonic()
        while time.monotonic() < start + 0.05:
            pass
        self.times.append((start, time.monotonic()))


def test_drawings_take_a_small_share_of_the_time_however_fast_the_steps_go_by(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (("FIRST_DRAWING_S", 0.2), ("DRAWING_SHARE", 0.2), ("POLL_S", 0.005)):
        monkeypatch.setattr(module, name, value)
    path, slow, begun, step = tmp_path / "history.jsonl", Slow(), time.monotonic(), 0
    with following(path, 10, slow):
        while len(slow.times) < 5:
            assert time.monotonic() < begun + 60
            logs(path, [step := step + 1])
            time.sleep(0.005)  # the pace of the steps
    assert slow.times[0][0] >= begun + 0.2
    spent = sum(end - start for start, end in slow.times[:-1])
    assert spent <= 0.2 * (slow.times[-1][0] - begun)


def test_a_restart_begins_with_the_rows_of_its_checkpoint(tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    logs(path, [1, 2, 3, 4])
    before = [json.loads(line) for line in path.read_text().splitlines()]
    path.write_text(path.read_text() + '{"step": 5, "lo')  # of a killed run
    continued(path, [row(1), row(2), row(3)])
    assert [json.loads(line) for line in path.read_text().splitlines()] == before[:3]
    continued(path, [])
    assert path.read_text() == ""


def test_a_step_goes_on_with_the_checkpoint_after_it(tmp_path: Path) -> None:
    path, heard = tmp_path / "history.jsonl", Heard()
    logs(path, [1, 2, 3, 4, 5])
    checkpoint(tmp_path, 3)
    with following(path, 10, heard):
        pass
    assert (heard.rows, heard.checkpoints) == ([1, 2, 3], [3]) and heard.waits[0] == [0.1, 0.2]
    heard = Heard()
    with pytest.raises(ValueError, match="no number"), following(path, 10, heard):
        raise ValueError("the loss is no number")  # as a restart would find again
    assert heard.rows == [1, 2, 3, 4, 5]
    heard = Heard()
    with pytest.raises(KeyboardInterrupt), following(path, 10, heard):
        raise KeyboardInterrupt
    assert heard.rows == [1, 2, 3]


def test_workers_that_were_started_again_tell_no_step_twice(tmp_path: Path) -> None:
    path, heard = tmp_path / "history.jsonl", Heard()
    checkpoint(tmp_path, 5)
    logs(path, [1, 2, 3, 2, 3, 4, 5])
    with following(path, 10, heard):
        pass
    assert heard.rows == [1, 2, 3, 4, 5]


def test_a_value_that_a_step_has_not_is_an_empty_cell(tmp_path: Path) -> None:
    write_csv(tmp_path / "curves.csv", [{"step": 1, "loss": 0.5}, {"step": 2, "loss": 0.25, "knn": 40.0}])
    assert (tmp_path / "curves.csv").read_text().split() == ["step,loss,knn", "1,0.5,", "2,0.25,40"]


def test_a_collapse_is_told_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, heard = tmp_path / "history.jsonl", Heard()
    path.touch()
    with following(path, 10, heard):
        logs(path, [1])
        logs(path, [2, 3], collapsed=1.0)
    lines = [line for line in capsys.readouterr().out.splitlines() if "WARNING" in line]
    assert len(lines) == 1 and "features have collapsed by step 2: effective rank 1.00" in lines[0]
    assert heard.warnings == ["collapsed: step 2"]


def test_steps_that_were_left_out_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "history.jsonl"
    path.touch()
    with following(path, 10, Listener()):
        for step, skipped in ((1, 0.0), (2, 2.0), (3, 2.0)):
            append(path, row(step) | {"skipped": skipped}, [])
    lines = [line for line in capsys.readouterr().out.splitlines() if "WARNING" in line]
    assert len(lines) == 1 and "2 steps were left out by step 2" in lines[0]


def test_quality_that_falls_is_told_each_time_it_begins_to(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Once for two poor measurements on end, again after a good one; steps between that measured nothing change nothing."""
    path, heard = tmp_path / "history.jsonl", Heard()
    with following(path, 20, heard):
        for step, score in ((1, 40.0), (3, 18.0), (5, 18.0), (7, 50.0), (9, 10.0)):
            scores = {"quality_knn_top1": score, "quality_probe_top1": 33.0, "quality_guessing_top1": 12.0}
            append(path, row(step) | scores, [{"data_wait": 0.1}])
            append(path, row(step + 1), [{"data_wait": 0.1}])
    assert heard.warnings == [
        "quality: step 3: k-NN top-1 fell to 18.0 % from 40.0 % at step 1",
        "quality: step 9: k-NN top-1 is 10.0 %, no better than guessing (up to 12.0 %)",
    ]
    seen = capsys.readouterr().out
    assert seen.count("WARNING: by step") == 2
    assert [line for line in seen.splitlines() if line.startswith("step ") and "k-NN 50.0 %, probe 33.0 %, " in line]
    assert seen.count("k-NN ") == 5 + 2  # the steps that measured, and the warnings


def test_a_disk_that_takes_nothing_more_is_told(tmp_path: Path) -> None:
    with pytest.raises(
        ValueError, match=r"of step 3 cannot be written to .*: .*No space left.*; make room and start again"
    ):
        append(Path("/dev/full"), row(3), [])  # Linux has a disk that is always full
    with pytest.raises(IsADirectoryError):  # which no room mends
        append(tmp_path, row(3), [])


class Faulty(Heard):
    """Cannot take the first row, for a fault of ours or of a library's."""

    def points(self, row: Row, ranks: Sequence[Row], when: int) -> None:
        if row["step"] == 1:
            raise KeyError("no such thing")
        super().points(row, ranks, when)


def test_a_fault_of_the_listener_is_told_and_the_following_goes_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, heard = tmp_path / "history.jsonl", Faulty()
    path.touch()
    checkpoint(tmp_path, 2)
    with following(path, 10, heard):
        deadline = time.monotonic() + 60
        logs(path, [1])
        while "KeyError" not in (told := capsys.readouterr().out):
            assert time.monotonic() < deadline
            time.sleep(0.01)
        logs(path, [2, 3], collapsed=1.0)
    assert "WARNING: the curves of this step were not written: KeyError: 'no such thing'; training goes on" in told
    assert heard.rows == [2] and heard.warnings == ["collapsed: step 2"]
