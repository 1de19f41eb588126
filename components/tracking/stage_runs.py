"""The run of the stage that this process executes, and what the stage says to it."""

import os
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

from components.stage import Contract, Inputs, Metrics, Outputs, Params, fingerprint, flatten, write_json
from components.tracking.database import PARENT, Database, database, project_root
from components.tracking.origin import datasets, flow_tags, git_tags, input_tags
from components.tracking.resumption import begin_or_resume
from components.tracking.run import Point, Run, numbers_and_tags
from components.tracking.system import system_metrics

if TYPE_CHECKING:  # flows load this file and should start without matplotlib
    from matplotlib.figure import Figure

_open: Run | None = None


def log_metrics(values: Mapping[str, float], step: int) -> None:
    """Adds points to the open stage's MLflow run; nothing happens outside one."""
    if _open is not None:
        _open.metrics(values, step)


def log_points(points: Iterable[Point]) -> None:
    """Adds many points, each with its own time and step, to the open stage's MLflow run; nothing happens outside one."""
    if _open is not None:
        _open.points(points)


def log_tags(values: Mapping[str, str]) -> None:
    """Sets tags on the open stage's MLflow run; nothing happens outside one."""
    if _open is not None:
        _open.tags(values)


def log_figure(path: Path) -> None:
    """Attaches a figure or table to the open stage's MLflow run; nothing happens outside one."""
    if _open is not None:
        _open.artifact(path)


def log_plot(name: str, figure: "Figure") -> None:
    """Attaches a drawing as the PNG `name` to the open stage's MLflow run; nothing happens outside one.

    An earlier one of that name is replaced, so that a growing curve stays one picture.
    """
    if _open is not None:
        try:
            with tempfile.TemporaryDirectory() as folder:
                figure.savefig(Path(folder) / name, format="png")
                _open.artifact(Path(folder) / name)
        except OSError as error:
            print(f"warning: MLflow did not take artefact {name}: {error}", file=sys.stderr)


class StageRecord:
    """What `stage_run` gives: takes the metrics when the stage is done and writes its `metrics` and `run` files."""

    def __init__(self, name: str, run: Run | None, outputs: Outputs, about: dict[str, str]) -> None:
        self._name, self._run, self._outputs, self._about = name, run, outputs, about

    def finish(self, metrics: Metrics) -> None:
        """Writes the files that DVC versions and the same numbers to MLflow."""
        files = dict(self._outputs)
        if "metrics" in files:
            values = metrics.model_dump(exclude_none=True)  # None is what was not measured
            write_json(files["metrics"], values)
            if self._run:
                named = {f"{self._name}/{key}": value for key, value in flatten(values, "/").items()}
                numbers, texts = numbers_and_tags(named)
                # A curve ends in its final value already; a second point of the same name would bend it.
                self._run.scalars({key: value for key, value in numbers.items() if not self._run.curve(key)})
                self._run.tags(texts)
        write_json(files["run"], self._about | ({"mlflow_run_id": self._run.run_id} if self._run else {}))


@contextmanager
def stage_run(
    stage: str, contract: Contract, params: Params, inputs: Inputs, outputs: Outputs
) -> Iterator[StageRecord]:
    """An MLflow child run around one stage, closed as FINISHED, FAILED or KILLED as the stage ends.

    A stage that was cut off goes on in the run it had. Raises ValueError for tags of the flow that are no JSON.
    """
    global _open
    values = params.model_dump()
    member = next(iter(values[contract.members])) if contract.members else ""
    name = f"{stage}/{member}" if member else stage
    mark, store = fingerprint(stage, params, inputs), database(project_root())
    run = _begin(store, name, mark, inputs, {f"{stage}.{key}": value for key, value in flatten(values, ".").items()})
    about = {"stage": name, "fingerprint": mark, "mlflow_run_id": "", "tracking_uri": store.uri}
    _open, status = run, "FAILED"
    try:
        with system_metrics(run) if run else nullcontext():
            yield StageRecord(name, run, outputs, about)
        status = "FINISHED"
    except (KeyboardInterrupt, SystemExit):
        status = "KILLED"
        raise
    finally:
        _open = None
        if run:
            run.end(status)


def _begin(store: Database, name: str, mark: str, inputs: Inputs, params: Mapping[str, object]) -> Run | None:
    """The stage's run with what is known at its start; None where no disk takes a journal."""
    root = project_root()
    tags = {"stage": name, "fingerprint": mark, **git_tags(root), **flow_tags(), **input_tags(root, inputs)}
    try:
        run = begin_or_resume(store, name, mark, os.environ.get(PARENT, ""), tags)
    except OSError as error:
        print(f"warning: nothing goes to MLflow, for nothing can be written down: {error}", file=sys.stderr)
        return None
    if run.attempt == 1:
        run.params(params)
    run.inputs(datasets(root, inputs))
    return run
