"""A stage that was cut off goes on in the run it had: each point once, under the pipeline that continues it."""

import os
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
from mlflow import MlflowClient
from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore

from components import parent_runs, tracking
from components.stage import contract

Runs = Callable[[Path], list[Any]]
StageRun = Callable[..., AbstractContextManager[tracking.StageRecord]]
History = Callable[[Path, str, str], list[tuple[int, float]]]

KILLED = """
import sys
from pathlib import Path
from components import tracking
from components.report.contract import ReportInputs, ReportOutputs, ReportParams
from components.stage import contract
root = Path(sys.argv[1])
inputs = ReportInputs(metrics=root / "metrics", values=root / "params", protocols=root / "metrics", plots=root / "metrics")
outputs = ReportOutputs(report=root / "r.md", page=root / "p", table=root / "t", run=root / "run.json")
with tracking.stage_run("report", contract("report"), ReportParams(decimals=2, picture_pixels=1200), inputs, outputs):
    for step in (1, 2, 3):
        tracking.log_metrics({"report/curve": float(step)}, step)
    print("ready", flush=True)
    sys.stdin.read()
"""


def killed(root: Path) -> int:
    """The process number of a stage that was killed after three points, as far as its code is that of this process."""
    process = subprocess.Popen(
        [sys.executable, "-c", KILLED, str(root)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout and process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=60)
    return process.pid


@pytest.fixture
def same_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fingerprints without the code, of which a test process has loaded more than a stage's."""
    monkeypatch.setattr("components.tracking.stage_runs.fingerprint", lambda *work: "0123456789abcdef")


def test_what_sigkill_left_running_is_closed_and_others_are_not(project: Path, stage_run: StageRun, runs: Runs) -> None:
    pid = killed(project)
    (row,) = runs(project)
    assert (row.info.status, row.data.tags["process.pid"]) == ("RUNNING", str(pid))
    client = MlflowClient(f"sqlite:///{project / 'mlflow.db'}")
    elsewhere = client.create_run(row.info.experiment_id, tags={"process.host": "another", "process.pid": "1"})
    with stage_run(project, decimals=1):
        assert parent_runs.close_dead(project) == [row.info.run_id]
        states = {run.info.run_id: run.info.status for run in runs(project)}
        assert states.pop(row.info.run_id) == "KILLED" and states.pop(elsewhere.info.run_id) == "RUNNING"
        assert list(states.values()) == ["RUNNING"]  # this process's own
    assert parent_runs.close_dead(project) == []


def test_rows_without_a_journal_are_closed_by_their_tags(project: Path, runs: Runs) -> None:
    killed(project)
    shutil.rmtree(project / "logs")
    assert parent_runs.close_dead(project) == [runs(project)[0].info.run_id]
    assert runs(project)[0].info.status == "KILLED"


def cut_off(
    root: Path, stage_run: StageRun, until: int, first: int = 1, ending: type[BaseException] | None = None
) -> None:
    try:
        with stage_run(root) as record:
            for step in range(first, until + 1):
                tracking.log_metrics({"report/curve": 10.0 * step, "report/other": 0.5}, step)
            if ending:
                raise ending
            record.finish(contract("report").metrics(compared=3, improved=1, published=0))
    except (RuntimeError, KeyboardInterrupt):
        pass


@pytest.mark.parametrize("journal", ["here", "elsewhere"])
def test_each_point_is_there_once_after_two_restarts(
    project: Path, stage_run: StageRun, runs: Runs, history: History, same_work: None, journal: str
) -> None:
    for until, ending in ((4, RuntimeError), (7, KeyboardInterrupt), (9, None)):
        cut_off(project, stage_run, until, first=1 if until == 4 else 3, ending=ending)
        if journal == "elsewhere" and ending:
            shutil.rmtree(project / "logs")
    (run,) = runs(project)
    assert (run.info.status, run.data.tags["attempt"]) == ("FINISHED", "3")
    for name, value in (("report/curve", 10.0), ("report/other", 0.0)):
        points = history(project, run.info.run_id, name)
        assert [step for step, _ in points] == list(range(1, 10))
        assert not value or [point for _, point in points] == [value * step for step in range(1, 10)]
    cut_off(project, stage_run, 2)  # the same work once more is another run
    assert [row.info.status for row in runs(project)] == ["FINISHED", "FINISHED"]


def test_the_run_moves_under_the_pipeline_that_continues_it(
    project: Path, stage_run: StageRun, runs: Runs, same_work: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = parent_runs.start_pipeline(project, project, "one", {"trigger": "prefect"})
    monkeypatch.setenv(tracking.PARENT, first)
    cut_off(project, stage_run, 2, ending=RuntimeError)
    parent_runs.finish_pipeline(project, project, first, "FAILED", [])
    second = parent_runs.start_pipeline(project, project, "two", {"trigger": "prefect"})
    monkeypatch.setenv(tracking.PARENT, second)
    cut_off(project, stage_run, 3)
    rows = {run.info.run_id: run for run in runs(project)}
    assert rows.pop(first).data.tags["continued_by"] == second
    del rows[second]
    (stage,) = rows.values()
    assert stage.data.tags["mlflow.parentRunId"] == second and stage.data.tags["parent.attempt_1"] == first


def test_two_that_do_the_same_work_at_once_have_a_run_each(
    project: Path, stage_run: StageRun, runs: Runs, same_work: None
) -> None:
    cut_off(project, stage_run, 2, ending=RuntimeError)
    with stage_run(project), stage_run(project):
        assert sorted(run.data.tags["attempt"] for run in runs(project)) == ["1", "2"]
    assert [run.info.status for run in runs(project)] == ["FINISHED", "FINISHED"]


def test_a_retried_flow_run_keeps_its_row_and_shows_what_it_came_to(
    project: Path, runs: Runs, history: History
) -> None:
    tags = {"trigger": "prefect", "prefect.flow_run_id": "77", "pipeline.owner": "prefect:77"}
    (project / "params/davis.yaml").write_text("seed: 0\n")
    (project / "params/clevr.yaml").write_text("seed: 0\n")
    ids = set()
    for status, scores in (
        ("FAILED", {"davis": 50.0}),
        ("FINISHED", {"davis": 50.0, "clevr": 20.0}),
        ("FINISHED", {"davis": 60.0}),
    ):
        row = parent_runs.start_pipeline(project, project, "run", tags, "")
        for stage, value in scores.items():
            (project / f"metrics/{stage}.json").write_text(f'{{"score": {value}}}')
        parent_runs.finish_pipeline(project, project, row, status, scores)
        ids.add(row)
    other = parent_runs.start_pipeline(project, project, "member", tags | {"pipeline.owner": "ablation:x/member"})
    assert len(ids) == 1 and other not in ids
    (row,) = (run for run in runs(project) if run.info.run_id in ids)
    assert (row.info.status, row.data.tags["attempt"]) == ("FINISHED", "3")
    assert row.data.metrics == {"davis/score": 60.0, "clevr/score": 20.0}
    assert history(project, row.info.run_id, "davis/score") == [(0, 50.0), (2, 60.0)]
    again = parent_runs.start_pipeline(project, project, "run", {"trigger": "prefect"}, row.info.run_id)
    assert again == row.info.run_id


def test_the_process_is_told(project: Path, stage_run: StageRun, runs: Runs) -> None:
    with stage_run(project):
        (run,) = runs(project)
    assert (run.data.tags["process.host"], run.data.tags["process.pid"]) == (socket.gethostname(), str(os.getpid()))


def test_a_row_whose_curves_cannot_be_had_is_left_and_the_stage_begins_another(
    project: Path, stage_run: StageRun, runs: Runs, same_work: None, capsys: pytest.CaptureFixture[str]
) -> None:
    cut_off(project, stage_run, 3, ending=RuntimeError)
    shutil.rmtree(project / "logs")
    with sqlite3.connect(project / "mlflow.db") as connection:
        connection.execute("DELETE FROM metrics")
    cut_off(project, stage_run, 4)
    before, after = runs(project)
    assert (before.info.status, after.info.status) == ("FAILED", "FINISHED")
    assert f"gets a new row, for MLflow did not give the curves of {before.info.run_id}: " in capsys.readouterr().err


@pytest.mark.parametrize("how", ["bin", "for good"])
def test_work_whose_row_was_deleted_gets_another(
    project: Path, stage_run: StageRun, runs: Runs, history: History, same_work: None, how: str
) -> None:
    cut_off(project, stage_run, 3, ending=RuntimeError)
    (before,) = runs(project)
    MlflowClient(f"sqlite:///{project / 'mlflow.db'}").delete_run(before.info.run_id)
    if how == "for good":
        SqlAlchemyStore(f"sqlite:///{project / 'mlflow.db'}", str(project))._hard_delete_run(before.info.run_id)
    cut_off(project, stage_run, 4, first=3)
    (after,) = runs(project)
    assert (after.info.status, after.data.tags["attempt"]) == ("FINISHED", "1")
    assert [step for step, _ in history(project, after.info.run_id, "report/curve")] == [3, 4]
