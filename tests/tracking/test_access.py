"""What is wrong with MLflow is told before a run begins, in a few seconds, with the way out."""

import os
import socket
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
from mlflow import MlflowClient

from components import parent_runs, tracking
from components.tracking import removal, sync


def test_a_database_that_works_passes(project: Path) -> None:
    parent_runs.check(project)


def test_a_missing_one_is_made(fresh: Path) -> None:
    parent_runs.check(fresh)
    assert (fresh / "mlflow.db").is_file()


def test_a_server_that_is_away(fresh: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        uri = f"http://127.0.0.1:{free.getsockname()[1]}"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    with pytest.raises(
        ValueError, match=f"MLflow at {uri} cannot be reached: .*refused.*; start it, .* MLFLOW_TRACKING_URI"
    ):
        parent_runs.check(fresh)


def test_a_server_that_says_nothing_takes_seconds_not_minutes(fresh: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("components.reachable.PATIENCE_S", 0.3)
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://127.0.0.1:{silent.getsockname()[1]}")
        started = time.monotonic()
        with pytest.raises(ValueError, match="cannot be reached: .*timed out"):
            parent_runs.check(fresh)
        assert time.monotonic() - started < 5


@pytest.mark.parametrize(
    ("revision", "message"),
    [
        (
            "feedfacefeed",
            "a schema .feedfacefeed. that the installed MLflow .* does not know, a newer one: `make install`",
        ),
        (
            "451aebb31d03",
            "an older schema .451aebb31d03. than MLflow .*: back it up, then `mlflow db upgrade sqlite:///",
        ),
    ],
)
def test_a_schema_of_another_version(project: Path, revision: str, message: str) -> None:
    with sqlite3.connect(project / "mlflow.db") as connection:
        connection.execute("UPDATE alembic_version SET version_num = ?", (revision,))
    with pytest.raises(ValueError, match=message):
        parent_runs.check(project)


def test_a_file_that_is_no_database_a_locked_one_and_no_folder(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("components.parent_runs.access.PATIENCE_S", 0.2)
    with sqlite3.connect(project / "mlflow.db") as holder:
        holder.execute("BEGIN EXCLUSIVE")
        with pytest.raises(ValueError, match="cannot be written: database is locked; end what holds it, or set"):
            parent_runs.check(project)
    (project / "mlflow.db").write_bytes(b"this is no database" * 100)
    with pytest.raises(ValueError, match="cannot be written: file is not a database; see its permissions"):
        parent_runs.check(project)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{project}/nowhere/mlflow.db")
    with pytest.raises(ValueError, match=r"nowhere/mlflow.db has no folder; make .*/nowhere, or set"):
        parent_runs.check(project)


def test_a_deleted_experiment(project: Path) -> None:
    client = MlflowClient(f"sqlite:///{project / 'mlflow.db'}")
    number = client.create_experiment(tracking.EXPERIMENT)
    client.delete_experiment(number)
    with pytest.raises(
        ValueError, match=f"'stop' .* was deleted; `mlflow experiments restore --experiment-id {number}`"
    ):
        parent_runs.check(project)


def test_a_relative_database_is_refused_at_every_door(
    project: Path, stage_run: Callable[..., AbstractContextManager[Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The flow works in the checkout and its stages in a tree of their own: each would have a file there."""
    monkeypatch.chdir(project)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "sqlite:///mlflow.db")
    said = f"'sqlite:///mlflow.db', a sqlite file at a relative path; .* sqlite:///{project}/mlflow.db, or unset it"
    doors: list[Callable[[], object]] = [
        lambda: parent_runs.check(project),
        lambda: parent_runs.start_pipeline(project, project, "run", {"trigger": "dvc"}),
        lambda: parent_runs.begin_row(project, "sweep", {}),
        lambda: parent_runs.pipeline_rows(project, ["run"]),
        lambda: removal.promoted(project),
        lambda: stage_run(project).__enter__(),
    ]
    for door in doors:
        with pytest.raises(ValueError, match=said):
            door()
    assert not (project / "logs").exists()


STAGE = """
import sys
from components.__main__ import main
print(main(sys.argv[1:]), "components.report.run" in sys.modules)
"""


def test_a_relative_database_ends_a_stage_before_its_libraries_are_loaded(project: Path, repository: Path) -> None:
    arguments = ["report", f"--params={repository / 'params/report.yaml'}"]
    arguments += [f"--{name}={project}" for name in ("metrics", "values", "protocols", "plots")]
    arguments += [f"--{name}={project / name}" for name in ("report", "page", "table", "run")]
    environment = os.environ | {"MLFLOW_TRACKING_URI": "sqlite:///mlflow.db"}
    command = [sys.executable, "-c", STAGE, *arguments]
    ended = subprocess.run(command, cwd=project, env=environment, capture_output=True, text=True)
    assert ended.stdout == "2 False\n"
    assert ended.stderr.startswith(
        "error: MLFLOW_TRACKING_URI is 'sqlite:///mlflow.db', a sqlite file at a relative path"
    )


def test_sync_tells_it_in_one_line(
    project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "sqlite:///mlflow.db")
    assert sync.main(["--root", str(project)]) == 2
    assert capsys.readouterr().err.startswith("error: MLFLOW_TRACKING_URI is 'sqlite:///mlflow.db', ")
