"""Sends what MLflow has not got yet: `python -m components.tracking.sync`, or `make sync`.

Journals are kept in `logs/tracking/` beside the database; rows whose process is gone are closed as KILLED on the way.
"""

import argparse
import os
import sys
from pathlib import Path

from components.tracking.database import Database, database, project_root
from components.tracking.delivery import AwayError, deliver
from components.tracking.journal import journals


def main(argv: list[str] | None = None) -> int:
    """Exit status 0 when MLflow has everything, 1 when something still waits."""
    parser = argparse.ArgumentParser(prog="python -m components.tracking.sync", description=__doc__, allow_abbrev=False)
    parser.add_argument("--root", type=Path, default=project_root(), metavar="FOLDER", help="the project's folder")
    parser.add_argument("--journals", type=Path, metavar="FOLDER", help="where the journals are, if not there")
    arguments = parser.parse_args(argv)
    os.environ.setdefault("MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT", "true")
    store = database(arguments.root.resolve())
    store = store._replace(journals=arguments.journals or store.journals)
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
    return 1 if waiting else 0


if __name__ == "__main__":
    sys.exit(main())
