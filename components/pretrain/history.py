"""The curves on their way from Ray's controller process to the person and to MLflow.

The controller appends one JSON line a logged step; the stage's own process follows the file. So
the numbers are on disk whatever happens, and MLflow is written by one process only.
"""

import csv
import json
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import ray.train

from components import progress, tracking

Row = Mapping[str, float]  # not from `loop`: the controller process should start without torch and timm


class HistoryWriter(ray.train.UserCallback):  # type: ignore[misc]
    """Ray Train callback, run by the controller: appends every reported row to `path`."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def after_report(self, run_context: Any, metrics: Sequence[Mapping[str, float]], checkpoint: Any) -> None:
        """Called by Ray once all ranks have reported a step."""
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(metrics[0]) + "\n")  # rank 0's, which the checkpoint keeps too: its values are global


@contextmanager
def following(path: Path, steps: int, draw: Callable[[Sequence[Row]], None]) -> Iterator[None]:
    """Prints and logs the rows of `path` as they appear, each step once, also those of an attempt that was cut short.

    `draw` gets all rows so far at each tenth of the `steps`; the last drawing is the caller's.
    """
    stop = threading.Event()
    follower = threading.Thread(target=_follow, args=(path, steps, draw, stop))
    path.touch()
    text = path.read_text(encoding="utf-8")
    path.write_text(text[: text.rfind("\n") + 1], encoding="utf-8")  # a killed run may have left half a line
    follower.start()
    try:
        yield
    finally:
        stop.set()
        follower.join()


def _follow(path: Path, steps: int, draw: Callable[[Sequence[Row]], None], stop: threading.Event) -> None:
    rows, buffer, due, warned = list[Row](), "", steps / 10, False
    with path.open(encoding="utf-8") as file:
        while True:
            ended = stop.wait(0.5)
            *lines, buffer = (buffer + file.read()).split("\n")
            for row in map(json.loads, lines):
                # A restart computes the steps after its checkpoint again, to the same numbers.
                if not rows or row["step"] > rows[-1]["step"]:
                    rows.append(row)
                    _show(row, steps)
                    if row["collapsed"] and not warned:
                        warned = True
                        _warn(row)
            if ended:
                return
            if rows and rows[-1]["step"] >= due:
                draw(rows)
                due = rows[-1]["step"] + max(steps, 1) / 10


def _show(row: Row, steps: int) -> None:
    curves = {f"pretrain/{name}": value for name, value in row.items() if name != "step"}
    tracking.log_metrics(curves, step=int(row["step"]))
    done, rate = int(row["step"]), row["images_per_second"]
    per_step = row["seconds_per_step"]
    progress.show(
        f"step {done}/{steps}, epoch {row['epoch']:.1f}, loss {row['loss']:.4f}, effective rank {row['effective_rank']:.1f}, "
        f"{rate:.0f} images/s, {_duration((steps - done) * per_step)} left"
    )


def _warn(row: Row) -> None:
    progress.show(
        f"WARNING: features have collapsed by step {row['step']:.0f}: effective rank {row['effective_rank']:.2f}, standard deviation "
        f"{row['feature_std']:.4f}; see collapse in params/pretrain.yaml and docs/troubleshooting.md"
    )
    tracking.log_tags({"collapsed": f"step {row['step']:.0f}"})


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s" if minutes else f"{rest} s"


def write_csv(path: Path, rows: Sequence[Row]) -> None:
    """The curves as a table for DVC plots."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, fieldnames=list(rows[0]))
        writer.writeheader()
        writer.writerows({name: f"{value:.8g}" for name, value in row.items()} for row in rows)
