"""The stage's own process follows what the controller writes: each step once, and drawings on the way."""

import json
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from components.pretrain.history import Row, following

NAMES = ("epoch", "loss", "images_per_second", "seconds_per_step", "effective_rank")


def append(path: Path, steps: list[int], collapsed: float = 0.0) -> None:
    with path.open("a", encoding="utf-8") as file:
        file.writelines(
            json.dumps({"step": step} | dict.fromkeys(NAMES, 1.0) | {"feature_std": 0.5, "collapsed": collapsed}) + "\n"
            for step in steps
        )


def test_it_draws_each_tenth_of_the_way_and_leaves_the_end_to_its_caller(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, drawn = tmp_path / "history.jsonl", list[list[float]]()

    def draw(rows: Sequence[Row]) -> None:
        drawn.append([row["step"] for row in rows])

    append(path, [1, 2])
    path.write_text(path.read_text() + '{"step": 3, "lo')  # of a killed run
    seen, deadline = "", time.monotonic() + 60
    with following(path, 100, draw):
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
    assert shown == [1, 2, 5, 10, 15, 19, 20, 30, 100]


def test_a_collapse_is_told_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "history.jsonl"
    with following(path, 10, lambda rows: None):
        append(path, [1])
        append(path, [2, 3], collapsed=1.0)
    lines = [line for line in capsys.readouterr().out.splitlines() if "WARNING" in line]
    assert len(lines) == 1 and "features have collapsed by step 2: effective rank 1.00" in lines[0]
