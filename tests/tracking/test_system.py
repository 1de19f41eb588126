"""How busy the machine was: on the stage's run, each attempt after the one before."""

import socket
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from components import tracking
from components.tracking import system

StageRun = Callable[..., AbstractContextManager[tracking.StageRecord]]
Runs = Callable[[Path], list[Any]]


@pytest.fixture
def often(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(system.SWITCH)
    monkeypatch.setattr(system, "FIRST_S", 0.05)
    monkeypatch.setattr("components.tracking.stage_runs.fingerprint", lambda *work: "0123456789abcdef")


def wait_for(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_points_go_on_after_a_restart(
    project: Path,
    often: None,
    stage_run: StageRun,
    runs: Runs,
    history: Callable[[Path, str, str], list[tuple[int, float]]],
) -> None:
    name = f"system/{socket.gethostname()}/cpu_utilization_percentage"

    def points() -> list[tuple[int, float]]:
        return history(project, runs(project)[0].info.run_id, name)

    ends = []
    for _ in range(2):
        with pytest.raises(RuntimeError), stage_run(project):
            seen = len(points())
            wait_for(lambda seen=seen: len(points()) > seen + 1)
            raise RuntimeError
        ends.append(len(points()))
    steps = [step for step, _ in points()]
    assert steps == list(range(len(steps))) and ends[0] < ends[1]
    assert not [
        metric for metric in runs(project)[0].data.metrics if not metric.startswith(f"system/{socket.gethostname()}/")
    ]


def test_a_monitor_that_fails_costs_a_warning(
    project: Path,
    often: None,
    stage_run: StageRun,
    runs: Runs,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("MLFLOW_SYSTEM_METRICS_SAMPLING_INTERVAL", "often")  # no number
    with stage_run(project):
        tracking.log_metrics({"report/curve": 1.0}, 1)
    assert "warning: no system metrics: " in capsys.readouterr().err
    assert runs(project)[0].info.status == "FINISHED"
