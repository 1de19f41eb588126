"""The curves on their way from the history on the disk to a person and to MLflow, while training appends to it.

A person sees a step at once; MLflow gets it with the next checkpoint, because a restart computes what came after the last one again.
"""

import json
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from components import progress
from components.pretrain import checkpoints
from components.pretrain.history import Row
from components.pretrain.quality_rule import verdict

T = TypeVar("T")
POLL_S = 0.5
FIRST_DRAWING_S, DRAWING_SHARE = 60.0, 1 / 200
"""Curves are first drawn after so many seconds, and then take at most this share of the time, which training may want."""


class Listener:
    """What is done with the rows besides showing them: nothing, here."""

    def points(self, row: Row, ranks: Sequence[Row], when: int) -> None:
        """A row that is in a checkpoint, or final; `when` it was logged, ms since 1970."""

    def drawn(self, rows: Sequence[Row]) -> None:
        """All rows so far, at each tenth of the steps unless these go by too fast to be drawn."""

    def saved(self, step: int) -> None:
        """A checkpoint is there."""

    def warned(self, name: str, text: str) -> None:
        """A person was warned of `name`."""


@contextmanager
def following(path: Path, steps: int, listener: Listener) -> Iterator[None]:
    """Prints the rows that are added to `path` as they appear, and tells `listener`, each step once.

    Checkpoints are looked for beside it. The last drawing is the caller's.
    """
    stop, follower = threading.Event(), _Follower(path, steps, listener)
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
    def __init__(self, path: Path, steps: int, listener: Listener) -> None:
        self._path, self._steps, self._listener = path, steps, listener
        self._rows, self._waiting = list[Row](), list[dict[str, Any]]()
        self._warned, self._poor, self._skipped = False, False, 0.0
        self._saved = 0
        lines = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
        self._shown = json.loads(lines[-1])["step"] if lines else -1
        self.complete = False

    def follow(self, stop: threading.Event) -> None:
        buffer, due, not_before = "", self._steps / 10, time.monotonic() + FIRST_DRAWING_S
        self._path.touch()
        with self._path.open(encoding="utf-8") as file:
            while True:
                ended = stop.wait(POLL_S)
                *lines, buffer = (buffer + file.read()).split("\n")
                for line in map(json.loads, lines):
                    self._told(self._take, line)
                self._told(self._look, ended and self.complete)
                if ended:
                    return
                if self._rows and self._rows[-1]["step"] >= due and (start := time.monotonic()) >= not_before:
                    self._told(self._listener.drawn, self._rows)
                    due = self._rows[-1]["step"] + max(self._steps, 1) / 10
                    not_before = time.monotonic() + (time.monotonic() - start) / DRAWING_SHARE

    def _told(self, write: Callable[[T], None], what: T) -> None:
        """Does it; a disk that is full now, or a listener's fault, costs this line of the record, not all that would follow."""
        try:
            write(what)
        except Exception as error:
            said = error if isinstance(error, OSError) else f"{type(error).__name__}: {error}"
            progress.show(f"WARNING: the curves of this step were not written: {said}; training goes on")

    def _take(self, line: dict[str, Any]) -> None:
        # Workers that were started again compute the steps after the checkpoint again, to the same numbers.
        if self._rows and line["step"] <= self._rows[-1]["step"]:
            return
        row = {name: value for name, value in line.items() if name not in ("time", "ranks")}
        self._rows.append(row)
        self._waiting.append(line)
        if row["step"] > self._shown:
            _show(row, self._steps)
        if row["skipped"] > self._skipped:
            self._skipped = row["skipped"]
            progress.show(
                f"WARNING: {row['skipped']:.0f} steps were left out by step {row['step']:.0f}, for loss or gradient was no number; "
                f"optimisation.skip_budget says how many may be"
            )
        if row["collapsed"] and not self._warned:
            self._warned = True
            self._warn(row)
        if "quality_knn_top1" in row:
            told, was_poor = verdict(self._rows), self._poor
            self._poor = bool(told)
            if told and not was_poor:
                progress.show(f"WARNING: by step {row['step']:.0f} {told}; see quality in docs/troubleshooting.md")
                self._listener.warned("quality", f"step {row['step']:.0f}: {told}")

    def _look(self, everything: bool) -> None:
        """Rows that no restart computes again go on."""
        there = checkpoints.steps(self._path.parent / checkpoints.FOLDER)
        saved = checkpoints.step_of(there[-1]) if there else -1
        while self._waiting and (everything or self._waiting[0]["step"] <= saved):
            line = self._waiting.pop(0)
            when, ranks = line.pop("time"), line.pop("ranks")
            self._listener.points(line, ranks, when)
        if saved > self._saved:
            self._saved = saved
            self._listener.saved(saved)

    def _warn(self, row: Row) -> None:
        progress.show(
            f"WARNING: features have collapsed by step {row['step']:.0f}: effective rank {row['effective_rank']:.2f}, standard deviation "
            f"{row['feature_std']:.4f}; see collapse in params/pretrain.yaml and docs/troubleshooting.md"
        )
        self._listener.warned("collapsed", f"step {row['step']:.0f}")


def _show(row: Row, steps: int) -> None:
    done, rate = int(row["step"]), row["images_per_second"]
    knn, probe = row.get("quality_knn_top1"), row.get("quality_probe_top1")
    quality = "" if knn is None else f"k-NN {knn:.1f} %, probe {probe:.1f} %, "
    per_step = row["seconds_per_step"]
    progress.show(
        f"step {done}/{steps}, epoch {row['epoch']:.1f}, loss {row['loss']:.4f}, effective rank {row['effective_rank']:.1f}, "
        f"{quality}{rate:.0f} images/s, {_duration((steps - done) * per_step)} left"
    )


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s" if minutes else f"{rest} s"
