"""A stage that starts again goes on in the run it was cut off in: same stage, same fingerprint, not finished or deleted, nobody at work."""

import glob
import socket
import sys
from collections.abc import Mapping
from typing import Any

from components.tracking.database import Database
from components.tracking.delivery import AwayError, away
from components.tracking.journal import Journal, Process, State, journals, taking_turns
from components.tracking.run import Run

ENDED_SHORT = ("FAILED", "KILLED")


def begin_or_resume(database: Database, name: str, mark: str, parent: str, tags: Mapping[str, str]) -> Run:
    """The run for stage `name` (`linear_probe/cifar10`) and fingerprint `mark`, below the pipeline's row `parent` ('' for none).

    A run that goes on keeps its points; it moves below the new parent, `parent.attempt_<n>` says where it was before, and the old
    parent's tag `continued_by` names the new one.
    """
    key = f"{name.replace('/', '.')}.{mark}"
    try:
        with taking_turns(database.journals):
            return _resumed(database, key, name, mark, parent, tags) or Run.begin(database, key, name, parent, tags)
    except OSError:  # the folder of journals cannot be written, which `begin` tells
        return Run.begin(database, key, name, parent, tags)


def _resumed(database: Database, key: str, name: str, mark: str, parent: str, tags: Mapping[str, str]) -> Run | None:
    """The newest run of this work, if it can go on."""
    known: dict[str, int]
    written = [
        journal
        for journal in journals(database.journals, glob.escape(key), finished=True)
        if journal.state().uri == database.uri
    ]
    if written:
        newest, known = written[-1], {}
        if not resumable(newest.state()) or _deleted(database, newest.state().run_id):
            return None
    else:  # perhaps on another machine
        found = _elsewhere(database, name, mark)
        if found is None:
            return None
        try:
            known = _last_steps(database, found)
        except AwayError as error:
            kept = f"MLflow did not give the curves of {found.info.run_id}: {error}"
            print(f"warning: {name} gets a new row, for {kept}", file=sys.stderr)
            return None
        newest = _taken_over(database, key, found)
    before = newest.state().parent
    run = Run.resume(database, newest, known)
    moved = {}
    if parent and parent != before:
        moved = {"mlflow.parentRunId": parent}
        moved |= {f"parent.attempt_{newest.state().attempt - 1}": before} if before else {}
        run.tags({"continued_by": parent}, run=before) if before else None
        run.journal.note(parent=parent)
    run.tags({**tags, **moved})
    return run


def _deleted(database: Database, run_id: str) -> bool:
    """Whether a person has deleted the row, into MLflow's bin or for good. False while MLflow has it not yet, or is away."""
    if not run_id:
        return False
    try:
        with away():
            client = database.client()
            return not client.search_runs([database.experiment(client)], f"attributes.run_id = '{run_id}'")
    except AwayError:  # the first operation of the run tells
        return False


def resumable(state: State) -> bool:
    """Whether a journal's run has not finished and nobody writes it."""
    return state.status in ENDED_SHORT or (state.status == "RUNNING" and state.process.gone())


def recorded_process(tags: Mapping[str, str]) -> Process:
    """The process that a run of MLflow's says it is written by."""
    return Process(tags.get("process.host", ""), int(tags.get("process.pid", 0)), float(tags.get("process.start", 0)))


def _elsewhere(database: Database, name: str, mark: str) -> Any:
    """MLflow's newest run of this work if it can go on, else None. Without MLflow none is known."""
    try:
        with away():
            client = database.client()
            wanted = f"tags.stage = '{name}' AND tags.fingerprint = '{mark}'"
            newest = ["attributes.start_time DESC"]
            found = client.search_runs([database.experiment(client)], wanted, max_results=1, order_by=newest)
    except AwayError:  # the first operation of the new run tells
        return None
    if not found:
        return None
    status, process = found[0].info.status, recorded_process(found[0].data.tags)
    cut_off = status == "RUNNING" and process.host == socket.gethostname() and process.gone()
    return found[0] if status in ENDED_SHORT or cut_off else None


def _taken_over(database: Database, key: str, found: Any) -> Journal:
    """A journal for a run that has none here."""
    tags = found.data.tags
    attempt, parent = int(tags.get("attempt", 1)), tags.get("mlflow.parentRunId", "")
    state = State(database.uri, found.info.run_id, status="FAILED", parent=parent, attempt=attempt)
    return Journal.new(database.journals, key, state)


def _last_steps(database: Database, found: Any) -> dict[str, int]:
    """The last step of each metric of a run. Raises AwayError."""
    with away():
        client = database.client()
        names = [name for name in found.data.metrics if not name.startswith("system/")]
        return {name: client.get_metric_history(found.info.run_id, name)[-1].step for name in names}
