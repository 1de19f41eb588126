"""MLflow answers and refuses: a row in the bin or deleted, a right withdrawn, a value it will never take."""

import json
import os
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from mlflow import MlflowClient
from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore

from components import tracking
from components.tracking import run as one_run
from components.tracking import sync

StageRun = Callable[..., AbstractContextManager[tracking.StageRecord]]
Runs = Callable[[Path], list[Any]]


def warnings(captured: pytest.CaptureFixture[str]) -> list[str]:
    return [line for line in captured.readouterr().err.splitlines() if line.startswith("warning: ")]


def test_a_row_that_comes_back_from_the_bin_gets_what_was_written_meanwhile(
    project: Path,
    stage_run: StageRun,
    runs: Runs,
    history: Callable[[Path, str, str], list[tuple[int, float]]],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(one_run, "PATIENCE_S", 0.0)
    client = MlflowClient(f"sqlite:///{project / 'mlflow.db'}")
    (project / "table.csv").write_text("a,b")
    with stage_run(project):
        tracking.log_metrics({"report/curve": 1.0}, 1)
        row = runs(project)[0].info.run_id
        client.delete_run(row)
        tracking.log_metrics({"report/curve": 2.0}, 2)
        tracking.log_figure(project / "table.csv")
        (told,) = warnings(capsys)
        assert f"The run {row} must be in the 'active' state" in told
        client.restore_run(row)
        tracking.log_metrics({"report/curve": 3.0}, 3)
    assert runs(project)[0].info.status == "FINISHED"
    assert history(project, row, "report/curve") == [(1, 1.0), (2, 2.0), (3, 3.0)]
    assert [file.path for file in client.list_artifacts(row)] == ["table.csv"]


@pytest.mark.parametrize("how", ["bin", "for good"])
def test_what_waits_for_a_row_that_was_deleted_on_purpose_is_named_and_can_be_dropped(
    project: Path, stage_run: StageRun, runs: Runs, capsys: pytest.CaptureFixture[str], how: str
) -> None:
    with stage_run(project):
        row = runs(project)[0].info.run_id
        MlflowClient(f"sqlite:///{project / 'mlflow.db'}").delete_run(row)
        if how == "for good":
            SqlAlchemyStore(f"sqlite:///{project / 'mlflow.db'}", str(project))._hard_delete_run(row)
        tracking.log_metrics({"report/curve": 1.0}, 1)
    (waiting,) = (project / "logs/tracking").glob("*.jsonl")
    assert sync.main(["--root", str(project)]) == 1
    told = capsys.readouterr().err
    assert f"waiting: {waiting.stem}: " in told and "--drop NAME` forgets it" in told
    assert sync.main(["--root", str(project), "--drop", "another"]) == 2
    assert f"it must be a journal of {waiting.parent} that waits; these are: {waiting.stem}" in capsys.readouterr().err
    assert sync.main(["--root", str(project), "--drop", waiting.stem]) == 0
    assert not waiting.exists() and sync.main(["--root", str(project)]) == 0
    assert capsys.readouterr().out.splitlines() == [f"forgot {waiting.stem}", "nothing was waiting"]


def test_a_journal_that_a_process_still_writes_is_not_dropped(
    project: Path, stage_run: StageRun, runs: Runs, capsys: pytest.CaptureFixture[str]
) -> None:
    with stage_run(project):
        row = runs(project)[0].info.run_id
        MlflowClient(f"sqlite:///{project / 'mlflow.db'}").delete_run(row)
        tracking.log_metrics({"report/curve": 1.0}, 1)
        (journal,) = (project / "logs/tracking").glob("*.jsonl")
        assert sync.main(["--root", str(project), "--drop", journal.stem]) == 2
        assert f"which process {os.getpid()} on " in capsys.readouterr().err and journal.exists()


def test_another_row_that_is_gone_and_an_artefact_that_is_refused_hold_nothing_up(
    project: Path, runs: Runs, capsys: pytest.CaptureFixture[str]
) -> None:
    client = MlflowClient(f"sqlite:///{project / 'mlflow.db'}")
    client.create_experiment(tracking.EXPERIMENT, "dbfs:/Volumes/a")  # which MLflow finds too short
    (project / "table.csv").write_text("a,b")
    run = tracking.Run.begin(tracking.database(project), "key", "name", "", {})
    run.tags({"continued_by": run.run_id}, run="0" * 32)
    run.adopt("0" * 32)
    run.artifact(project / "table.csv")
    run.metrics({"x": 1.0}, 1)
    run.end("FINISHED")
    (row,) = runs(project)
    assert (row.info.status, row.data.metrics) == ("FINISHED", {"x": 1.0})
    assert [line.split(":")[1] for line in warnings(capsys)] == [
        " MLflow refused tags",
        " MLflow refused adopt",
        " MLflow refused artifact",
    ]
    (kept,) = (project / "logs/tracking/finished").glob("*.files/*/table.csv")
    assert kept.read_text() == "a,b"


class Forbidding(BaseHTTPRequestHandler):
    """What a server answers whose administrator took the right to write away, and gave it back."""

    forbidden, points = False, list[float]()

    def do_GET(self) -> None:
        self._answer(200, {"experiment": {"experiment_id": "1", "name": tracking.EXPERIMENT}})

    def do_POST(self) -> None:
        sent = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.forbidden:
            self._answer(403, {"error_code": "PERMISSION_DENIED", "message": "Permission denied"})
            return
        self.points.extend(point["value"] for point in sent.get("metrics", []))
        self._answer(200, {} if "search" in self.path else {"run": {"info": {"run_id": "row", "run_uuid": "row"}}})

    def _answer(self, status: int, body: dict[str, Any]) -> None:
        text = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing."""


def test_points_written_while_the_right_to_write_was_withdrawn_arrive_with_the_rest(
    fresh: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(one_run, "PATIENCE_S", 0.0)

    class Answers(Forbidding):
        points = list[float]()

    with ThreadingHTTPServer(("127.0.0.1", 0), Answers) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://127.0.0.1:{server.server_port}")
            run = tracking.Run.begin(tracking.database(fresh), "key", "name", "", {})
            run.metrics({"x": 1.0}, 1)
            Answers.forbidden = True
            run.metrics({"x": 2.0}, 2)
            run.metrics({"x": 3.0}, 3)
            (told,) = warnings(capsys)
            assert "PERMISSION_DENIED: Permission denied" in told
            Answers.forbidden = False
            run.end("FINISHED")
        finally:
            server.shutdown()
            thread.join()
    assert Answers.points == [1.0, 2.0, 3.0] and run.journal.sent()
