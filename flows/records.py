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

import psutil

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
    process: tuple[int, float] = (0, 0.0)
    """Id and start time (s since 1970) of the flow's process."""
    host: str = ""
    """The machine or container that process is on; elsewhere its id means nothing."""


def folder(checkout: Path, name: str) -> Path:
    """Where run `name` has its record, its patch and its working tree."""
    return checkout / FOLDER / name


def read(checkout: Path, name: str) -> Record | None:
    """The record of run `name`; None when no run has that name."""
    path = folder(checkout, name) / "run.json"
    if not path.is_file():
        return None
    values = json.loads(path.read_text(encoding="utf-8"))
    return Record(**values | {"process": tuple(values["process"])})


def every(checkout: Path) -> list[Record]:
    """All records, oldest first."""
    found = [read(checkout, path.parent.name) for path in (checkout / FOLDER).glob("*/run.json")]
    return sorted((record for record in found if record), key=lambda record: (record.created, record.name))


def write(checkout: Path, record: Record) -> Record:
    """Puts `record` in place of the one with its name."""
    write_json(folder(checkout, record.name) / "run.json", asdict(record))
    return record


def claim(checkout: Path, name: str, owner: str) -> tuple[Record, bool]:
    """Makes run `name` the owner's; its record, and whether it was the owner's before (a retry).

    Raises ValueError for a name that another run has, and for a run of this owner that is still at work.
    """
    with alone(checkout):
        known = read(checkout, name)
        if known and known.owner != owner:
            raise ValueError(
                f"run name {name!r} is taken by the run of {known.created[:19]} UTC ({known.status.lower()}); its results stay as "
                f"they are: give this run another name, or remove that one with `make gc REMOVE={name} APPLY=1`"
            )
        if known and known.status == "RUNNING" and alive(known) and known.process[0] != os.getpid():
            raise ValueError(
                f"run {name!r} is at work in process {known.process[0]}; wait until it has ended, or cancel it first"
            )
        mine = (os.getpid(), psutil.Process().create_time())
        record = known or Record(name=name, owner=owner, created=now())
        record = replace(record, status="RUNNING", ended="", process=mine, host=platform.node())
        return write(checkout, record), known is not None


def settle_killed(checkout: Path) -> list[Record]:
    """Writes KILLED to the records whose process on this machine is gone although they say RUNNING; these records."""
    with alone(checkout):
        return [
            write(checkout, replace(record, status="KILLED", ended=now()))
            for record in every(checkout)
            if record.status == "RUNNING" and record.host == platform.node() and not alive(record)
        ]


def alive(record: Record) -> bool:
    """Whether the flow's process still runs on this machine; another one with its number does not count."""
    pid, created = record.process
    try:
        process = psutil.Process(pid)
        return abs(process.create_time() - created) < 1 and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


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
