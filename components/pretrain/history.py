"""The curves on their way from Ray's controller process to the person and to MLflow.

The controller appends one JSON line a logged step; the stage's own process follows the file. So the numbers are on disk whatever
happens, and MLflow is written by one process only. A person sees a step at once; MLflow gets it with the next checkpoint, because a
restart computes what came after the last one again.
"""

import csv
import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import ray.train

from components import progress, tracking
from components.stage import atomic

T = TypeVar("T")
Row = Mapping[str, float]  # not from `loop`: the controller process should start without torch and timm


class HistoryWriter(ray.train.UserCallback):  # type: ignore[misc]
    """Ray Train callback, run by the controller: appends every reported row to `path`."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def after_report(self, run_context: Any, metrics: Sequence[Mapping[str, float]], checkpoint: Any) -> None:
        """Called by Ray once all ranks have reported a step."""
        # rank 0's, which the checkpoint keeps too: its values are global
        line = {**metrics[0], "time": int(time.time() * 1000), "checkpoint": checkpoint is not None}
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")


def continued(path: Path, rows: Sequence[Row]) -> None:
    """Makes the file hold `rows`, those of the checkpoint that training goes on from, and nothing that came after it."""
    times = {}
    for text in path.read_text(encoding="utf-8").splitlines() if path.is_file() else ():
        try:
            line = json.loads(text)
        except json.JSONDecodeError:  # a killed run may have left half a line
            continue
        times[line["step"]] = line["time"]
    now = int(time.time() * 1000)
    lines = [{**row, "time": times.get(row["step"], now), "checkpoint": row is rows[-1]} for row in rows]
    with atomic(path) as temporary:
        temporary.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")


@contextmanager
def following(
    path: Path, steps: int, draw: Callable[[Sequence[Row]], None], saved: Callable[[int], None]
) -> Iterator[None]:
    """Prints the rows that are added to `path` as they appear, and logs them as checkpoints come, each step once.

    `draw` gets all rows so far at each tenth of the `steps`; the last drawing is the caller's. `saved` gets the step of each checkpoint.
    """
    stop, follower = threading.Event(), _Follower(path, steps, draw, saved)
    thread = threading.Thread(target=follower.follow, args=(stop,))
    thread.start()
    try:
        yield
    except (
        ValueError
    ):  # training's own verdict, to which a restart would come again: its last steps belong to the curves
        follower.complete = True
        raise
    finally:
        stop.set()
        thread.join()


class _Follower:
    def __init__(
        self, path: Path, steps: int, draw: Callable[[Sequence[Row]], None], saved: Callable[[int], None]
    ) -> None:
        self._path, self._steps, self._draw, self._saved = path, steps, draw, saved
        self._rows, self._waiting, self._warned = list[Row](), list[tuple[int, Row]](), False
        lines = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
        self._shown = json.loads(lines[-1])["step"] if lines else -1
        self.complete = False

    def follow(self, stop: threading.Event) -> None:
        buffer, due = "", self._steps / 10
        self._path.touch()
        with self._path.open(encoding="utf-8") as file:
            while True:
                ended = stop.wait(0.5)
                *lines, buffer = (buffer + file.read()).split("\n")
                for line in map(json.loads, lines):
                    self._told(self._take, line)
                if ended:
                    if self.complete:
                        self._log()
                    return
                if self._rows and self._rows[-1]["step"] >= due:
                    self._told(self._draw, self._rows)
                    due = self._rows[-1]["step"] + max(self._steps, 1) / 10

    def _told(self, write: Callable[[T], None], what: T) -> None:
        """Does it; a disk that is full now costs this line of the record, not all that would follow."""
        try:
            write(what)
        except OSError as error:
            progress.show(f"WARNING: the curves of this step were not written: {error}; training goes on")

    def _take(self, line: dict[str, float]) -> None:
        when, checkpoint = int(line.pop("time")), line.pop("checkpoint")
        # A restart by Ray itself computes the steps after its checkpoint again, to the same numbers.
        if not self._rows or line["step"] > self._rows[-1]["step"]:
            self._rows.append(line)
            self._waiting.append((when, line))
            if line["step"] > self._shown:
                _show(line, self._steps)
            if line["collapsed"] and not self._warned:
                self._warned = True
                _warn(line)
        if checkpoint:
            self._log()
            self._saved(int(line["step"]))

    def _log(self) -> None:
        """Everything up to here is in a checkpoint, or final."""
        tracking.log_points(
            (f"pretrain/{name}", value, when, int(row["step"]))
            for when, row in self._waiting
            for name, value in row.items()
            if name != "step"
        )
        self._waiting.clear()


def _show(row: Row, steps: int) -> None:
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
