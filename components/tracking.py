"""MLflow. The only file that imports it.

One row per pipeline run (the parent) with every parameter and headline metric, one child per executed stage with its
curves and figures. Tracking never stops a stage: when MLflow refuses something, one warning says so and the work goes on;
every number is in the stage's own files as well.
"""

import fcntl
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from components.stage import (
    Contract,
    Inputs,
    Metrics,
    Outputs,
    Params,
    current_names,
    fingerprint,
    flatten,
    read_yaml,
    write_json,
)

if TYPE_CHECKING:  # flows load this file and should start without matplotlib
    from matplotlib.figure import Figure

os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")  # before mlflow is imported: it reads its environment then

EXPERIMENT = "stop"
PARENT = "PIPELINE_PARENT_RUN_ID"
"""Environment variable that names the parent run for the stages. MLFLOW_RUN_ID would override every stage's own run."""

_open: "Run | None" = None


class Run:
    """One MLflow run, written through the client so that no thread-local state is involved."""

    def __init__(self, uri: str, run_id: str) -> None:
        from mlflow import MlflowClient

        self.uri, self.run_id, self._client = uri, run_id, MlflowClient(uri)
        self.curves: set[str] = set()

    def metrics(self, values: Mapping[str, float], step: int = 0) -> None:
        """Adds one point to each metric. Values that are no finite numbers are left out."""
        from mlflow.entities import Metric

        if step:
            self.curves |= values.keys()
        now = int(time.time() * 1000)
        points = [Metric(name, float(value), now, step) for name, value in values.items() if math.isfinite(value)]
        with _tolerant("metrics"):
            for start in range(0, len(points), 1000):  # MLflow's limit for one batch
                self._client.log_batch(self.run_id, metrics=points[start : start + 1000])

    def params(self, values: Mapping[str, Any]) -> None:
        """Records parameters; a list or mapping as JSON."""
        from mlflow.entities import Param

        texts = {key: value if isinstance(value, str) else json.dumps(value) for key, value in values.items()}
        entries = [Param(key, text) for key, text in texts.items()]
        with _tolerant("parameters"):
            for start in range(0, len(entries), 100):
                self._client.log_batch(self.run_id, params=entries[start : start + 100])

    def tags(self, values: Mapping[str, str]) -> None:
        """Sets tags."""
        with _tolerant("tags"):
            for key, value in values.items():
                self._client.set_tag(self.run_id, key, value)

    def artifact(self, path: Path, folder: str | None = None) -> None:
        """Attaches a file."""
        with _tolerant(f"artefact {path.name}"):
            self._client.log_artifact(self.run_id, str(path), folder)

    def adopt(self, child: str) -> None:
        """Makes `child` a child of this run unless it has a parent or is gone."""
        with _tolerant(f"the link to run {child}"):
            if child and "mlflow.parentRunId" not in self._client.get_run(child).data.tags:
                self._client.set_tag(child, "mlflow.parentRunId", self.run_id)

    def end(self, status: str) -> None:
        """Closes the run as FINISHED, FAILED or KILLED."""
        with _tolerant("the final status"):
            self._client.set_terminated(self.run_id, status)


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
        with _tolerant(f"artefact {name}"), tempfile.TemporaryDirectory() as folder:
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
                numbers, texts = _parted(named)
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
    with _tolerant("the stage's run"):
        run = _create(root, name, os.environ.get(PARENT, ""), {"stage": name, "fingerprint": mark, **_git(root)})
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


def project_root() -> Path:
    """The folder that holds dvc.yaml: DVC tells its stages; elsewhere the working directory."""
    return Path(os.environ.get("DVC_ROOT") or os.getcwd()).resolve()


def uri(root: Path) -> str:
    """Where MLflow stores: MLFLOW_TRACKING_URI, else a sqlite file at an absolute path in the project."""
    return os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{root / 'mlflow.db'}"


def start_pipeline(root: Path, name: str, trigger: str, tags: Mapping[str, str]) -> str:
    """Creates the parent row of a pipeline run with every parameter; its id, or '' where MLflow refused.

    `trigger` is the door it came through.
    """
    run = None
    with _tolerant("the pipeline's row"):
        run = _create(root, name, "", {"trigger": trigger, **_git(root), **tags})
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
    finish_pipeline(root, start_pipeline(root, name, "dvc", {}), "FINISHED")


def finish_pipeline(root: Path, run_id: str, status: str, finished: Collection[str] | None = None) -> None:
    """Writes the metrics of the `finished` stages (None: all) to the parent row and closes it.

    The values come from the files, so the row is complete when every stage was cached. `finished` holds DVC's names, such as
    `linear_probe@cifar10`.
    """
    if not run_id:
        return
    run = Run(uri(root), run_id)
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


def beside_previous(root: Path, run_id: str) -> list[Row]:
    """The row of a pipeline run and, if there is one, that of the run that finished before it; [] where MLflow refused."""
    from mlflow import MlflowClient

    rows = list[Any]()
    with _tolerant("a question for the previous run"):
        if run_id:
            client = MlflowClient(uri(root))
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

    where = uri(root)
    if where.startswith("sqlite:///") and not Path(where.removeprefix("sqlite:///")).is_file():
        raise ValueError(f"there is no MLflow database {where}; name the folder of a project in which a pipeline ran")
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
    return {name: float(value) for name, value in _parted(_headlines(root, finished))[0].items()}


def headline_tags(root: Path, finished: Collection[str] | None = None) -> dict[str, str]:
    """`protocol.<stage>.<member>` of every evaluation, from the same files: what says which scores compare."""
    return _parted(_headlines(root, finished))[1]


def _parted(named: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
    """Numbers by MLflow's name, and texts as tags: `davis/protocol` is the tag `protocol.davis`."""
    texts = {name: value for name, value in named.items() if isinstance(value, str)}
    tags = {".".join((name.rpartition("/")[2], *name.split("/")[:-1])): value for name, value in texts.items()}
    return {name: value for name, value in named.items() if name not in texts}, tags


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


def _create(root: Path, name: str, parent: str, tags: Mapping[str, str]) -> Run:
    """A new run. The first use of a fresh sqlite file migrates it, which two processes must not do at once."""
    from mlflow import MlflowClient

    where = uri(root)
    with (root / "mlflow.db.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        client = MlflowClient(where)
        experiment = client.get_experiment_by_name(EXPERIMENT)
        artifacts = f"file://{root / 'mlartifacts'}" if where.startswith("sqlite") else None
        kind = {"mlflow.experimentKind": "custom_model_development"}  # its page opens on runs, not on traces
        number = experiment.experiment_id if experiment else client.create_experiment(EXPERIMENT, artifacts, kind)
    linked = {"mlflow.parentRunId": parent} if parent else {}
    source = {"mlflow.source.name": Path(sys.argv[0]).parent.name, "mlflow.user": os.environ.get("USER", "")}
    run = client.create_run(number, run_name=name, tags={**source, **tags, **linked})
    return Run(where, run.info.run_id)


def _git(root: Path) -> dict[str, str]:
    """The commit and whether the tree differs from it; empty without git."""

    def git(*arguments: str) -> str:
        return subprocess.run(
            ["git", "-C", str(root), *arguments], capture_output=True, text=True, check=True
        ).stdout.strip()

    try:
        return {
            "git.sha": git("rev-parse", "HEAD"),
            "git.dirty": str(bool(git("status", "--porcelain", "-uno"))).lower(),
        }
    except (OSError, subprocess.CalledProcessError):
        return {}


@contextmanager
def _tolerant(what: str) -> Iterator[None]:
    """Turns MLflow's failures into one warning line: a lost point must not cost a week of training."""
    from mlflow.exceptions import MlflowException
    from sqlalchemy.exc import SQLAlchemyError

    try:
        yield
    except (MlflowException, SQLAlchemyError, OSError) as error:
        print(
            f"warning: MLflow did not take {what}: {error}; the stage goes on, its files hold the numbers",
            file=sys.stderr,
        )
