"""Sends what MLflow has not got yet: `python -m components.tracking.sync`, or `make sync`.

Journals are kept in `logs/tracking/` beside the database. Rows whose process is gone are closed by the next run, not here.
"""

import argparse
import os
import sys
from pathlib import Path

from components.tracking.database import Database, database, project_root
from components.tracking.delivery import AwayError, deliver
from components.tracking.journal import journals


def main(argv: list[str] | None = None) -> int:
    """Exit status 0 when MLflow has everything, 1 when something still waits, 2 for bad input."""
    parser = argparse.ArgumentParser(prog="python -m components.tracking.sync", description=__doc__, allow_abbrev=False)
    parser.add_argument("--root", type=Path, default=project_root(), metavar="FOLDER", help="the project's folder")
    parser.add_argument("--journals", type=Path, metavar="FOLDER", help="where the journals are, if not there")
    parser.add_argument("--drop", metavar="NAME", help="forget what this journal still holds, as for a deleted row")
    arguments = parser.parse_args(argv)
    os.environ.setdefault("MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT", "true")
    try:
        store = database(arguments.root.resolve())
        store = store._replace(journals=arguments.journals or store.journals)
        if arguments.drop:
            return _drop(store.journals, arguments.drop)
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    waiting, sent = 0, 0
    for journal in journals(store.journals):  # pipelines are sent with the first of their stages
        try:
            if journal.sent():
                continue
            own = Database(journal.state().uri, store.journals)
        except FileNotFoundError:  # its own process has just sent it all and moved it
            continue
        try:
            deliver(journal, own)
            journal.shelved()
            sent += 1
            print(f"sent {journal.path.stem} to {own.uri}")
        except AwayError as error:
            waiting += 1
            print(f"waiting: {journal.path.stem}: {own.uri} is away: {error}", file=sys.stderr)
    print(f"{sent} runs sent, {waiting} waiting" if sent or waiting else "nothing was waiting")
    if waiting:
        way = "`python -m components.tracking.sync --drop NAME` forgets it"
        print(f"if something waits for a row that was deleted on purpose: {way}", file=sys.stderr)
    return 1 if waiting else 0


def _drop(folder: Path, name: str) -> int:
    """Forgets what one journal still holds. Raises ValueError for one that holds nothing, or that a process may still write."""
    waiting = {journal.path.stem: journal for journal in journals(folder) if not journal.sent()}
    if name not in waiting:
        shown = ", ".join(waiting) or "none"
        raise ValueError(f"--drop is {name!r}; it must be a journal of {folder} that waits; these are: {shown}")
    state = waiting[name].state()
    if state.status == "RUNNING" and not state.process.gone():
        host, pid, _ = state.process
        raise ValueError(f"--drop is {name!r}, which process {pid} on {host} writes; wait for its end, or stop it")
    waiting[name].remove()
    print(f"forgot {name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
