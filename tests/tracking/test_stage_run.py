"""MLflow gets the truth, survives a crowd at its first use, and never stops a stage."""

import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
from matplotlib.figure import Figure
from mlflow import MlflowClient
from PIL import Image

from components import parent_runs, tracking
from components.stage import contract
from components.tracking import sync

Runs = Callable[[Path], list[Any]]
StageRun = Callable[..., AbstractContextManager[tracking.StageRecord]]


def test_the_status_is_how_the_stage_ended_and_a_parent_is_kept(
    project: Path, stage_run: StageRun, runs: Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    parent = parent_runs.start_pipeline(project, project, "run", {"trigger": "prefect", "prefect.flow_run": "x"})
    monkeypatch.setenv(tracking.PARENT, parent)
    for decimals, ending in enumerate((None, RuntimeError, KeyboardInterrupt)):
        try:
            with stage_run(project, decimals):
                tracking.log_metrics({"report/curve": 1.0}, step=1)
                if ending:
                    raise ending
        except (RuntimeError, KeyboardInterrupt):
            pass
    rows = [row for row in runs(project) if row.info.run_id != parent]
    assert [row.info.status for row in rows] == ["FINISHED", "FAILED", "KILLED"]
    assert {row.data.tags["mlflow.parentRunId"] for row in rows} == {parent}
    assert all(
        row.data.params == {"report.decimals": str(i), "report.picture_pixels": "1200"} for i, row in enumerate(rows)
    )
    tracking.log_metrics({"report/curve": 2.0}, step=2)  # outside a run nothing happens


def test_values_that_are_no_numbers_are_left_out(project: Path, runs: Runs) -> None:
    run = tracking.Run.begin(tracking.database(project), "pipeline", "run", "", {})
    run.metrics({"good": 1.5, "bad": float("nan"), "worse": float("inf")})
    assert runs(project)[0].data.metrics == {"good": 1.5}


def test_a_broken_server_costs_a_warning_not_the_stage(
    project: Path, stage_run: StageRun, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (project / "mlflow.db").write_bytes(b"this is no database" * 100)
    with stage_run(project) as record:
        tracking.log_metrics({"report/curve": 1.0}, step=1)
        record.finish(contract("report").metrics(compared=0, improved=0, published=0))
    assert "is away: (sqlite3.DatabaseError) file is not a database; the work goes on" in capsys.readouterr().err
    assert (project / "run.json").exists()


def drawing(height: float) -> Figure:
    figure = Figure(figsize=(1, height), dpi=10)
    figure.add_subplot().plot([0, 1])
    return figure


def test_a_drawing_is_attached_and_a_later_one_takes_its_place(
    project: Path, stage_run: StageRun, runs: Runs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
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


def test_a_drawing_outside_a_run_is_not_even_drawn(fresh: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "TemporaryDirectory", None)
    tracking.log_plot("curves.png", drawing(1))
    assert not (fresh / "mlflow.db").exists()


def test_what_a_full_disk_kept_from_mlflow_is_sent_later(
    project: Path, stage_run: StageRun, runs: Runs, capsys: pytest.CaptureFixture[str]
) -> None:
    with stage_run(project):
        (project / "mlartifacts").write_text("a file where the folder should be")
        tracking.log_plot("curves.png", drawing(1))
        tracking.log_metrics({"report/curve": 1.0}, step=1)
    warnings = [line for line in capsys.readouterr().err.splitlines() if line.startswith("warning: ")]
    assert "is away: [Errno 20] Not a directory" in warnings[0] and "`make sync` sends the rest" in warnings[1]
    assert len(warnings) == 2 and runs(project)[0].info.status == "RUNNING"

    (project / "mlartifacts").unlink()
    assert sync.main(["--root", str(project)]) == 0
    (run,) = runs(project)
    assert (run.info.status, run.data.metrics) == ("FINISHED", {"report/curve": 1.0})
    client = MlflowClient(f"sqlite:///{project / 'mlflow.db'}")
    assert [file.path for file in client.list_artifacts(run.info.run_id)] == ["curves.png"]
    assert sync.main(["--root", str(project)]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "nothing was waiting"


def test_loading_tracking_loads_no_matplotlib() -> None:
    code = "import sys; from components import tracking; print('matplotlib' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "False\n"
