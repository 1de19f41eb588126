"""Runs whose process is gone: SIGKILL and power cuts leave them RUNNING in MLflow, which is not true."""

import glob
import sys
import time
from pathlib import Path

from components.tracking.database import Database, database
from components.tracking.delivery import PENDING, AwayError, away, deliver
from components.tracking.journal import Journal, journals
from components.tracking.resumption import recorded_process


def close_dead(checkout: Path) -> list[str]:
    """Closes as KILLED every running row, of pipelines and of stages, whose process was on this machine and is gone.

    Returns the ids. Call it when a stage has failed and when a run begins. When MLflow is away, the journals keep it for later.
    """
    store, closed = database(checkout), list[str]()
    for journal in journals(store.journals):
        try:
            state = journal.state()
            if state.status == "RUNNING" and state.uri == store.uri and state.process.gone():
                _close(store, journal)
                closed.append(state.run_id)
        except FileNotFoundError:  # it has just been finished and moved
            continue
    try:
        return closed + _without_journal(store)
    except AwayError as error:
        print(f"warning: MLflow did not say which rows are still running: {error}", file=sys.stderr)
        return closed


def close_killed(checkout: Path, run_id: str, stage: str = "") -> None:
    """Closes as KILLED what was killed before it could say so itself: the run of one `stage`, by DVC's name, below the row `run_id`.

    Without a stage, the row and all that is below it. What has ended already stays as it is. A run killed before it had a row has none
    below it: '' is no row, and every pipeline's row has it for a parent.
    """
    store, name = database(checkout), stage.replace("@", ".", 1)
    for journal in journals(store.journals, f"{glob.escape(name)}.*" if stage else "*") if run_id else ():
        try:
            state = journal.state()
        except FileNotFoundError:  # it has just been finished and moved
            continue
        mine = state.parent == run_id or (not stage and run_id in (state.run_id, PENDING + journal.id))
        if mine and state.status == "RUNNING":
            _close(store, journal)
    close_dead(checkout)


def _close(store: Database, journal: Journal) -> None:
    journal.append({"op": "end", "status": "KILLED", "time": int(time.time() * 1000)})
    journal.note(status="KILLED")
    try:
        deliver(journal, store)
    except AwayError as error:
        print(f"warning: MLflow does not know yet that {journal.path.stem} was killed: {error}", file=sys.stderr)


def _without_journal(store: Database) -> list[str]:
    """The same for rows whose journal is in another checkout or was removed."""
    if store.file and not store.file.is_file():
        return []
    with away():
        client = store.client()
        running = client.search_runs(
            [store.experiment(client)], "attributes.status = 'RUNNING' AND tags.`process.pid` LIKE '%'"
        )
        dead = [run.info.run_id for run in running if recorded_process(run.data.tags).gone()]
        for run_id in dead:
            client.set_terminated(run_id, "KILLED")
    return dead
