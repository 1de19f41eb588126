"""A project folder with a tracking database of its own, and a stage to run in it."""

import shutil
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
from mlflow import MlflowClient

from components import tracking
from components.report.contract import ReportInputs, ReportOutputs, ReportParams
from components.stage import contract

PARAMS = ReportParams(decimals=2, picture_pixels=1200)


@pytest.fixture
def fresh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project without a database."""
    monkeypatch.setenv("DVC_ROOT", str(tmp_path))
    for name in ("MLFLOW_TRACKING_URI", tracking.PARENT, "PIPELINE_TAGS", "PIPELINE_JOURNALS", "DVC_STAGE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("MLFLOW_ENABLE_SYSTEM_METRICS_LOGGING", "false")
    for folder in ("metrics", "params"):
        (tmp_path / folder).mkdir()
    return tmp_path


@pytest.fixture
def project(fresh: Path, database: Path) -> Path:
    """A project whose database has seen no run."""
    shutil.copy(database, fresh / "mlflow.db")
    return fresh


@pytest.fixture
def stage_run() -> Callable[..., AbstractContextManager[tracking.StageRecord]]:
    """The stage `report` around a block, in a project's folder; other `decimals` are other work."""

    def begin(root: Path, decimals: int = 2) -> AbstractContextManager[tracking.StageRecord]:
        folders = {"metrics": "metrics", "values": "params", "protocols": "metrics", "plots": "metrics"}
        inputs = ReportInputs(**{name: root / folder for name, folder in folders.items()})
        files = {"report": "report.md", "page": "report.html", "table": "report.json", "run": "run.json"}
        outputs = ReportOutputs(**{name: root / file for name, file in files.items()})
        params = PARAMS.model_copy(update={"decimals": decimals})
        return tracking.stage_run("report", contract("report"), params, inputs, outputs)

    return begin


@pytest.fixture
def runs() -> Callable[[Path], list[Any]]:
    """All runs in a folder's database, oldest first."""

    def found(root: Path) -> list[Any]:
        client = MlflowClient(f"sqlite:///{root / 'mlflow.db'}")
        experiment = client.get_experiment_by_name(tracking.EXPERIMENT)
        return client.search_runs([experiment.experiment_id], order_by=["attributes.start_time"])

    return found


@pytest.fixture
def history() -> Callable[[Path, str, str], list[tuple[int, float]]]:
    """Step and value of every point of a run's metric, as MLflow has them."""

    def found(root: Path, run_id: str, name: str) -> list[tuple[int, float]]:
        client = MlflowClient(f"sqlite:///{root / 'mlflow.db'}")
        return [(point.step, point.value) for point in client.get_metric_history(run_id, name)]

    return found
