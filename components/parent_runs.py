"""The rows of whole pipeline runs in MLflow: every parameter and headline metric, complete even if every stage was cached.

The runs of the stages hang below them: components/tracking/.
"""

import json
import os
import time
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from components.stage import current_names, flatten, read_yaml
from components.tracking.database import EXPERIMENT, PARENT, create_run, existing, git_tags, project_root, uri
from components.tracking.run import Run, numbers_and_tags, tolerant


def start_pipeline(checkout: Path, root: Path, name: str, tags: Mapping[str, str], known: str = "") -> str:
    """Creates the parent row of a pipeline run with every parameter; its id, or '' where MLflow refused.

    The database is the `checkout`'s, the params are those of `root`, where the run works. The row `known` is opened again
    instead: a retry is the same run. Of the `tags`, `trigger` is the door it came through, and every pipeline's row has it.
    """
    run = None
    with tolerant("the pipeline's row"):
        run = reopened(checkout, known) if known else create_run(checkout, name, "", tags)
    if run is None:
        return ""
    for path in sorted((root / "params").glob("*.yaml")):  # at once: a person may edit the files while the run goes on
        run.params({f"{path.stem}.{key}": value for key, value in flatten(read_yaml(path), ".").items()})
    return run.run_id


def record_pipeline() -> None:
    """Writes the parent row of a plain `dvc repro`. Nothing happens inside a flow, which writes its own."""
    if os.environ.get(PARENT):
        return
    root, name = project_root(), time.strftime("dvc-repro-%Y%m%d-%H%M%S")
    parent = start_pipeline(root, root, name, {"trigger": "dvc", **git_tags(root)})
    finish_pipeline(root, root, parent, "FINISHED")


def reopened(checkout: Path, run_id: str) -> Run:
    """A row that had ended, running again."""
    from mlflow import MlflowClient

    MlflowClient(uri(checkout)).update_run(run_id, status="RUNNING")
    return Run(uri(checkout), run_id)


def attach(checkout: Path, run_id: str, path: Path) -> None:
    """A file as an artefact of a pipeline's row."""
    if run_id:
        Run(uri(checkout), run_id).artifact(path)


def finish_pipeline(
    checkout: Path, root: Path, run_id: str, status: str, finished: Collection[str] | None = None
) -> None:
    """Writes the metrics of the `finished` stages (None: all) to the parent row and closes it.

    The values come from the files, so the row is complete when every stage was cached. `finished` holds DVC's names, such as
    `linear_probe@cifar10`.
    """
    if not run_id:
        return
    run = Run(uri(checkout), run_id)
    try:
        run.metrics(headline_metrics(root, finished))
        run.tags(headline_tags(root, finished))
        current = current_names(root / "params")
        for path in sorted((root / "runs").rglob("*.json")):
            about = json.loads(path.read_text(encoding="utf-8"))
            if about["stage"] in current and _wanted(about["stage"], finished):
                run.tags({f"linked.{about['stage'].replace('/', '.')}": about["mlflow_run_id"]})
                run.adopt(about["mlflow_run_id"])
        for path in (root / "report.md", root / "report.html", root / "dvc.lock"):
            if path.exists() and finished is not None:  # a plain `dvc repro` has not written its dvc.lock yet
                run.artifact(path)
    finally:
        run.end(status)


def close_killed(checkout: Path, run_id: str, stage: str = "") -> None:
    """Ends as KILLED what was killed before it could say so itself: the run of one `stage`, by DVC's name, below the row `run_id`.

    Without a stage, the row and all that is below it. What has ended already stays as it is.
    """
    from mlflow import MlflowClient

    if not run_id or uri(checkout) == f"sqlite:///{checkout / 'mlflow.db'}" and not (checkout / "mlflow.db").is_file():
        return  # a database that is gone has no rows to close, and must not be made anew
    with tolerant("the status of what was killed"):
        client = MlflowClient(uri(checkout))
        row = client.get_run(run_id)
        below = f"attributes.status = 'RUNNING' AND tags.`mlflow.parentRunId` = '{run_id}'"
        runs = client.search_runs([row.info.experiment_id], below)
        wanted = [run for run in runs if not stage or run.data.tags.get("stage") == stage.replace("@", "/", 1)]
        for run in [*wanted, *([row] if not stage and row.info.status == "RUNNING" else [])]:
            client.set_terminated(run.info.run_id, "KILLED")


class Row(NamedTuple):
    """One pipeline run in MLflow's table; `protocols` has the hash of each evaluation by its dotted name (`linear_probe.digits`)."""

    run_id: str
    experiment: str
    name: str
    metrics: dict[str, float]
    protocols: dict[str, str]

    def protocol(self, metric: str) -> tuple[str, str]:
        """The evaluation that `metric` is of and the hash of its protocol; ('', '') where the run recorded none."""
        dotted = metric.replace("/", ".")
        names = [name for name in self.protocols if dotted.startswith(f"{name}.")]
        name = max(names, key=len, default="")
        return name, self.protocols.get(name, "")


def beside_previous(checkout: Path, run_id: str) -> list[Row]:
    """The row of a pipeline run and, if there is one, that of the run that finished before it; [] where MLflow refused."""
    from mlflow import MlflowClient

    rows = list[Any]()
    with tolerant("a question for the previous run"):
        if run_id:
            client = MlflowClient(uri(checkout))
            rows = [client.get_run(run_id)]
            info = rows[0].info
            before = f"attributes.status = 'FINISHED' AND attributes.start_time < {info.start_time} AND tags.trigger LIKE '%'"
            newest = ["attributes.start_time DESC"]  # only pipeline runs have a trigger
            rows += client.search_runs([info.experiment_id], before, max_results=1, order_by=newest)
    return [_row(row) for row in rows]


def pipeline_rows(root: Path, names: Sequence[str]) -> list[Row]:
    """The rows of pipeline runs, each named by its id in MLflow or by its name, which stands for the newest run of that name.

    Raises ValueError for a name that no pipeline run has, and for a database that is not there, which MLflow would make.
    """
    from mlflow import MlflowClient

    where = existing(root)
    client = MlflowClient(where)
    experiment = client.get_experiment_by_name(EXPERIMENT)
    rows = []
    for name in names:
        quoted = name.replace("'", "")  # no name of a run has one, and MLflow's language knows no escape
        found = list[Any]()
        for key in ("attributes.run_id", "attributes.run_name"):
            if experiment and not found:
                wanted = f"{key} = '{quoted}' AND tags.trigger LIKE '%'"
                newest = ["attributes.start_time DESC"]
                found = client.search_runs([experiment.experiment_id], wanted, max_results=1, order_by=newest)
        if not found:
            raise ValueError(
                f"no pipeline run of {where} has the id or name {name!r}; `make mlflow` shows them, those of experiment "
                f"{EXPERIMENT!r} without a parent"
            )
        rows.append(_row(found[0]))
    return rows


def _row(run: Any) -> Row:
    tags = run.data.tags.items()
    protocols = {key.removeprefix("protocol."): value for key, value in tags if key.startswith("protocol.")}
    return Row(run.info.run_id, run.info.experiment_id, str(run.info.run_name), run.data.metrics, protocols)


def headline_metrics(root: Path, finished: Collection[str] | None = None) -> dict[str, float]:
    """`<stage>/<member>/<metric>` from the files under metrics/, whose paths are those names."""
    return {name: float(value) for name, value in numbers_and_tags(_headlines(root, finished))[0].items()}


def headline_tags(root: Path, finished: Collection[str] | None = None) -> dict[str, str]:
    """`protocol.<stage>.<member>` of every evaluation, from the same files: what says which scores compare."""
    return numbers_and_tags(_headlines(root, finished))[1]


def _headlines(root: Path, finished: Collection[str] | None) -> dict[str, Any]:
    values: dict[str, Any] = {}
    current = current_names(root / "params")
    for path in sorted((root / "metrics").rglob("*.json")):
        name = path.relative_to(root / "metrics").with_suffix("").as_posix()
        if name in current and _wanted(name, finished):
            nested = json.loads(path.read_text(encoding="utf-8"))
            values |= {f"{name}/{key}": value for key, value in flatten(nested, "/").items()}
    return values


def _wanted(name: str, finished: Collection[str] | None) -> bool:
    return finished is None or name.replace("/", "@", 1) in finished
