"""`make up`, `make status`, `make down` on the toy, with real servers."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from mlflow import MlflowClient
from prefect.client.orchestration import get_client
from prefect.settings import PREFECT_API_URL, temporary_settings

from components.stage import canonical_yaml, read_yaml
from flows import preflight, services
from flows.service import Started, answers


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def make(root: Path, command: str, **ports: int) -> subprocess.CompletedProcess[str]:
    """As the Makefile does, from a process that ends before the services."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PREFECT")}
    environment |= {name: str(port) for name, port in ports.items()}
    words = [sys.executable, "-m", "flows.services", command, "--root", str(root)]
    return subprocess.run(words, env=environment, capture_output=True, text=True)


@pytest.fixture
def with_recipe(tracked):
    words = ("prepare", "davis", "clevr", "report")
    (tracked.root / "params/presets").mkdir()
    text = canonical_yaml({word: read_yaml(tracked.root / f"params/{word}.yaml") for word in words})
    (tracked.root / "params/presets/toy.yaml").write_text(text)
    return tracked


def run_that_hangs(toy, port: int, until: Callable[..., None]) -> int:
    """A run in the middle of a stage; that stage's process."""
    toy.script("prepare", "echo pid $$; sleep 600")
    with temporary_settings({PREFECT_API_URL: f"http://127.0.0.1:{port}/api"}), get_client(sync_client=True) as client:
        (deployment,) = [one for one in client.read_deployments() if one.name == "toy"]
        client.create_flow_run_from_deployment(deployment.id, name="hangs")
    log = toy.root / "logs/hangs/prepare@shapes.log"
    until(lambda: log.exists() and "\npid " in log.read_text())
    return int(log.read_text().partition("\npid ")[2].split()[0])


@pytest.mark.faults
def test_up_twice_status_and_down(
    with_recipe, until: Callable[..., None], alive: Callable[[list[int]], list[int]]
) -> None:
    root, ports = with_recipe.root, {"PREFECT_PORT": free_port(), "MLFLOW_PORT": free_port()}
    bystander, tree = subprocess.Popen(["sleep", "600"]), list[int]()
    try:
        first = make(root, "up", **ports)
        assert (first.returncode, first.stderr) == (0, ""), first.stderr
        for port in ports.values():
            assert f"http://127.0.0.1:{port} " in first.stdout
        assert f"http://127.0.0.1:{ports['PREFECT_PORT']}/deployments" in first.stdout
        assert answers(ports["PREFECT_PORT"], "/api/health") and answers(ports["MLFLOW_PORT"], "/health")
        up = services.running(root)
        tree = [child.pid for one in up.values() for child in psutil.Process(one.pid).children(recursive=True)]
        tree += [one.pid for one in up.values()]
        listening = [
            c.laddr.ip for pid in tree for c in psutil.Process(pid).net_connections("tcp") if c.status == "LISTEN"
        ]
        assert listening and set(listening) == {"127.0.0.1"}

        second = make(root, "up", PREFECT_PORT=1)  # a variable that is too late changes nothing
        assert second.stdout.startswith("already up\n") and second.returncode == 0
        assert services.running(root) == up
        assert second.stdout.partition("\n")[2] == make(root, "status").stdout

        # What died alone comes back alone.
        os.kill(up["mlflow"].pid, signal.SIGKILL)
        psutil.wait_procs([psutil.Process(up["mlflow"].pid)], timeout=30)
        assert "mlflow" in (told := make(root, "status").stdout) and "not running" in told
        third = make(root, "up")  # no port given: where it was
        assert third.returncode == 0, third.stderr
        again = services.running(root)
        assert again["prefect"] == up["prefect"] and again["mlflow"].pid != up["mlflow"].pid
        assert again["mlflow"].port == ports["MLFLOW_PORT"]
        tree += [one.pid for one in again.values()]
        tree += [run_that_hangs(with_recipe, ports["PREFECT_PORT"], until)]
    finally:
        ended = make(root, "down")
        assert (ended.returncode, ended.stdout) == (0, "ended: prefect, mlflow, deployments\n"), ended.stderr
        assert not alive(tree)
        assert alive([bystander.pid])
        bystander.kill()
    (row,) = MlflowClient(f"sqlite:///{root / 'mlflow.db'}").search_runs(["1"])
    assert (row.info.run_name, row.info.status) == ("hangs", "KILLED")
    assert make(root, "down").stdout == "nothing was up\n"
    assert make(root, "status").stdout.count("not running") == 3


def test_a_taken_port_is_named_with_its_variable_and_nothing_starts(with_recipe) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        failed = make(with_recipe.root, "up", PREFECT_PORT=free_port(), MLFLOW_PORT=port)
    assert failed.returncode == 2
    assert f"port {port} of 127.0.0.1, meant for mlflow, is taken by " in failed.stderr
    assert f"(process {os.getpid()})" in failed.stderr
    assert f"make up MLFLOW_PORT={port + 10}" in failed.stderr
    assert not services.running(with_recipe.root)
    wrong = make(with_recipe.root, "up", MLFLOW_PORT=70000)
    assert "MLFLOW_PORT is '70000'; it must be a port, a number from 1 to 65535" in wrong.stderr


def test_a_service_that_fails_takes_the_others_with_it_and_says_why(tracked) -> None:
    failed = make(tracked.root, "up", PREFECT_PORT=free_port(), MLFLOW_PORT=free_port())
    assert failed.returncode == 1
    assert "deployments ended; the end of" in failed.stderr
    assert "holds no whole recipe" in failed.stderr
    assert not services.running(tracked.root)


def test_a_process_of_the_same_number_is_not_taken_for_ours() -> None:
    me = psutil.Process()
    assert Started(me.pid, me.create_time(), 0).process() == me
    assert Started(me.pid, me.create_time() - 100, 0).process() is None
    foreign = subprocess.Popen(["sleep", "600"], start_new_session=True)
    created = psutil.Process(foreign.pid).create_time()
    ours, earlier = Started(foreign.pid, created, 0).session(), Started(foreign.pid, created - 100, 0).session()
    foreign.kill()
    foreign.wait()
    assert ([one.pid for one in ours], earlier) == ([foreign.pid], [])


@pytest.mark.parametrize(
    ("given", "legal"),
    [("wide-mask-2", "wide-mask-2"), ("My run (2)", "My-run-2"), ("a - b", "a-b"), ("x__y..z", "x_y.z")],
)
def test_any_name_becomes_one_that_prefect_dvc_and_mlflow_share(given: str, legal: str) -> None:
    assert preflight.legal_name(given) == legal
