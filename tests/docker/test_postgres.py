"""The servers of compose.yaml on a real PostgreSQL, by its own commands, as a user without a name."""

import http.client
import json
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

import pytest

CLIENT = """
import sys
from pathlib import Path
from mlflow import MlflowClient
from mlflow.entities import Metric

uri, experiment, parent, number, folder = sys.argv[1:]
client = MlflowClient(uri)
run = client.create_run(experiment, run_name=f"stage{number}", tags={"mlflow.parentRunId": parent})
client.log_batch(run.info.run_id, metrics=[Metric("loss", 1 / step, step, step) for step in range(1, 201)])
mine = Path(folder) / f"mine{number}.bin"
mine.write_bytes(bytes([int(number)]) * 300_000)
client.log_artifact(run.info.run_id, str(mine), "files")
back = client.download_artifacts(run.info.run_id, f"files/{mine.name}", folder + "/back" + number)
assert Path(back).read_bytes() == mine.read_bytes() and Path(back) != mine
client.set_terminated(run.info.run_id, "FINISHED")
print(run.info.artifact_uri)
"""


@pytest.fixture(scope="module")
def servers(stack: Any) -> Any:
    stack.up("prefect")
    stack.up("mlflow")
    return stack


def test_each_server_has_a_database_and_a_role_of_its_own(servers: Any) -> None:
    owners = (
        "SELECT datname, rolname, rolsuper FROM pg_database JOIN pg_roles r ON r.oid = datdba WHERE NOT datistemplate"
    )
    rows = servers.sql("postgres", owners + " ORDER BY 1").splitlines()
    assert rows == ["mlflow|mlflow|f", "postgres|postgres|t", "prefect|prefect|f"]
    assert servers.sql("postgres", "SELECT has_database_privilege('prefect', 'mlflow', 'CONNECT')") == "f"


def test_a_password_that_was_changed_later_is_unhealthy_and_says_so(servers: Any) -> None:
    asked = servers.health("postgres", PGPASSWORD="another")
    assert asked.returncode != 0
    assert "password authentication failed" in asked.stderr


def test_prefect_keeps_its_runs_in_postgresql(servers: Any) -> None:
    body, address = json.dumps({"name": "seen-in-sql"}).encode(), f"http://127.0.0.1:{servers.ports['4200']}/api/flows/"
    request = urllib.request.Request(address, body, {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=30) as answer:
        assert answer.status in (200, 201)
    assert servers.sql("prefect", "SELECT name FROM flow") == "seen-in-sql"
    assert not list(Path(servers.folder / "home").rglob("*.db"))


def test_the_browser_is_sent_to_the_published_port(servers: Any) -> None:
    with urllib.request.urlopen(f"http://127.0.0.1:{servers.ports['4200']}/ui-settings", timeout=30) as answer:
        assert json.load(answer)["api_url"] == f"http://127.0.0.1:{servers.ports['4200']}/api"


def test_three_clients_at_once_log_runs_and_files_through_mlflow(
    servers: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    uri = f"http://127.0.0.1:{servers.ports['5000']}"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    from components import parent_runs

    parent = parent_runs.start_pipeline(tmp_path, tmp_path, "in containers", {"trigger": "prefect"})
    assert parent, "MLflow refused the parent row"
    experiment = servers.sql("mlflow", f"SELECT experiment_id FROM runs WHERE run_uuid = '{parent}'")
    clients = [
        subprocess.Popen(
            [sys.executable, "-c", CLIENT, uri, experiment, parent, str(number), str(tmp_path)],
            env=servers.environment("runner"),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for number in (1, 2, 3)
    ]
    for client in clients:
        (tmp_path / f"back{clients.index(client) + 1}").mkdir()
    answers = [client.communicate(timeout=120) for client in clients]
    assert [client.returncode for client in clients] == [0, 0, 0], answers
    assert all(said.splitlines()[-1].startswith("mlflow-artifacts:/") for said, _ in answers), answers
    assert servers.sql("mlflow", "SELECT count(*) FROM runs WHERE status = 'FINISHED'") == "3"
    assert servers.sql("mlflow", "SELECT count(*) FROM metrics WHERE key = 'loss'") == "600"
    stored = sorted(file.name for file in (servers.folder / "mlartifacts").rglob("*.bin"))
    assert stored == ["mine1.bin", "mine2.bin", "mine3.bin"]


@pytest.mark.parametrize(
    ("host", "status"),
    [("mlflow:5000", 200), ("127.0.0.1:5000", 200), ("localhost:15000", 200), ("evil.example", 403), ("mlflow", 403)],
)
def test_mlflow_answers_to_its_names_only(servers: Any, host: str, status: int) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", servers.ports["5000"], timeout=30)
    connection.request("GET", "/api/2.0/mlflow/experiments/get-by-name?experiment_name=Default", headers={"Host": host})
    assert connection.getresponse().status == status
    connection.close()


def test_a_server_that_is_gone_is_unhealthy(servers: Any) -> None:
    servers.end("mlflow")
    asked = servers.health("mlflow")
    assert asked.returncode == 1
    assert asked.stderr.startswith("unhealthy: http://127.0.0.1:")
