"""The whole stack of compose.yaml as processes, in its order: a Ray cluster with a token, and a runner that is its node."""

import json
import os
import sys
import urllib.request
from typing import Any

import pytest

pytestmark = pytest.mark.faults  # a minute, with three Ray nodes

DRIVER = """
import json, os, ray
ray.init(address="auto", log_to_driver=False, logging_level="warning")

@ray.remote(num_cpus=1)
def task():
    import components.pretrain.contract
    return ray.get_runtime_context().get_node_id(), components.pretrain.contract.__file__

code = {"env_vars": {"PYTHONPATH": os.getcwd()}}
node, file = ray.get(task.options(runtime_env=code).remote(), timeout=60)
cpus = {one["NodeID"]: one["Resources"].get("CPU", 0) for one in ray.nodes() if one["Alive"]}
print(json.dumps({"node": node, "file": file, "cpus": cpus}))
"""


@pytest.fixture(scope="module")
def everything(stack: Any) -> Any:
    stack.up("runner")
    return stack


def test_services_start_in_the_order_of_their_dependencies(everything: Any) -> None:
    assert list(everything.processes) == ["postgres", "prefect", "mlflow", "ray-head", "ray-worker", "runner"]


def test_a_driver_in_the_runner_gives_its_work_to_the_worker(everything: Any) -> None:
    done = everything.execute("runner", sys.executable, "-c", DRIVER)
    assert done.returncode == 0, done.stderr[-3000:]
    told = json.loads(done.stdout.splitlines()[-1])
    assert sorted(told["cpus"].values()) == [0, 0, 1], "head and runner offer nothing"
    assert told["cpus"][told["node"]] == 1
    assert told["file"].startswith(everything.services["runner"]["working_dir"]), (
        "workers import the code of the mounted checkout"
    )


def test_who_has_another_token_is_refused(everything: Any) -> None:
    asked = everything.health("ray-head", RAY_AUTH_TOKEN="another")
    assert asked.returncode != 0
    assert "InvalidAuthToken" in asked.stderr


def test_the_token_is_written_nowhere(everything: Any) -> None:
    assert not (everything.folder / "home" / ".ray" / "auth_token").exists()
    token = everything.environment("runner")["RAY_AUTH_TOKEN"]
    assert not [name for name in everything.processes if token in everything.log(name)]


def test_deployments_are_served_from_the_checkout(everything: Any) -> None:
    address = f"http://127.0.0.1:{everything.ports['4200']}/api/deployments/filter"
    with urllib.request.urlopen(
        urllib.request.Request(address, b"{}", {"content-type": "application/json"}), timeout=30
    ) as answer:
        served = json.load(answer)
    assert {one["status"] for one in served} == {"READY"}


def test_a_stopped_runner_takes_its_two_processes_along(everything: Any) -> None:
    session = everything.processes["runner"].pid
    assert everything.end("runner") == 0
    left = []
    for entry in filter(str.isdigit, os.listdir("/proc")):
        try:
            if os.getsid(int(entry)) == session:
                left.append(entry)
        except ProcessLookupError:
            continue
    assert not left
