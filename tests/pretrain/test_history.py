"""The stage's own process follows what the controller writes: each step once, and drawings on the way."""

import json
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from components import tracking
from components.pretrain.history import Row, continued, following
from components.tracking.run import Point

NAMES = ("epoch", "loss", "images_per_second", "seconds_per_step", "effective_rank")


def row(step: int, collapsed: float = 0.0) -> dict[str, float]:
    return {"step": step} | dict.fromkeys(NAMES, 1.0) | {"feature_std": 0.5, "collapsed": collapsed}


def append(path: Path, steps: list[int], collapsed: float = 0.0, checkpoint: bool = False) -> None:
    with path.open("a", encoding="utf-8") as file:
        lines = [row(step, collapsed) | {"time": 1000 * step, "checkpoint": checkpoint} for step in steps]
        file.writelines(json.dumps(line) + "\n" for line in lines)


def nothing(value: object) -> None:
    pass


@pytest.fixture
def logged(monkeypatch: pytest.MonkeyPatch) -> list[Point]:
    """The points of the loss on their way to MLflow."""
    found = list[Point]()
    monkeypatch.setattr(
        tracking, "log_points", lambda points: found.extend(point for point in points if point[0] == "pretrain/loss")
    )
    return found


def test_it_draws_each_tenth_of_the_way_and_leaves_the_end_to_its_caller(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, drawn = tmp_path / "history.jsonl", list[list[float]]()

    def draw(rows: Sequence[Row]) -> None:
        drawn.append([row["step"] for row in rows])

    continued(path, [row(1), row(2)])
    seen, deadline = "", time.monotonic() + 60
    with following(path, 100, draw, nothing):
        for steps, expected in (([5], 0), ([4, 5, 10], 1), ([15, 19], 1), ([20, 30], 2)):
            append(path, steps)
            while f"step {steps[-1]}/100," not in seen:
                assert time.monotonic() < deadline, seen
                time.sleep(0.02)
                seen += capsys.readouterr().out
            time.sleep(0.05)
            assert len(drawn) == expected, steps
        append(path, [100])
    seen += capsys.readouterr().out
    assert drawn[:2] == [[1, 2, 5, 10], [1, 2, 5, 10, 15, 19, 20, 30]]
    shown = [int(line.split("/")[0].removeprefix("step ")) for line in seen.splitlines()]
    assert shown == [5, 10, 15, 19, 20, 30, 100]  # the first two were shown by the run that came so far


def test_a_restart_begins_with_the_rows_of_its_checkpoint(tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    append(path, [1, 2, 3, 4])
    path.write_text(path.read_text() + '{"step": 5, "lo')  # of a killed run
    continued(path, [row(1), row(2), row(3)])
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [(line["step"], line["time"], line["checkpoint"]) for line in lines] == [
        (1, 1000, False),
        (2, 2000, False),
        (3, 3000, True),
    ]
    continued(path, [])
    assert path.read_text() == ""


def test_mlflow_gets_a_step_with_the_checkpoint_after_it(tmp_path: Path, logged: list[Point]) -> None:
    path, saved = tmp_path / "history.jsonl", list[int]()
    append(path, [1, 2])
    append(path, [3], checkpoint=True)
    append(path, [4, 5])
    with following(path, 10, nothing, saved.append):
        pass
    assert logged == [("pretrain/loss", 1.0, 1000 * step, step) for step in (1, 2, 3)] and saved == [3]
    logged.clear()
    with pytest.raises(ValueError, match="no number"), following(path, 10, nothing, nothing):
        raise ValueError("the loss is no number")  # as a restart would find again
    assert [step for _, _, _, step in logged] == [1, 2, 3, 4, 5]
    logged.clear()
    with pytest.raises(KeyboardInterrupt), following(path, 10, nothing, nothing):
        raise KeyboardInterrupt
    assert [step for _, _, _, step in logged] == [1, 2, 3]


def test_a_collapse_is_told_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "history.jsonl"
    path.touch()
    with following(path, 10, nothing, nothing):
        append(path, [1])
        append(path, [2, 3], collapsed=1.0)
    lines = [line for line in capsys.readouterr().out.splitlines() if "WARNING" in line]
    assert len(lines) == 1 and "features have collapsed by step 2: effective rank 1.00" in lines[0]
