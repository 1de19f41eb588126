"""One run: what is said to it goes into its journal first and then to MLflow, which may be away for a while."""

import json
import math
import os
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from components.tracking.database import Database
from components.tracking.delivery import PENDING, AwayError, deliver
from components.tracking.journal import Journal, Process, State

PATIENCE_S = 60.0
"""How long nothing is sent after MLflow has failed."""

Point = tuple[str, float, int, int]
"""A metric's name, its value, when (ms since 1970) and the step."""


class Run:
    """A run that is open in this process."""

    def __init__(self, database: Database, journal: Journal, known: Mapping[str, int] | None = None) -> None:
        """`known` has the last step of each metric that MLflow holds without this journal."""
        self.database, self.journal = database, journal
        self._lock, self._next_try, self._warned = threading.RLock(), 0.0, False
        self._steps = dict(known or {})
        self._values = dict[str, float]()
        for operation, _ in journal.operations():
            if operation["op"] == "metrics":
                for name, value, _, step in operation["points"]:
                    self._know(name, value, step)

    @classmethod
    def begin(cls, database: Database, key: str, name: str, parent: str, tags: Mapping[str, str]) -> Self:
        """A new run. `key` begins the name of its journal."""
        tags = {**_source_tags(), **tags, "attempt": "1", **_process_tags()}
        first = {"op": "create", "name": name, "parent": parent, "tags": tags, "time": _now()}
        state = State(database.uri, parent=parent, process=Process.this())
        try:
            journal = Journal.new(database.journals, key, state, first)
        except OSError as error:
            folder = Path(tempfile.mkdtemp(prefix="tracking-"))
            print(f"warning: {error}; what MLflow doesn't take at once waits in {folder}", file=sys.stderr)
            journal = Journal.new(folder, key, state, first)
        run = cls(database, journal)
        run.send()
        return run

    @classmethod
    def resume(cls, database: Database, journal: Journal, known: Mapping[str, int] | None = None) -> Self:
        """A run that ended or was cut off, going on in this process as its next attempt."""
        journal = journal.unshelved()
        state = journal.note(status="RUNNING", attempt=journal.state().attempt + 1, process=Process.this())
        run = cls(database, journal, known)
        run.say({"op": "reopen"})
        run.tags({"attempt": str(state.attempt), **_process_tags()})
        return run

    @property
    def run_id(self) -> str:
        """The id in MLflow; before MLflow has the run, a handle that stands for it."""
        return self.journal.state().run_id or PENDING + self.journal.id

    @property
    def attempt(self) -> int:
        """1 for a new run, one more each time it goes on."""
        return self.journal.state().attempt

    @property
    def stored(self) -> bool:
        """Whether MLflow has the run."""
        return bool(self.journal.state().run_id)

    def metrics(self, values: Mapping[str, float], step: int = 0) -> None:
        """Adds one point to each metric. Values that are no finite numbers are left out, and steps a metric has passed."""
        self.points([(name, value, _now(), step) for name, value in values.items()])

    def scalars(self, values: Mapping[str, float]) -> None:
        """Sets metrics without steps. One that an earlier attempt set otherwise gets the attempt for a step, so that the new one counts."""
        changed = {name: value for name, value in values.items() if self._values.get(name) != value}
        self.metrics(changed, self.attempt - 1)

    def points(self, points: Iterable[Point]) -> None:
        """Adds points, the steps of each metric rising. One at or below the last step of its metric was logged before."""
        with self._lock:
            fresh = list[Point]()
            for name, value, time_ms, step in points:
                if math.isfinite(value) and step > self._steps.get(name, -1):
                    fresh.append((name, float(value), time_ms, step))
                    self._know(name, value, step)
            if fresh:
                self.say({"op": "metrics", "points": fresh})

    def _know(self, name: str, value: float, step: int) -> None:
        self._steps[name], self._values[name] = max(step, self._steps.get(name, step)), float(value)

    def curve(self, name: str) -> bool:
        """Whether the metric has had a step after its first."""
        return self._steps.get(name, 0) > 0

    def params(self, values: Mapping[str, Any]) -> None:
        """Records parameters; a list or mapping as JSON."""
        texts = {key: value if isinstance(value, str) else json.dumps(value) for key, value in values.items()}
        self.say({"op": "params", "values": texts})

    def tags(self, values: Mapping[str, str], run: str = "") -> None:
        """Sets tags, of another run where one is named."""
        if values:
            self.say({"op": "tags", "values": dict(values), "run": run})

    def inputs(self, datasets: Sequence[Mapping[str, str]]) -> None:
        """Records the datasets it reads: name, digest, source and source_type of each."""
        if datasets:
            self.say({"op": "inputs", "datasets": [dict(dataset) for dataset in datasets]})

    def artifact(self, path: Path, folder: str | None = None) -> None:
        """Attaches a file as it is now."""
        try:
            kept = self.journal.keep(path)
        except OSError as error:
            print(f"warning: MLflow did not take artefact {path.name}: {error}", file=sys.stderr)
            return
        self.say({"op": "artifact", "file": kept, "folder": folder})

    def adopt(self, child: str) -> None:
        """Makes `child` a child of this run unless it has a parent or is gone."""
        if child:
            self.say({"op": "adopt", "child": child})

    def end(self, status: str) -> None:
        """Closes the run as FINISHED, FAILED or KILLED, and tries to send what is left, whenever MLflow last failed."""
        with self._lock:
            self._next_try = 0.0
            self.say({"op": "end", "status": status, "time": _now()})
            if not self.journal.sent():
                folder = self.journal.path.parent
                elsewhere = f"`python -m components.tracking.sync --journals {folder}`"
                way = "`make sync`" if folder == self.database.journals else elsewhere
                print(
                    f"warning: MLflow has not got all of {self.journal.path.stem}; {way} sends the rest",
                    file=sys.stderr,
                )

    def say(self, operation: Mapping[str, Any]) -> None:
        """Writes an operation down and sends what waits. No failure of disk or MLflow comes out of it."""
        with self._lock:
            try:
                self.journal.append(operation)
                if operation["op"] == "end":
                    self.journal.note(status=operation["status"])
            except OSError as error:
                self._warn(
                    f"the journal of MLflow's run cannot be written: {error}; the stage's own files hold the numbers"
                )
                return
            self.send()

    def send(self) -> None:
        """Sends what waits, unless MLflow failed a moment ago."""
        with self._lock:
            if time.monotonic() < self._next_try:
                return
            try:
                deliver(self.journal, self.database)
                self.journal = self.journal.shelved()
                self._warned = False
            except AwayError as error:
                self._next_try = time.monotonic() + PATIENCE_S
                self._warn(
                    f"MLflow at {self.database.uri} is away: {error}; the work goes on, {self.journal.path} keeps it"
                )

    def _warn(self, text: str) -> None:
        if not self._warned:
            print(f"warning: {text}", file=sys.stderr)
        self._warned = True


def _now() -> int:
    return int(time.time() * 1000)


def _source_tags() -> dict[str, str]:
    return {"mlflow.source.name": Path(sys.argv[0]).parent.name, "mlflow.user": os.environ.get("USER", "")}


def _process_tags() -> dict[str, str]:
    host, pid, start = Process.this()
    return {"process.host": host, "process.pid": str(pid), "process.start": f"{start:.2f}"}


def numbers_and_tags(named: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
    """Numbers by MLflow's name, and texts as tags: `davis/protocol` is the tag `protocol.davis`."""
    texts = {name: value for name, value in named.items() if isinstance(value, str)}
    tags = {".".join((name.rpartition("/")[2], *name.split("/")[:-1])): value for name, value in texts.items()}
    return {name: value for name, value in named.items() if name not in texts}, tags
