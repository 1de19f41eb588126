"""MLflow is away for a while: nothing stops, nothing is lost, nothing comes twice."""

import json
import os
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
from mlflow import MlflowClient

from components import parent_runs, tracking
from components.stage import contract
from components.tracking import run as one_run
from components.tracking import sync
from components.tracking.journal import Journal, State

StageRun = Callable[..., AbstractContextManager[tracking.StageRecord]]
Runs = Callable[[Path], list[Any]]


class Server:
    """A real MLflow server that a test stops and starts again."""

    def __init__(self, folder: Path) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self._port = free.getsockname()[1]
        self._folder, self.uri = folder, f"http://127.0.0.1:{self._port}"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        store = f"sqlite:///{self._folder / 'server.db'}"
        command = [
            sys.executable,
            "-m",
            "mlflow",
            "server",
            "--host",
            "127.0.0.1",
            "--port",
            str(self._port),
            "--workers",
            "1",
        ]
        command += ["--backend-store-uri", store, "--artifacts-destination", str(self._folder / "served")]
        environment = os.environ | {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false", "MLFLOW_TRACKING_URI": ""}
        with (self._folder / "server.log").open("ab") as log:
            self._process = subprocess.Popen(
                command, env=environment, stdout=log, stderr=log, start_new_session=True, cwd=self._folder
            )
        deadline = time.monotonic() + 120
        while True:
            try:
                urllib.request.urlopen(f"{self.uri}/health", timeout=5).close()
                return
            except OSError:
                assert time.monotonic() < deadline, (self._folder / "server.log").read_text()
                time.sleep(0.1)

    def stop(self) -> None:
        if self._process:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._process = None


@pytest.fixture
def server(fresh: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    made = Server(fresh)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", made.uri)
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    yield made
    made.stop()


def served(server: Server) -> list[Any]:
    client = MlflowClient(server.uri)
    number = client.get_experiment_by_name(tracking.EXPERIMENT).experiment_id
    return client.search_runs([number], order_by=["attributes.start_time"])


@pytest.mark.faults
def test_a_server_stopped_in_the_middle_gets_the_rest_when_it_is_back(
    fresh: Path, server: Server, stage_run: StageRun, capsys: pytest.CaptureFixture[str]
) -> None:
    server.start()
    with stage_run(fresh) as record:
        tracking.log_metrics({"report/curve": 1.0}, 1)
        (fresh / "table.csv").write_text("a,b")
        server.stop()
        started = time.monotonic()
        for step in range(2, 400):
            tracking.log_metrics({"report/curve": float(step)}, step)
        tracking.log_figure(fresh / "table.csv")
        (fresh / "table.csv").write_text("changed later")
        assert time.monotonic() - started < 20
        record.finish(contract("report").metrics(compared=1, improved=1, published=0))
    warnings = [line for line in capsys.readouterr().err.splitlines() if line.startswith("warning: ")]
    assert len(warnings) == 2 and "is away" in warnings[0] and "`make sync` sends the rest" in warnings[1]
    assert sync.main(["--root", str(fresh)]) == 1

    server.start()
    (run,) = served(server)
    assert (run.info.status, run.data.metrics) == ("RUNNING", {"report/curve": 1.0})
    for _ in range(2):
        assert sync.main(["--root", str(fresh)]) == 0
    (run,) = served(server)
    assert run.info.status == "FINISHED"
    client = MlflowClient(server.uri)
    points = client.get_metric_history(run.info.run_id, "report/curve")
    assert [(point.step, point.value) for point in points] == [(step, float(step)) for step in range(1, 400)]
    assert Path(client.download_artifacts(run.info.run_id, "table.csv", str(fresh))).read_text() == "a,b"


@pytest.mark.faults
def test_a_pipeline_that_never_saw_the_server_is_made_by_sync(
    fresh: Path, server: Server, stage_run: StageRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    (fresh / "params/davis.yaml").write_text("seed: 0\n")
    (fresh / "metrics/davis.json").write_text('{"jf_mean": 50.0}')
    parent = parent_runs.start_pipeline(fresh, fresh, "away", {"trigger": "prefect"})
    monkeypatch.setenv(tracking.PARENT, parent)
    with stage_run(fresh) as record:
        tracking.log_metrics({"report/curve": 1.0}, 1)
        record.finish(contract("report").metrics(compared=1, improved=1, published=0))
    (fresh / "runs").mkdir()
    shutil.copy(fresh / "run.json", fresh / "runs")
    (fresh / "params/report.yaml").write_text("decimals: 2\n")
    parent_runs.finish_pipeline(fresh, fresh, parent, "FINISHED", ["davis", "report"])
    assert parent_runs.beside_previous(fresh, parent) == []
    server.start()
    assert sync.main(["--root", str(fresh)]) == 0
    row, stage = sorted(served(server), key=lambda run: run.data.tags["attempt"] + str("stage" in run.data.tags))
    assert (row.info.run_name, row.info.status, row.data.metrics) == ("away", "FINISHED", {"davis/jf_mean": 50.0})
    assert row.data.params["davis.seed"] == "0" and row.data.tags["linked.report"] == stage.info.run_id
    assert stage.data.tags["mlflow.parentRunId"] == row.info.run_id and stage.info.status == "FINISHED"
    assert [found.run_id for found in parent_runs.beside_previous(fresh, parent)] == [row.info.run_id]
    assert [found.run_id for found in parent_runs.pipeline_rows(fresh, [parent])] == [row.info.run_id]
    parent_runs.open_row(fresh, parent).tags({"later": "yes"})
    assert parent_runs.open_row(fresh, parent).journal.path.parent == fresh / "logs/tracking/finished"


@pytest.mark.faults
def test_a_locked_database_is_waited_for_once_and_then_left_alone(
    project: Path, stage_run: StageRun, runs: Runs, capsys: pytest.CaptureFixture[str]
) -> None:
    with stage_run(project), sqlite3.connect(project / "mlflow.db") as holder:
        holder.execute("BEGIN EXCLUSIVE")
        started = time.monotonic()
        for step in range(1, 50):
            tracking.log_metrics({"report/curve": float(step)}, step)
        assert time.monotonic() - started < 60  # MLflow itself waits 20 s for a lock
        holder.rollback()
    assert capsys.readouterr().err.count("warning: ") == 1
    assert runs(project)[0].info.status == "FINISHED" and runs(project)[0].data.metrics == {"report/curve": 49.0}


READ_ONLY = """
import os, sys
from pathlib import Path
from components import tracking
warm = tracking.Run.begin(tracking.database(Path(sys.argv[1])), "warm", "warm", "", {})
warm.metrics({"x": 1.0}, 1)
os.seteuid(65534)
run = tracking.Run.begin(tracking.database(Path(sys.argv[2])), "key", "name", "", {"a": "b"})
run.metrics({"x": 1.0}, 1)
run.end("FINISHED")
"""


@pytest.fixture
def shared(database: Path) -> Iterator[Path]:
    """A project with a database that another user may read only; pytest's own folders are closed to others."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        root.chmod(0o755)
        shutil.copy(database, root / "mlflow.db")
        (root / "mlflow.db.lock").touch()
        (root / "mlflow.db.lock").chmod(0o666)
        (root / "logs/tracking").mkdir(parents=True)
        (root / "logs/tracking").chmod(0o777)
        yield root


@pytest.mark.faults
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_a_database_that_may_only_be_read(project: Path, shared: Path, runs: Runs) -> None:
    ended = subprocess.run([sys.executable, "-c", READ_ONLY, str(project), str(shared)], capture_output=True, text=True)
    assert ended.returncode == 0 and "attempt to write a readonly database" in ended.stderr, ended.stderr
    assert ended.stderr.count("warning: ") == 2
    assert sync.main(["--root", str(shared)]) == 0
    (run,) = runs(shared)
    assert (run.info.status, run.data.metrics, run.data.tags["a"]) == ("FINISHED", {"x": 1.0}, "b")


def test_a_database_that_broke_and_came_back_gets_everything_in_order(
    fresh: Path, database: Path, stage_run: StageRun, runs: Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    (fresh / "mlflow.db").write_bytes(b"this is no database" * 100)
    monkeypatch.setattr(one_run, "PATIENCE_S", 0.0)
    with stage_run(fresh):
        tracking.log_metrics({"report/curve": 1.0}, 1)
        tracking.log_tags({"said": "while it was broken"})
        shutil.copy(database, fresh / "mlflow.db")
        tracking.log_metrics({"report/curve": 2.0}, 2)
        assert runs(fresh)[0].data.metrics == {"report/curve": 2.0}
    (run,) = runs(fresh)
    assert (run.info.status, run.data.tags["said"]) == ("FINISHED", "while it was broken")


def test_a_process_that_died_between_sending_and_noting_it_sends_again_without_harm(
    project: Path, stage_run: StageRun, runs: Runs
) -> None:
    with stage_run(project):
        tracking.log_metrics({"report/curve": 1.0}, 1)
    (state,) = (project / "logs/tracking/finished").glob("*.state")
    values = json.loads(state.read_text())
    state.write_text(json.dumps(values | {"offset": 0, "run_id": ""}))
    for path in (state, state.with_suffix(".jsonl")):
        path.rename(project / "logs/tracking" / path.name)
    assert sync.main(["--root", str(project)]) == 0
    (run,) = runs(project)
    client = MlflowClient(f"sqlite:///{project / 'mlflow.db'}")
    assert len(client.get_metric_history(run.info.run_id, "report/curve")) == 1


def test_a_line_that_a_full_disk_cut_off_costs_that_line(tmp_path: Path) -> None:
    journal = Journal.new(tmp_path, "key", State("sqlite:///x"))
    journal.append({"op": "tags", "n": 1})
    with journal.path.open("a") as file:
        file.write('{"op": "met')
    assert [operation["n"] for operation, _ in journal.operations()] == [1]
    journal.append({"op": "tags", "n": 2})
    assert [operation["n"] for operation, _ in journal.operations()] == [1, 2]
    assert list(journal.operations())[-1][1] == journal.path.stat().st_size


def test_where_no_journal_can_be_written_the_run_waits_elsewhere(
    project: Path, stage_run: StageRun, runs: Runs, capsys: pytest.CaptureFixture[str]
) -> None:
    (project / "logs").write_text("a file where the folder should be")
    with stage_run(project):
        tracking.log_metrics({"report/curve": 1.0}, 1)
    assert "what MLflow doesn't take at once waits in " in capsys.readouterr().err  # another folder for temporary files
    assert runs(project)[0].info.status == "FINISHED" and runs(project)[0].data.metrics == {"report/curve": 1.0}


def warnings(captured: pytest.CaptureFixture[str]) -> list[str]:
    return [line for line in captured.readouterr().err.splitlines() if line.startswith("warning: ")]


def test_an_artefact_store_whose_library_is_missing_costs_no_stage_and_gets_everything_later(
    project: Path, stage_run: StageRun, runs: Runs, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "boto3", None)  # as where it is not installed
    client = MlflowClient(f"sqlite:///{project / 'mlflow.db'}")
    client.create_experiment(tracking.EXPERIMENT, "s3://bucket/files")
    (project / "table.csv").write_text("a,b")
    with stage_run(project) as record:
        tracking.log_figure(project / "table.csv")
        for step in (1, 2):
            tracking.log_metrics({"report/curve": float(step)}, step)
        record.finish(contract("report").metrics(compared=1, improved=1, published=0))
    told = warnings(capsys)
    assert len(told) == 2 and "is away: ModuleNotFoundError: import of boto3" in told[0] and "make sync" in told[1]
    assert sync.main(["--root", str(project)]) == 1
    with sqlite3.connect(project / "mlflow.db") as connection:  # somebody mends it
        connection.execute("UPDATE runs SET artifact_uri = ?", (f"file://{project / 'files'}",))
    again = [sys.executable, "-m", "components.tracking.sync", "--root", str(project)]  # MLflow remembers the address
    assert subprocess.run(again, capture_output=True).returncode == 0
    (run,) = runs(project)
    assert (run.info.status, run.data.metrics["report/curve"]) == ("FINISHED", 2.0)
    assert (project / "files/table.csv").read_text() == "a,b"
