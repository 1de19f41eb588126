"""Folders under `work/`, which the runs of all workspaces share: who uses one holds its lock, and only an unused one is removed."""

import fcntl
import json
import os
import time
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple, TextIO

from components import progress
from components.stage import remove

LOCK, FINISHED, USERS = "lock", "finished", "users"
KEPT_S = 86400.0
"""How long finished work stays at least, where another stage's start would remove it."""
CONTINUED_S = 14 * KEPT_S
"""How long work of the checkout itself, which has no record of its runs, waits to be continued, or for its results to be stored."""
RECORDS, RECORD = "workspaces", "run.json"
"""A run's project folder is below `workspaces/<run>`, where its record is."""


class Use(NamedTuple):
    """A folder and who has been in it."""

    folder: Path
    users: frozenset[Path]
    """The project folders that stages worked for."""
    last: float
    """When the last of them came or finished, s since 1970."""
    finished: bool

    def needed(self, unfinished: Collection[Path], checkout: Path) -> bool:
        """Whether one of the project folders `unfinished`, or the checkout, may go on with it or has still to store its results.

        Finished work is no exception: on a full disk a stage ends well and DVC cannot store what it made.
        """
        return bool(self.users & set(unfinished)) or (checkout in self.users and self.age < CONTINUED_S)

    @property
    def age(self) -> float:
        """Since then, s."""
        return time.time() - self.last


@contextmanager
def alone(folder: Path, waiting: str) -> Iterator[None]:
    """The only process in `folder`, which is made. While another is in it, shows `waiting` once and waits."""
    with _entered(folder, fcntl.LOCK_EX, waiting):
        yield


@contextmanager
def together(folder: Path) -> Iterator[None]:
    """One of several processes in `folder`, which is made and stays until the last has left."""
    with _entered(folder, fcntl.LOCK_SH, f"waiting until {folder} is cleared"):
        yield


def in_use(folder: Path) -> bool:
    """Whether a process is in `folder` now."""
    lock = _opened(folder) if (folder / LOCK).exists() else None
    if lock is None:
        return False
    with lock:
        return not _taken(lock)


def finish(folder: Path) -> None:
    """Says that the work in `folder` is done; it may be removed once its results are stored."""
    (folder / FINISHED).touch()


def forget_finished(parent: Path) -> None:
    """Removes the folders in `parent` whose work was done more than a day ago and no user has to store, where no process is in them."""
    for use in _uses(parent.glob(f"*/{LOCK}")):
        if use.finished and use.age > KEPT_S and not any(_waits(user, use.age) for user in use.users):
            remove_unused(use.folder)


def remove_unused(folder: Path) -> bool:
    """Removes `folder` unless a process is in it; whether it was removed."""
    aside = folder.with_name(f".{folder.name}.{os.getpid()}")
    lock = _opened(folder)
    if lock is None:
        return False
    with lock:
        # Its name may mean another file by now: removed by another process, and perhaps made anew by a third.
        if not _taken(lock) or not _is(lock.fileno(), folder / LOCK):
            return False
        folder.rename(aside)  # in one step: who comes now makes a folder of its own, and nothing of it is removed
    remove(aside)
    return True


def uses(root: Path) -> list[Use]:
    """What stages keep under the folder `root`: resume state `<stage>/<fingerprint>`, features `<stage>/features/<encoder>`."""
    return _uses([*root.glob(f"*/*/{LOCK}"), *root.glob(f"*/features/*/{LOCK}")])


def _uses(locks: Iterable[Path]) -> list[Use]:
    found = []
    for lock in sorted(locks):
        done, users = lock.with_name(FINISHED), lock.with_name(USERS)
        try:
            names = users.read_text(encoding="utf-8").splitlines() if users.is_file() else []
            last = max(path.stat().st_mtime for path in (lock, users, done) if path == lock or path.is_file())
        except FileNotFoundError:  # another process has just removed it
            continue
        found.append(Use(lock.parent, frozenset(map(Path, names)), last, done.is_file()))
    return found


def _waits(user: Path, age: float) -> bool:
    """Whether a stage's project folder may still have to store work of that age (s): its run is not done, or it has no record of runs."""
    for folder in user.parents:
        if folder.parent.name == RECORDS and (folder / RECORD).is_file():
            return bool(json.loads((folder / RECORD).read_text(encoding="utf-8"))["status"] != "FINISHED")
    return user.is_dir() and age < CONTINUED_S  # a removed run's is gone


@contextmanager
def _entered(folder: Path, kind: int, waiting: str) -> Iterator[None]:
    while True:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with suppress(FileExistsError):
            folder.mkdir()
        lock = _opened(folder)
        if lock is None:
            continue
        with lock:
            try:
                fcntl.flock(lock, kind | fcntl.LOCK_NB)
            except BlockingIOError:
                progress.show(waiting)
                fcntl.flock(lock, kind)
            if _is(lock.fileno(), folder / LOCK):
                _sign(folder)
                yield
                return


def _sign(folder: Path) -> None:
    """Writes down for whom this process works here: DVC tells its stages; elsewhere the working directory."""
    me, users = str(Path(os.environ.get("DVC_ROOT") or os.getcwd()).resolve()), folder / USERS
    users.touch()
    if me not in users.read_text(encoding="utf-8").splitlines():
        with users.open("a", encoding="utf-8") as file:
            file.write(me + "\n")


def _opened(folder: Path) -> TextIO | None:
    """The open lock of `folder`; None when another process has removed it."""
    try:
        return (folder / LOCK).open(
            "a+"
        )  # a network disk wants both rights, one to share a lock and one to hold it alone
    except FileNotFoundError:
        return None


def _taken(lock: TextIO) -> bool:
    """Takes the lock for this process alone, if nobody else has it now; whether it did."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _is(descriptor: int, path: Path) -> bool:
    """Whether the open file still has that name."""
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False
