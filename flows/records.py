"""What is known of each pipeline run: `workspaces/<run>/run.json` in the checkout, kept when its working tree is pruned."""

import fcntl
import json
import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import IO

from components.stage import write_json

FOLDER = "workspaces"


@dataclass(frozen=True)
class Record:
    """One pipeline run."""

    name: str
    owner: str
    """Who may continue it: `prefect:<flow run id>`, or `ablation:<ablation>/<member>`."""
    created: str
    """UTC, ISO 8601; also the order of runs."""
    commit: str = ""
    """The checkout's commit at the start; '' without git."""
    dirty: bool = False
    """Whether uncommitted changes were carried along; they are in `uncommitted.patch` beside this record."""
    root: str = ""
    """The absolute folder it works in; '' until there is one."""
    in_place: bool = False
    """Whether that folder is the checkout itself."""
    status: str = "RUNNING"
    """RUNNING, FINISHED, FAILED or KILLED, in MLflow's words. A RUNNING one whose process is gone was killed."""
    ended: str = ""
    parent: str = ""
    """Id of its row in MLflow; '' where MLflow refused."""
    experiment: str = ""
    """The git ref of its DVC experiment in the checkout, `refs/exps/…/<run>`; '' while there is none."""
    process: int = 0
    """Id of the flow's process, on `host`; for people. Whether it is still at work, `alive` tells."""
    host: str = ""


def folder(checkout: Path, name: str) -> Path:
    """Where run `name` has its record, its patch and its working tree."""
    return checkout / FOLDER / name


def read(checkout: Path, name: str) -> Record | None:
    """The record of run `name`; None when no run has that name."""
    path = folder(checkout, name) / "run.json"
    if not path.is_file():
        return None
    return Record(**json.loads(path.read_text(encoding="utf-8")))


def every(checkout: Path) -> list[Record]:
    """All records, oldest first."""
    found = [read(checkout, path.parent.name) for path in (checkout / FOLDER).glob("*/run.json")]
    return sorted((record for record in found if record), key=lambda record: (record.created, record.name))


def write(checkout: Path, record: Record) -> Record:
    """Puts `record` in place of the one with its name; one that has ended is no longer held by this process."""
    write_json(folder(checkout, record.name) / "run.json", asdict(record))
    if record.status != "RUNNING":
        release(checkout, record.name)
    return record


def claim(checkout: Path, name: str, owner: str) -> tuple[Record, bool]:
    """Makes run `name` the owner's and holds it until it has ended; its record, and whether it was the owner's before (a retry).

    Raises ValueError for a name that another run has, and for a run of this owner that is still at work.
    """
    with alone(checkout):
        known = read(checkout, name)
        if known and known.owner != owner:
            raise ValueError(
                f"run name {name!r} is taken by the run of {known.created[:19]} UTC ({state(checkout, known)}); its results stay as "
                f"they are: {ways_out(checkout, known, 'this run')}"
            )
        if known and alive(checkout, known):
            raise ValueError(f"run {name!r} is {at_work(known)}; wait until it has ended, or cancel it first")
        _held[_lock(checkout, name)] = file = _open(_lock(checkout, name))
        fcntl.flock(file, fcntl.LOCK_EX)  # waits at most for one who asks whether somebody is at it
        record = known or Record(name=name, owner=owner, created=now())
        record = replace(record, status="RUNNING", ended="", process=os.getpid(), host=platform.node())
        return write(checkout, record), known is not None


def release(checkout: Path, name: str) -> None:
    """Lets go of a run that this process holds; the end of a process, however it comes, does so too."""
    if file := _held.pop(_lock(checkout, name), None):
        file.close()


def settle_killed(checkout: Path) -> list[Record]:
    """Writes KILLED to the records that say RUNNING although no process holds them; these records."""
    with alone(checkout):
        return [
            write(checkout, replace(record, status="KILLED", ended=now()))
            for record in every(checkout)
            if record.status == "RUNNING" and not alive(checkout, record)
        ]


def alive(checkout: Path, record: Record) -> bool:
    """Whether a flow is at this run now: it holds a lock, which the kernel takes from it when it dies.

    A process id would mean nothing in another container, and its start time moves when somebody sets the clock.
    """
    path = _lock(checkout, record.name)
    if record.status != "RUNNING" or not path.is_file():
        return False
    with path.open("r") as file:
        try:
            fcntl.flock(
                file, fcntl.LOCK_SH | fcntl.LOCK_NB
            )  # shared, so that two who ask at once do not see each other
        except BlockingIOError:
            return True
    return False


def state(checkout: Path, record: Record) -> str:
    """How it stands with a run, in one word for a person: of one that says RUNNING, whether it still is."""
    return "killed" if record.status == "RUNNING" and not alive(checkout, record) else record.status.lower()


def ways_out(checkout: Path, record: Record, mine: str) -> str:
    """What to do for `mine`, whose name run `record` has. To remove one that is not done is none: its resume state would go, too."""
    if record.status == "FINISHED":
        return f"give {mine} another name, or remove that run with `make gc REMOVE={record.name} APPLY=1`"
    if alive(checkout, record):
        return f"give {mine} another name; that run is {at_work(record)}"
    kind, _, rest = record.owner.partition(":")
    by = f"`make ablation NAME={rest.rpartition('/')[0]}` with its values" if kind == "ablation" else ""
    return (
        f"give {mine} another name, and what has the same values, data and code goes on from the resume state of that run, which is not "
        f"done; or go on with that run itself: {by or 'Retry on its page in Prefect, if it was started there'}"
    )


def at_work(record: Record) -> str:
    """Who is at a run that is alive, for a person."""
    return f"at work in process {record.process} of {record.host}"


def _lock(checkout: Path, name: str) -> Path:
    return folder(checkout, name).resolve() / "lock"


def _open(path: Path) -> IO[str]:
    path.parent.mkdir(parents=True, exist_ok=True)
    return path.open("a")


_held: dict[Path, IO[str]] = {}
"""The locks of the runs that this process is at."""


def now() -> str:
    """The time in UTC."""
    return datetime.now(UTC).isoformat(timespec="microseconds")


@contextmanager
def alone(checkout: Path) -> Iterator[None]:
    """Two runs that start at once take turns, and none starts while old ones are removed."""
    (checkout / FOLDER).mkdir(exist_ok=True)
    with (checkout / FOLDER / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
