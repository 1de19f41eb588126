"""What a run has to tell MLflow, first written to disk: one JSON line an operation, one file a run.

`<key>.<id>.jsonl` holds the operations in order; `.state` beside it how far they were sent, to which run of MLflow, and which
process writes them; `.files/` the artefacts that wait. Every operation may be sent again without harm, so that a process that dies
between sending one and noting it does none. The journal of a run that finished and was sent in full moves to `finished/`.
"""

import fcntl
import json
import os
import shutil
import socket
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, NamedTuple, Self

import psutil

from components.stage import remove, write_json

Operation = Mapping[str, Any]


class Process(NamedTuple):
    """A process on some machine; `start` (s since the machine's boot) tells it from a later one with its number."""

    host: str
    pid: int
    start: float

    @classmethod
    def this(cls) -> Self:
        """The process that asks."""
        return cls(socket.gethostname(), os.getpid(), _since_boot(psutil.Process()))

    def gone(self) -> bool:
        """Whether it surely runs no more: not on this machine, and it was here."""
        if self.host != socket.gethostname():
            return False
        try:
            process = psutil.Process(self.pid)
            return abs(_since_boot(process) - self.start) > 1 or process.status() == psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return True


def _since_boot(process: psutil.Process) -> float:
    """When it started, on a clock that nobody sets: in s since 1970, both numbers move when somebody does."""
    return process.create_time() - psutil.boot_time()


class State(NamedTuple):
    """What is known of a journal besides its lines."""

    uri: str
    """The database it is for."""
    run_id: str = ""
    """The run in MLflow; '' while MLflow has none."""
    offset: int = 0
    """Bytes that were sent."""
    status: str = "RUNNING"
    """As last written down, which MLflow may not know yet."""
    parent: str = ""
    attempt: int = 1
    process: Process = Process("", 0, 0.0)


class Journal:
    """The journal of one run."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._state, self.files = path.with_suffix(".state"), path.with_suffix(".files")

    @classmethod
    def new(cls, folder: Path, key: str, state: State, first: Operation | None = None) -> Self:
        """A journal with its first operation. Its id begins with the time, so that names sort by age. Raises OSError."""
        folder.mkdir(parents=True, exist_ok=True)
        made = cls(folder / f"{key}.{time.strftime('%Y%m%d%H%M%S')}-{uuid.uuid4().hex[:12]}.jsonl")
        if first:
            made.append(first)
        write_json(made._state, state._asdict())
        return made

    @property
    def id(self) -> str:
        """What MLflow's run is tagged with, so that one made just before a crash is found again."""
        return self.path.stem.rpartition(".")[2]

    def state(self) -> State:
        """What was noted last."""
        try:
            text = self._state.read_text(encoding="utf-8")
        except FileNotFoundError:  # its run has just finished, and it was shelved
            text = (self.path.parent / "finished" / self._state.name).read_text(encoding="utf-8")
        values = json.loads(text)
        return State(**values | {"process": Process(*values["process"])})

    def note(self, **known: Any) -> State:
        """Changes parts of the state."""
        with self.alone("note"):
            state = self.state()._replace(**known)
            write_json(self._state, state._asdict())
            return state

    @contextmanager
    def alone(self, to: Literal["send", "create", "note"]) -> Iterator[None]:
        """One process at a time does that. Who creates may wait for a parent's creation, and who sends for any: never the other way."""
        folder = self.path.parent / ".locks"
        folder.mkdir(exist_ok=True)
        with (folder / f"{self.id}.{to}").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def _locks(self) -> list[Path]:
        return list((self.path.parent / ".locks").glob(f"{self.id}.*"))

    def append(self, operation: Operation) -> None:
        """Writes one line at the end. Raises OSError when the disk refuses."""
        line = json.dumps(operation, ensure_ascii=False) + "\n"
        with self.path.open("a+b") as file:
            end = file.seek(0, os.SEEK_END)
            if end:
                file.seek(end - 1)
                line = line if file.read(1) == b"\n" else f"\n{line}"  # a full disk may have cut the last one
            file.write(line.encode())

    def operations(self, start: int = 0) -> Iterator[tuple[Operation, int]]:
        """The operations from byte `start` on, each with the byte it ends at; a line that was cut off is passed over."""
        if not self.path.exists():
            return
        with self.path.open("rb") as file:
            file.seek(start)
            end = start
            for line in file:
                end += len(line)
                if not line.endswith(b"\n"):
                    return
                try:
                    yield json.loads(line), end
                except json.JSONDecodeError:
                    continue

    def keep(self, path: Path) -> str:
        """A copy of a file that has to wait, for it may change; its name in `files`."""
        folder = self.files / uuid.uuid4().hex[:12]
        folder.mkdir(parents=True)
        shutil.copy2(path, folder / path.name)
        return f"{folder.name}/{path.name}"

    def sent(self) -> bool:
        """Whether MLflow has all of it."""
        return not self.path.exists() or self.state().offset >= self.path.stat().st_size

    def shelved(self) -> Self:
        """The journal, moved to `finished/` if its run has finished and MLflow has all of it."""
        done = self.path.parent.name != "finished" and self.state().status == "FINISHED" and self.sent()
        return self._moved("finished") if done else self

    def unshelved(self) -> Self:
        """The journal, back from `finished/` if it is there."""
        return self._moved("..") if self.path.parent.name == "finished" else self

    def remove(self) -> None:
        """Forgets the run, whatever MLflow has of it."""
        for path in (self.path, self.files, *self._locks(), self._state):  # the state last: without it nothing is found
            remove(path)

    def _moved(self, folder: str) -> Self:
        aim = (self.path.parent / folder).resolve()
        aim.mkdir(exist_ok=True)
        with self.alone("send"):
            for path in (self.path, self._state, self.files):
                if path.exists():
                    path.rename(aim / path.name)
        for lock in self._locks():
            lock.unlink(missing_ok=True)
        return type(self)(aim / self.path.name)


def journals(folder: Path, key: str = "*", finished: bool = False) -> list[Journal]:
    """The journals in `folder` whose names begin with `key`, a glob pattern, oldest first."""
    found = [*folder.glob(f"{key}.*.state"), *(folder.glob(f"finished/{key}.*.state") if finished else ())]
    return [
        Journal(path.with_suffix(".jsonl")) for path in sorted(found, key=lambda path: path.stem.rpartition(".")[2])
    ]


@contextmanager
def taking_turns(folder: Path) -> Iterator[None]:
    """Two stages that start at once look for a run to continue one after the other."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
