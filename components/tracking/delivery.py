"""From a journal into MLflow: each operation in its order, again after an outage, and with the same end however often."""

import logging
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from components.tracking.database import Database
from components.tracking.journal import Journal, Operation, journals

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.exceptions import MlflowException

BATCH = 1000
"""MLflow's limit for the metrics of one request."""
PENDING = "pending-"
"""Before a journal's id: the handle of a run that MLflow has not yet got."""
REFUSALS = {"INVALID_PARAMETER_VALUE", "RESOURCE_ALREADY_EXISTS", "INVALID_STATE"}
"""What MLflow would answer every time, of a row that is not in its bin; anything else may pass."""


class AwayError(Exception):
    """MLflow cannot be reached, or doesn't write now."""


def deliver(journal: Journal, database: Database) -> None:
    """Sends what `journal` holds and MLflow has not got, and notes how far it came. Raises AwayError."""
    with away(), journal.alone("send"):
        client = database.client()
        for operation, end in _merged(journal):
            taken = True
            if operation["op"] == "create":
                _created(journal, database)
            else:
                taken = _apply(client, database, journal, journal.state().run_id, operation)
            journal.note(offset=end)
            if taken and operation["op"] == "artifact":
                (journal.files / operation["file"]).unlink(missing_ok=True)


def resolved(database: Database, handle: str) -> str:
    """The id in MLflow of a run that had none when its handle was given, and gets one now if need be; any other id as it is.

    '' for a handle whose journal is not on this machine. Raises AwayError.
    """
    if not handle.startswith(PENDING):
        return handle
    for journal in journals(database.journals, finished=True):
        if journal.id == handle.removeprefix(PENDING):
            return _created(journal, database)
    return ""


def _created(journal: Journal, database: Database) -> str:
    """The id of the journal's run in MLflow, which is made, below its parent, unless it is there."""
    if run_id := journal.state().run_id:
        return run_id
    with away(), journal.alone("create"):
        if run_id := journal.state().run_id:  # by another process in this moment
            return run_id
        operation = next((operation for operation, _ in journal.operations()), None)
        if operation is None:
            raise AwayError(f"{journal.path} is empty, the disk was full")
        return journal.note(run_id=_create(database.client(), database, journal, operation)).run_id


@contextmanager
def away() -> Iterator[None]:
    """Turns whatever MLflow's client raises into AwayError, and keeps its own tracebacks of that out of the logs.

    The stores of artefacts raise what their libraries do, which have no class in common and may not be installed.
    """
    from mlflow.exceptions import MlflowException
    from sqlalchemy.exc import SQLAlchemyError

    noisy = [logging.getLogger(name) for name in ("mlflow.store.db.utils", "urllib3.connectionpool")]
    levels = [logger.level for logger in noisy]
    for logger in noisy:
        logger.setLevel(logging.CRITICAL)
    try:
        yield
    except AwayError:
        raise
    except Exception as error:
        said = str(error).strip().splitlines()
        known = isinstance(error, MlflowException | SQLAlchemyError | OSError)  # these say themselves what they are
        raise AwayError(
            (said[0] if known else f"{type(error).__name__}: {said[0]}") if said else repr(error)
        ) from error
    finally:
        for logger, level in zip(noisy, levels, strict=True):
            logger.setLevel(level)


def _merged(journal: Journal) -> Iterator[tuple[Operation, int]]:
    """The operations not yet sent; small ones of metrics that follow each other as one."""
    points, until = list[Any](), 0
    for operation, end in journal.operations(journal.state().offset):
        if operation["op"] == "metrics" and len(points) + len(operation["points"]) <= BATCH:
            points += operation["points"]
        else:
            if points:
                yield {"op": "metrics", "points": points}, until
            points = list(operation["points"]) if operation["op"] == "metrics" else []
            if operation["op"] != "metrics":
                yield operation, end
        until = end
    if points:
        yield {"op": "metrics", "points": points}, until


def _create(client: "MlflowClient", database: Database, journal: Journal, operation: Operation) -> str:
    """The run in MLflow; the one that was made by a process that died before it noted its id, if there is one."""
    experiment = database.experiment(client)
    made = client.search_runs([experiment], f"tags.journal = '{journal.id}'", max_results=1)
    if made:
        return str(made[0].info.run_id)
    parent = resolved(database, operation["parent"]) if operation["parent"] else ""
    tags = {key: resolved(database, value) for key, value in operation["tags"].items()}
    tags |= {"journal": journal.id, **({"mlflow.parentRunId": parent} if parent else {})}
    run = client.create_run(experiment, start_time=operation["time"], run_name=operation["name"], tags=tags)
    return str(run.info.run_id)


def _apply(client: "MlflowClient", database: Database, journal: Journal, run_id: str, operation: Operation) -> bool:
    """One operation; whether MLflow took it. What it will never take is told and left."""
    from mlflow.exceptions import MlflowException

    kind, own = operation["op"], run_id
    if kind == "adopt":
        operation = {"child": resolved(database, operation["child"])}
    elif kind == "tags":
        run_id = resolved(database, operation["run"] or run_id)
        operation = {"values": {key: resolved(database, value) for key, value in operation["values"].items()}}
    elif kind == "artifact":
        operation = {"path": str(journal.files / operation["file"]), "folder": operation["folder"]}
    try:
        KINDS[kind](client, run_id, operation)
    except MlflowException as error:
        if not _final(client, error, own, operation["child"] if kind == "adopt" else run_id):
            raise
        print(f"warning: MLflow refused {kind}: {error}; {journal.path} keeps it, it isn't sent again", file=sys.stderr)
        return False
    return True


def _final(client: "MlflowClient", error: "MlflowException", own: str, concerned: str) -> bool:
    """Whether MLflow would say the same every time of the row `concerned`.

    The journal's `own` row may come back from the bin, and a right to write be given again. Another's is not waited for: everything
    behind would wait for it.
    """
    if concerned != own:
        return error.error_code in REFUSALS | {"RESOURCE_DOES_NOT_EXIST"}
    return error.error_code in REFUSALS and client.get_run(own).info.lifecycle_stage == "active"


def _metrics(client: "MlflowClient", run_id: str, operation: Operation) -> None:
    from mlflow.entities import Metric

    points = [Metric(name, value, time, step) for name, value, time, step in operation["points"]]
    for start in range(0, len(points), BATCH):
        client.log_batch(run_id, metrics=points[start : start + BATCH])


def _params(client: "MlflowClient", run_id: str, operation: Operation) -> None:
    from mlflow.entities import Param

    entries = [Param(key, text) for key, text in operation["values"].items()]
    for start in range(0, len(entries), 100):
        client.log_batch(run_id, params=entries[start : start + 100])


def _tags(client: "MlflowClient", run_id: str, operation: Operation) -> None:
    from mlflow.entities import RunTag

    tags = [RunTag(key, value) for key, value in operation["values"].items() if value]
    for start in range(0, len(tags) if run_id else 0, 100):
        client.log_batch(run_id, tags=tags[start : start + 100])


def _artifact(client: "MlflowClient", run_id: str, operation: Operation) -> None:
    if Path(operation["path"]).exists():  # else it was sent, by a process that died before it said so
        client.log_artifact(run_id, operation["path"], operation["folder"])


def _inputs(client: "MlflowClient", run_id: str, operation: Operation) -> None:
    from mlflow.entities import Dataset, DatasetInput

    found = [DatasetInput(Dataset(**dataset), tags=[]) for dataset in operation["datasets"]]
    client.log_inputs(run_id, datasets=found)


def _adopt(client: "MlflowClient", run_id: str, operation: Operation) -> None:
    """Makes a run a child of this one unless it has a parent."""
    if operation["child"] and "mlflow.parentRunId" not in client.get_run(operation["child"]).data.tags:
        client.set_tag(operation["child"], "mlflow.parentRunId", run_id)


def _reopen(client: "MlflowClient", run_id: str, operation: Operation) -> None:
    client.update_run(run_id, status="RUNNING")


def _end(client: "MlflowClient", run_id: str, operation: Operation) -> None:
    client.set_terminated(run_id, operation["status"], operation["time"])


KINDS: Mapping[str, Callable[["MlflowClient", str, Operation], None]] = {
    "metrics": _metrics,
    "params": _params,
    "tags": _tags,
    "artifact": _artifact,
    "inputs": _inputs,
    "adopt": _adopt,
    "reopen": _reopen,
    "end": _end,
}
