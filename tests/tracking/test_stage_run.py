"""MLflow gets the truth, survives a crowd at its first use, and never stops a stage."""

import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from matplotlib.figure import Figure
from mlflow import MlflowClient
from mlflow.exceptions import MlflowException
from PIL import Image

from components import parent_runs, tracking
from components.report.contract import ReportInputs, ReportOutputs, ReportParams
from components.stage import contract

Runs = Callable[[Path], list[Any]]
PARAMS = ReportParams(decimals=2, picture_pixels=1200)


def stage_run(root: Path) -> Any:
    folders = {"metrics": "metrics", "values": "params", "protocols": "metrics", "plots": "metrics"}
    inputs = ReportInputs(**{name: root / folder for name, folder in folders.items()})
    files = {"report": "report.md", "page": "report.html", "table": "report.json", "run": "run.json"}
    outputs = ReportOutputs(**{name: root / file for name, file in files.items()})
    return tracking.stage_run("report", contract("report"), PARAMS, inputs, outputs)


def test_the_status_is_how_the_stage_ended_and_a_parent_is_kept(
    project: Path, runs: Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    parent = parent_runs.start_pipeline(project, project, "run", {"trigger": "prefect", "prefect.flow_run": "x"})
    monkeypatch.setenv(tracking.PARENT, parent)
    for ending in (None, RuntimeError, KeyboardInterrupt):
        try:
            with stage_run(project):
                tracking.log_metrics({"report/curve": 1.0}, step=1)
                if ending:
                    raise ending
        except (RuntimeError, KeyboardInterrupt):
            pass
    rows = [row for row in runs(project) if row.info.run_id != parent]
    assert [row.info.status for row in rows] == ["FINISHED", "FAILED", "KILLED"]
    assert {row.data.tags["mlflow.parentRunId"] for row in rows} == {parent}
    assert all(row.data.params == {"report.decimals": "2", "report.picture_pixels": "1200"} for row in rows)
    tracking.log_metrics({"report/curve": 2.0}, step=2)  # outside a run nothing happens


def test_values_that_are_no_numbers_are_left_out(project: Path, runs: Runs) -> None:
    run = tracking.Run(tracking.uri(project), parent_runs.start_pipeline(project, project, "run", {"trigger": "dvc"}))
    run.metrics({"good": 1.5, "bad": float("nan"), "worse": float("inf")})
    assert runs(project)[0].data.metrics == {"good": 1.5}


def test_a_broken_server_costs_a_warning_not_the_stage(
    project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (project / "mlflow.db").write_bytes(b"this is no database" * 100)
    with stage_run(project) as record:
        tracking.log_metrics({"report/curve": 1.0}, step=1)
        record.finish(contract("report").metrics(compared=0, improved=0, published=0))
    assert "warning: MLflow did not take the stage's run" in capsys.readouterr().err
    assert (project / "run.json").exists()


def drawing(height: float) -> Figure:
    figure = Figure(figsize=(1, height), dpi=10)
    figure.add_subplot().plot([0, 1])
    return figure


def test_a_drawing_is_attached_and_a_later_one_takes_its_place(
    project: Path, runs: Runs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "scratch").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "scratch"))
    with stage_run(project):
        for height in (1, 3):
            tracking.log_plot("curves.png", drawing(height))
            assert not list((tmp_path / "scratch").iterdir())
    (run,) = runs(project)
    client = MlflowClient(f"sqlite:///{project / 'mlflow.db'}")
    assert [file.path for file in client.list_artifacts(run.info.run_id)] == ["curves.png"]
    with Image.open(client.download_artifacts(run.info.run_id, "curves.png", str(tmp_path / "scratch"))) as image:
        assert (image.format, image.size) == ("PNG", (10, 30))


def test_a_drawing_outside_a_run_is_not_even_drawn(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "TemporaryDirectory", None)
    tracking.log_plot("curves.png", drawing(1))
    assert not (project / "mlflow.db").exists()


def test_a_drawing_that_mlflow_refuses_costs_a_warning(
    project: Path, runs: Runs, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(*arguments: Any) -> None:
        raise MlflowException("the disk is full")

    with stage_run(project):
        monkeypatch.setattr(MlflowClient, "log_artifact", refuse)
        tracking.log_plot("curves.png", drawing(1))
        monkeypatch.setattr(tempfile, "tempdir", str(project / "gone"))
        tracking.log_plot("heads.png", drawing(1))
    warnings = [line for line in capsys.readouterr().err.splitlines() if line.startswith("warning: ")]
    assert len(warnings) == 2
    assert warnings[0].startswith(
        "warning: MLflow did not take artefact curves.png: the disk is full; the stage goes on"
    )
    assert warnings[1].startswith("warning: MLflow did not take artefact heads.png: ")
    assert runs(project)[0].info.status == "FINISHED"


def test_loading_tracking_loads_no_matplotlib() -> None:
    code = "import sys; from components import tracking; print('matplotlib' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "False\n"
