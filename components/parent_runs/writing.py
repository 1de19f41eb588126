"""A pipeline's row begins, goes on in a retry, and ends with what its stages left."""

import json
import os
import sys
import time
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from components.parent_runs.dead import close_dead
from components.parent_runs.headlines import headline_metrics, headline_tags, wanted
from components.stage import current_names, flatten, read_yaml
from components.tracking.database import JOURNALS, PARENT, Database, database, project_root
from components.tracking.delivery import PENDING, AwayError, away
from components.tracking.journal import Journal, State, journals
from components.tracking.origin import TAGS, git_tags, outs
from components.tracking.run import Run

KEY = "pipeline"
"""Begins the names of these rows' journals."""
_here: dict[str, Run] = {}
"""The rows that this process writes, by id."""


def start_pipeline(checkout: Path, root: Path, name: str, tags: Mapping[str, str], known: str = "") -> str:
    """Creates the parent row of a pipeline run with every parameter. Rows whose process is gone are closed first.

    The database is the `checkout`'s, the params are those of `root`, where the run works. The row `known`, or else the one with the
    same tags `prefect.flow_run_id` and `pipeline.owner`, is opened again instead: a retry is the same run. Of the `tags`, `trigger`
    is the door it came through, and every pipeline's row has it. Returns what `begin_row` does.
    """
    close_dead(checkout)
    values = _params(root)
    run_id = begin_row(checkout, name, {**tags, "pipeline": name}, known)
    if _here[run_id].attempt == 1:
        _here[run_id].params(values)
    return run_id


def begin_row(checkout: Path, name: str, tags: Mapping[str, str], known: str = "") -> str:
    """Opens a row above others: one from before if there is one, as `start_pipeline` says, else a new one.

    Returns MLflow's id, or while MLflow is away a handle that stands for it everywhere here.
    """
    store = database(checkout)
    run = _again(store, known, tags)
    if run:
        run.tags(tags)
    else:
        run = Run.begin(store, KEY, name, "", tags)
    _here[run.run_id] = run
    return run.run_id


def open_row(checkout: Path, run_id: str) -> Run:
    """The open row with this id or handle. Raises ValueError for one that `begin_row` did not open on this machine."""
    if run_id in _here:
        return _here[run_id]
    store = database(checkout)
    journal = _journal(store, run_id)
    if journal is None:
        raise ValueError(f"row {run_id!r} has no journal in {store.journals}; begin_row or start_pipeline begins one")
    return Run(store, journal)


def stage_environment(checkout: Path, run_id: str, tags: Mapping[str, str]) -> dict[str, str]:
    """What the stages of a pipeline's row need to know: the database, the row, and the tags that their own rows get."""
    store = database(checkout)
    return {
        "MLFLOW_TRACKING_URI": store.uri,
        JOURNALS: str(store.journals),
        PARENT: run_id,
        TAGS: json.dumps(dict(tags)),
    }


def record_pipeline() -> None:
    """Writes the parent row of a plain `dvc repro`. Nothing happens inside a flow, which writes its own."""
    if os.environ.get(PARENT):
        return
    root, name = project_root(), time.strftime("dvc-repro-%Y%m%d-%H%M%S")
    parent = start_pipeline(root, root, name, {"trigger": "dvc", **git_tags(root)})
    finish_pipeline(root, root, parent, "FINISHED")


def attach(checkout: Path, run_id: str, path: Path) -> None:
    """A file as an artefact of a pipeline's row."""
    open_row(checkout, run_id).artifact(path)


def finish_pipeline(
    checkout: Path, root: Path, run_id: str, status: str, finished: Collection[str] | None = None
) -> None:
    """Writes the metrics of the `finished` stages (None: all) to the parent row and closes it; its stages that died as well.

    The values come from the files, so the row is complete when every stage was cached. `finished` holds DVC's names, such as
    `linear_probe@cifar10`.
    """
    run = open_row(checkout, run_id)
    close_dead(checkout)
    try:
        run.scalars(headline_metrics(root, finished))
        run.tags(headline_tags(root, finished))
        _link(run, root, finished)
        for path in (root / "report.md", root / "report.html", root / "dvc.lock"):
            if path.exists() and finished is not None:  # a plain `dvc repro` has not written its dvc.lock yet
                run.artifact(path)
    finally:
        run.end(status)
        _here.pop(run_id, None)


def _link(run: Run, root: Path, finished: Collection[str] | None) -> None:
    """Ties the stages' rows to the pipeline's, and tags them with DVC's hashes of what they put out.

    A stage from DVC's cache may have its row in another database, as its file tells: that one is named and left.
    """
    current = current_names(root / "params")
    for path in sorted((root / "runs").rglob("*.json")):
        about = json.loads(path.read_text(encoding="utf-8"))
        stage, child = about["stage"], about["mlflow_run_id"]
        if child and stage in current and wanted(stage, finished):
            if about["tracking_uri"] != run.database.uri and not _here_too(run.database, child):
                where = f"MLflow at {about['tracking_uri']}, not at {run.database.uri}"
                print(f"warning: {stage} has its row {child} in {where}; it is not linked", file=sys.stderr)
                continue
            run.tags({f"linked.{stage.replace('/', '.')}": child})
            run.adopt(child)
            if finished is not None:
                run.tags({f"dvc.{out}": md5 for out, md5 in outs(root, {stage.replace("/", "@", 1)}).items()}, child)


def _here_too(store: Database, child: str) -> bool:
    """Whether a row that was written under another address is in this database as well: a server and its sqlite file share rows.

    True while MLflow is away, since nobody can tell.
    """
    pending = child.startswith(PENDING)
    condition = f"tags.journal = '{child.removeprefix(PENDING)}'" if pending else f"attributes.run_id = '{child}'"
    try:
        with away():
            client = store.client()
            return bool(client.search_runs([store.experiment(client)], condition, max_results=1))
    except AwayError:
        return True


def _params(root: Path) -> dict[str, Any]:
    """Every value, at once: a person may edit the files while the run goes on."""
    files = sorted((root / "params").glob("*.yaml"))
    return {f"{path.stem}.{key}": value for path in files for key, value in flatten(read_yaml(path), ".").items()}


def _again(store: Database, known: str, tags: Mapping[str, str]) -> Run | None:
    """The row of this very run from an earlier attempt, running again."""
    journal = _journal(store, known) if known else None
    if journal is None and not known.startswith(PENDING):
        journal = _in_mlflow(store, _condition(known, tags))
    return Run.resume(store, journal) if journal else None


def _condition(known: str, tags: Mapping[str, str]) -> str:
    """What MLflow is asked for: the row with id `known`, or that of the same flow run and owner; '' for neither."""
    if known:
        return f"attributes.run_id = '{known}'"
    same = [f"tags.`{key}` = '{tags.get(key, '')}'" for key in ("prefect.flow_run_id", "pipeline.owner")]
    return " AND ".join([*same, "tags.trigger LIKE '%'"]) if "prefect.flow_run_id" in tags else ""


def _in_mlflow(store: Database, condition: str) -> Journal | None:
    """A journal for a row that MLflow has, and for which this machine perhaps has none."""
    if not condition:
        return None
    try:
        with away():
            client = store.client()
            rows = client.search_runs([store.experiment(client)], condition, max_results=1)
    except AwayError:  # the first operation of the new row tells
        return None
    return _taken_over(store, rows[0]) if rows else None


def _taken_over(store: Database, row: Any) -> Journal:
    run_id, attempt = row.info.run_id, int(row.data.tags.get("attempt", 1))
    return _journal(store, run_id) or Journal.new(
        store.journals, KEY, State(store.uri, run_id, status=row.info.status, attempt=attempt)
    )


def _journal(store: Database, run_id: str) -> Journal | None:
    """The journal of the row with this id or handle."""
    for journal in journals(store.journals, KEY, finished=True):
        if run_id in (journal.state().run_id, PENDING + journal.id):
            return journal
    return None
