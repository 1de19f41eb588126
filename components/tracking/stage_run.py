"""The run of the stage that this process executes, and what the stage says to it."""

import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from components.stage import Contract, Inputs, Metrics, Outputs, Params, fingerprint, flatten, write_json
from components.tracking.database import PARENT, create_run, git_tags, project_root, uri
from components.tracking.run import Run, numbers_and_tags, tolerant

if TYPE_CHECKING:  # flows load this file and should start without matplotlib
    from matplotlib.figure import Figure

_open: Run | None = None


def log_metrics(values: Mapping[str, float], step: int) -> None:
    """Adds points to the open stage's MLflow run; nothing happens outside one."""
    if _open is not None:
        _open.metrics(values, step)


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
        with tolerant(f"artefact {name}"), tempfile.TemporaryDirectory() as folder:
            figure.savefig(Path(folder) / name, format="png")
            _open.artifact(Path(folder) / name)


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
                self._run.metrics({key: value for key, value in numbers.items() if key not in self._run.curves})
                self._run.tags(texts)
        write_json(files["run"], self._about)


@contextmanager
def stage_run(
    stage: str, contract: Contract, params: Params, inputs: Inputs, outputs: Outputs
) -> Iterator[StageRecord]:
    """An MLflow child run around one stage, closed as FINISHED, FAILED or KILLED as the stage ends."""
    global _open
    values = params.model_dump()
    member = next(iter(values[contract.members])) if contract.members else ""
    name = f"{stage}/{member}" if member else stage
    root, mark = project_root(), fingerprint(stage, params, inputs)
    run = None
    with tolerant("the stage's run"):
        run = create_run(root, name, os.environ.get(PARENT, ""), {"stage": name, "fingerprint": mark, **git_tags(root)})
        run.params({f"{stage}.{key}": value for key, value in flatten(values, ".").items()})
    about = {"stage": name, "fingerprint": mark, "mlflow_run_id": run.run_id if run else "", "tracking_uri": uri(root)}
    _open, status = run, "FAILED"
    try:
        yield StageRecord(name, run, outputs, about)
        status = "FINISHED"
    except (KeyboardInterrupt, SystemExit):
        status = "KILLED"
        raise
    finally:
        _open = None
        if run:
            run.end(status)
