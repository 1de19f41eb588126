"""A project folder with a tracking database of its own."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from mlflow import MlflowClient

from components import tracking


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DVC_ROOT", str(tmp_path))
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.delenv(tracking.PARENT, raising=False)
    for folder in ("metrics", "params"):
        (tmp_path / folder).mkdir()
    return tmp_path


@pytest.fixture
def runs() -> Callable[[Path], list[Any]]:
    """All runs in a folder's database, oldest first."""

    def found(root: Path) -> list[Any]:
        client = MlflowClient(f"sqlite:///{root / 'mlflow.db'}")
        experiment = client.get_experiment_by_name(tracking.EXPERIMENT)
        return client.search_runs([experiment.experiment_id], order_by=["attributes.start_time"])

    return found
