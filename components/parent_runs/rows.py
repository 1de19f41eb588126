"""Rows of pipeline runs, read again: by name or id, and the one that finished before."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from components.tracking.database import EXPERIMENT, database, existing
from components.tracking.delivery import AwayError, away, resolved


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
    rows, store = list[Any](), database(checkout)
    try:
        with away():
            client, run_id = store.client(), resolved(store, run_id)
            if not run_id:
                return []
            rows = [client.get_run(run_id)]
            info = rows[0].info
            before = f"attributes.status = 'FINISHED' AND attributes.start_time < {info.start_time} AND tags.trigger LIKE '%'"
            newest = ["attributes.start_time DESC"]  # only pipeline runs have a trigger
            rows += client.search_runs([info.experiment_id], before, max_results=1, order_by=newest)
    except AwayError as error:
        print(f"warning: MLflow did not say which run came before: {error}", file=sys.stderr)
    return [_row(row) for row in rows]


def pipeline_row(checkout: Path, run_id: str) -> Row:
    """The row with this id or handle. Raises ValueError where MLflow has none, or is away."""
    store = database(checkout)
    try:
        with away():
            if found := resolved(store, run_id):
                return _row(store.client().get_run(found))
    except AwayError as error:
        raise ValueError(f"MLflow did not give row {run_id!r}: {error}") from error
    raise ValueError(f"MLflow has no row {run_id!r}, and no journal on this machine holds it")


def pipeline_rows(root: Path, names: Sequence[str]) -> list[Row]:
    """The rows of pipeline runs, each named by its id in MLflow, its handle, or its name, which stands for the newest run of that name.

    Raises ValueError for a name that no pipeline run has, and for a database that is not there, which MLflow would make.
    """
    from mlflow import MlflowClient

    where = existing(root)
    client = MlflowClient(where)
    experiment = client.get_experiment_by_name(EXPERIMENT)
    rows = []
    for name in names:
        try:
            known = resolved(database(root), name)
        except AwayError as error:
            raise ValueError(f"MLflow has not got row {name!r} yet: {error}") from error
        quoted = (known or name).replace("'", "")  # no name of a run has one, and MLflow's language knows no escape
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
