"""Removes the rows of pipeline runs from MLflow and their journals, with what hangs below them and no other run links to."""

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from components.tracking.database import EXPERIMENT, database, existing
from components.tracking.delivery import PENDING
from components.tracking.journal import journals

MODEL_PARENT, LINK = "mlflow.parentRunId", "linked."


def promoted(checkout: Path) -> set[str]:
    """Names and MLflow ids of the runs of which MLflow's registry has a model; empty where there is no database."""
    client = _client(checkout)
    found = set[str]()
    for version in _pages(client.search_model_versions) if client else ():
        found |= {version.run_id or "", version.tags.get("run", "")}
    return found - {""}


def doomed(checkout: Path, parents: Collection[str]) -> dict[str, str]:
    """The rows that go with pipeline rows `parents`: id to ''; and stages' rows that a staying one links to: id to that one's id.

    A stage that DVC took from the cache is linked by every run that used it, whichever computed it.
    """
    client = _client(checkout)
    experiment = client.get_experiment_by_name(EXPERIMENT) if client else None
    if experiment is None or not parents:
        return {}
    rows = _pages(client.search_runs, [experiment.experiment_id])
    going = {row.info.run_id for row in rows} & _ids(checkout, parents)
    links = {
        child: row.info.run_id
        for row in reversed(rows)  # newest first there: the oldest that stays takes a stage over
        if row.info.run_id not in going
        for tag, child in row.data.tags.items()
        if tag.startswith(LINK)
    }
    children = {row.info.run_id for row in rows if row.data.tags.get(MODEL_PARENT) in going}
    kept = promoted(checkout)
    return {run: "" for run in going} | {run: links.get(run, "") for run in children if run not in kept}


def remove(checkout: Path, rows: Mapping[str, str]) -> str:
    """Does what `doomed` says, artefacts included; '' or what is left to do.

    MLflow's own command would also empty the bin of whatever a person has deleted there. A server lets nobody remove rows for good.
    """
    from mlflow.store.artifact.artifact_repository_registry import get_artifact_repository
    from mlflow.tracking._tracking_service.utils import _get_store

    client = _client(checkout)
    store: Any = _get_store(existing(checkout)) if rows else None
    final = hasattr(store, "_hard_delete_run")
    for run, heir in rows.items():
        if heir:
            client.set_tag(run, MODEL_PARENT, heir)
            continue
        place = client.get_run(run).info.artifact_uri
        client.delete_run(run)
        if final:
            get_artifact_repository(place).delete_artifacts()
            store._hard_delete_run(run)
    return "" if final or not rows else "the rows are in MLflow's bin; `mlflow gc` at its server removes them for good"


def forget_journals(checkout: Path, parents: Collection[str], rows: Mapping[str, str]) -> None:
    """Removes the journals of pipeline rows `parents` and of their stages, which `rows` tells as `doomed` does.

    Otherwise what MLflow had not got yet would be sent for rows that are gone.
    """
    known = set(parents) | _ids(checkout, parents)
    for journal in journals(database(checkout).journals, finished=True):
        state = journal.state()
        handles = {state.run_id, PENDING + journal.id} - {""}
        if handles & known or rows.get(state.run_id) == "" or (state.parent in known and state.run_id not in rows):
            journal.remove()


def _ids(checkout: Path, handles: Collection[str]) -> set[str]:
    """MLflow's ids of rows, some of which may be known by the handle they had while MLflow was away."""
    ids = {journal.id: journal.state().run_id for journal in journals(database(checkout).journals, finished=True)}
    found = {ids.get(handle.removeprefix(PENDING), "") if handle.startswith(PENDING) else handle for handle in handles}
    return found - {""}  # of a row that MLflow has not got; rows without a parent have the same


def _client(checkout: Path) -> Any:
    """MLflow's client, or None where a sqlite file would have to be made first."""
    from mlflow import MlflowClient

    store = database(checkout)
    return None if store.file and not store.file.is_file() else MlflowClient(store.uri, store.uri)


def _pages(search: Any, *arguments: Any) -> list[Any]:
    found, token = list[Any](), None
    while token != "":
        page = search(*arguments, page_token=token)
        found, token = [*found, *page], page.token or ""
    return found
