"""What must hold of the Dockerfile and of the compose files, whose first public runs fail in ways that are known."""

import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement

from flows import OFFLINE

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "docker"
FILES = ("compose.yaml", "compose.gpu.yaml", "compose.data.yaml")
VARIABLE = re.compile(r"\$\{(\w+)")
RAY = ("ray-head", "ray-worker", "runner")

Services = dict[str, dict[str, Any]]


@pytest.fixture(scope="module")
def services(compose: dict[str, Any]) -> Services:
    return compose["services"]


@pytest.fixture(scope="module")
def ours(services: Services) -> Services:
    """Those that run our image."""
    return {name: service for name, service in services.items() if service["image"].startswith("stop:")}


def texts(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        for key, one in value.items():
            yield f"{key}={one}" if isinstance(one, str) else ""
            yield from texts(one)
    elif isinstance(value, list):
        for one in value:
            yield from texts(one)
    elif isinstance(value, str):
        yield value


# ---- compose.yaml: order, doors, secrets


def test_every_service_is_there_and_has_a_health_check(services: Services) -> None:
    assert list(services) == ["postgres", "prefect", "mlflow", *RAY]
    for service in services.values():
        check = service["healthcheck"]
        assert check["test"][0] == "CMD" and len(check["test"]) > 1
        assert {"interval", "timeout", "retries", "start_period"} <= check.keys()


def test_every_dependency_waits_until_it_is_healthy(services: Services) -> None:
    for service in services.values():
        for needed, how in service.get("depends_on", {}).items():
            assert how["condition"] == "service_healthy" and needed in services
    needs = {name: set(service.get("depends_on", {})) for name, service in services.items()}
    assert needs["prefect"] == needs["mlflow"] == {"postgres"}
    assert needs["ray-worker"] == {"ray-head"}
    assert needs["runner"] == {"prefect", "mlflow", "ray-head", "ray-worker"}


def test_ports_are_this_machines_only_and_can_be_changed(services: Services) -> None:
    ports = {name: service["ports"] for name, service in services.items() if "ports" in service}
    assert ports == {
        "prefect": ["127.0.0.1:${PREFECT_PORT:-4200}:4200"],
        "mlflow": ["127.0.0.1:${MLFLOW_PORT:-5000}:5000"],
    }
    assert not any("network_mode" in service or "expose" in service for service in services.values())


def test_only_the_servers_reach_the_database(compose: dict[str, Any], services: Services) -> None:
    assert compose["networks"]["database"] == {"internal": True}
    assert {name for name, service in services.items() if "database" in service.get("networks", [])} == {
        "postgres",
        "prefect",
        "mlflow",
    }
    assert services["postgres"]["networks"] == ["database"]


@pytest.mark.parametrize("file", FILES)
def test_no_secret_stands_in_a_file(file: str) -> None:
    content = yaml.safe_load((FOLDER / file).read_text(encoding="utf-8"))
    for text in texts(content):
        name, _, value = text.partition("=")
        if re.fullmatch(r"\w*(PASSWORD|TOKEN|SECRET|KEY)", name):
            assert value.startswith("${") and ":?" in value, name
        assert not re.search(r"://[^/\s@]*:[^/\s@]+@", text), f"a password in an address: {text}"


def test_no_secret_stands_in_the_image(dockerfile: list[tuple[str, str]]) -> None:
    named = [rest for word, rest in dockerfile if word in ("ENV", "ARG")]
    assert not [rest for rest in named if re.search(r"PASSWORD|TOKEN|SECRET", rest)]
    kept = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    assert kept[1] == "*", "only what is named goes in"
    assert "**/.env" in kept


def test_git_ignores_the_passwords() -> None:
    assert "/.env" in (FOLDER / ".gitignore").read_text(encoding="utf-8").splitlines()


def test_the_example_names_every_variable() -> None:
    used = {name for file in FILES for name in VARIABLE.findall((FOLDER / file).read_text(encoding="utf-8"))}
    named = set(re.findall(r"^(?:# )?([A-Z_]+)=", (FOLDER / ".env.example").read_text(encoding="utf-8"), re.MULTILINE))
    assert used == named - {"COMPOSE_FILE"}


# ---- compose.yaml: what failed elsewhere


def test_commands_are_lists_and_no_string_is_folded(services: Services) -> None:
    assert not [name for name, service in services.items() if not isinstance(service.get("command", []), list)]
    assert all(isinstance(word, str) for service in services.values() for word in service.get("command", []))
    assert not re.search(r":\s*>[-+]?\s*$", (FOLDER / "compose.yaml").read_text(encoding="utf-8"), re.MULTILINE)
    for name in ("prefect", "mlflow"):
        command = services[name]["command"]
        assert command[command.index("--host") + 1] == "0.0.0.0"


def test_nothing_of_ours_runs_as_root(ours: Services) -> None:
    assert list(ours) == ["prefect", "mlflow", *RAY]
    for service in ours.values():
        assert service["user"] == "${STOP_UID:-1000}:${STOP_GID:-1000}"
        assert service["cap_drop"] == ["ALL"] and service["security_opt"] == ["no-new-privileges:true"]
        assert service["init"] is True


def test_one_service_builds_the_image_and_none_asks_a_registry_for_it(ours: Services) -> None:
    assert [name for name, service in ours.items() if "build" in service] == ["prefect"]
    assert {service["pull_policy"] for service in ours.values()} == {"never"}


def test_a_named_volume_is_writable_for_any_uid(
    compose: dict[str, Any], ours: Services, dockerfile: list[tuple[str, str]]
) -> None:
    mounts = [text.split(":") for service in ours.values() for text in service.get("volumes", []) if type(text) is str]
    assert [name for name, _ in mounts] == ["mlartifacts"]
    made = next(rest for word, rest in dockerfile if word == "RUN" and "--mode 1777" in rest)
    assert all(path in made.split() for _, path in mounts)
    assert set(compose["volumes"]) == {"postgres", "mlartifacts"} and compose["name"] == "stop"


def test_a_misspelt_folder_is_an_error_and_no_folder_of_roots() -> None:
    for file in FILES:
        for service in yaml.safe_load((FOLDER / file).read_text(encoding="utf-8"))["services"].values():
            for mount in service.get("volumes", []):
                assert isinstance(mount, str) or mount["bind"]["create_host_path"] is False


def test_the_checkout_has_one_path_everywhere(ours: Services) -> None:
    for name in RAY:
        (mount,) = ours[name]["volumes"]
        assert mount["source"] == mount["target"] == ours[name]["working_dir"]
        assert mount["source"].startswith("${STOP_PROJECT:?")


def test_stages_run_in_one_container(services: Services) -> None:
    assert services["runner"]["command"] == ["stop-runner"]
    assert "container_name" in services["runner"], "compose refuses to scale a service with a fixed name"
    assert services["runner"]["environment"]["DVC_SITE_CACHE_DIR"].endswith("/.dvc/tmp/site")


def test_who_needs_time_to_stop_has_it(services: Services) -> None:
    seconds = {
        name: int(service.get("stop_grace_period", "10s").removesuffix("s")) for name, service in services.items()
    }
    assert min(seconds[name] for name in ("ray-head", "ray-worker")) > 30, "a node drains for 30 s"
    assert seconds["runner"] > seconds["ray-head"] and seconds["postgres"] > 30


def test_mlflow_knows_its_names_and_hands_artifacts_through(services: Services) -> None:
    environment, command = services["mlflow"]["environment"], services["mlflow"]["command"]
    assert environment["MLFLOW_SERVER_ALLOWED_HOSTS"].split(",") == ["mlflow:5000", "127.0.0.1:*", "localhost:*"]
    assert "MLFLOW_ALLOWED_HOSTS" not in environment
    assert "--artifacts-destination" in command and "--no-serve-artifacts" not in command
    assert services["runner"]["environment"]["MLFLOW_TRACKING_URI"] == "http://mlflow:5000"


def test_links_and_the_form_lead_a_browser_to_published_ports(services: Services) -> None:
    runner, prefect = services["runner"]["environment"], services["prefect"]["environment"]
    assert runner["MLFLOW_UI_URL"] == "http://127.0.0.1:${MLFLOW_PORT:-5000}"
    assert runner["PREFECT_UI_URL"] == "http://127.0.0.1:${PREFECT_PORT:-4200}"
    assert runner["MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT"] == "true"
    assert prefect["PREFECT_SERVER_UI_API_URL"] == "http://127.0.0.1:${PREFECT_PORT:-4200}/api"


def test_ray_asks_for_a_token_has_memory_and_counts_its_cpus(services: Services) -> None:
    for name in RAY:
        environment = services[name]["environment"]
        assert environment["RAY_AUTH_MODE"] == "token" and environment["RAY_AUTH_TOKEN"].startswith(
            "${RAY_AUTH_TOKEN:?"
        )
        assert services[name]["shm_size"] == "${RAY_SHM:-1gb}"
    words = " ".join(services["ray-head"]["command"] + services["ray-worker"]["command"])
    stores = re.findall(r"RAY_OBJECT_STORE:-(\d+)", words + services["runner"]["environment"]["RAY_OBJECT_STORE"])
    assert len(stores) == 3 and all(int(store) < 2**30 for store in stores)
    assert "--num-cpus=0" in services["ray-head"]["command"]
    assert "--num-cpus=${RAY_WORKER_CPUS:-2}" in services["ray-worker"]["command"]
    assert services["ray-worker"]["cpus"] == "${RAY_WORKER_CPUS:-2}"
    assert "container_name" not in services["ray-worker"], "it can be scaled"


def test_nobody_is_phoned(image_environment: dict[str, str], services: Services) -> None:
    wanted = dict(OFFLINE)
    for line in (ROOT / ".env.example").read_text(encoding="utf-8").splitlines():
        name, is_set, value = line.partition("=")
        wanted |= {name: value} if is_set and not line.startswith("#") else {}
    assert wanted.items() <= image_environment.items()
    for service in services.values():
        assert not wanted.keys() & service.get("environment", {}).keys(), "the image's values hold"


# ---- Dockerfile


def test_the_base_is_pinned_and_nothing_is_fetched_from_an_address(dockerfile: list[tuple[str, str]]) -> None:
    assert [rest for word, rest in dockerfile if word == "FROM"] == ["python:3.11-slim-bookworm"]
    assert not [rest for word, rest in dockerfile if word == "ADD"]
    assert not [rest for word, rest in dockerfile if re.search(r"\b(curl|wget)\b", rest)]


def test_code_comes_after_the_stack_and_belongs_to_the_user(dockerfile: list[tuple[str, str]]) -> None:
    installs = [i for i, (word, rest) in enumerate(dockerfile) if word == "RUN" and "pip install" in rest]
    copies = {i: rest for i, (word, rest) in enumerate(dockerfile) if word == "COPY"}
    before = [rest for i, rest in copies.items() if i < installs[-1]]
    assert before == ["constraints.txt ./", "pyproject.toml ./"]
    assert [rest for rest in copies.values() if rest.endswith(". ./")] == ["--chown=stop:stop . ./"]
    user = next(i for i, (word, _) in enumerate(dockerfile) if word == "USER")
    assert dockerfile[user][1] == "$UID:$GID" and user > max([*installs, *copies])
    assert [rest for word, rest in dockerfile if word == "ARG"] == ["TORCH=cpu", "UID=1000", "GID=1000"]


def test_what_is_copied_is_let_through(dockerfile: list[tuple[str, str]]) -> None:
    kept = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    for word, rest in dockerfile:
        *sources, _ = [part for part in rest.split() if not part.startswith("--")]
        for source in sources if word == "COPY" else []:
            assert source == "." or (f"!{source}" in kept and (ROOT / source).is_file())
    for line in kept:
        if line.startswith("!") and line != "!dvc.lock":
            assert (ROOT / line[1:]).exists(), f"{line} names nothing"


def test_the_stack_is_that_of_the_project_at_the_pinned_versions(dockerfile: list[tuple[str, str]]) -> None:
    installs = [rest for word, rest in dockerfile if word == "RUN" and "pip install" in rest]
    assert len(installs) == 2 and all("--constraint constraints.txt" in rest for rest in installs)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    (extra,) = {name for rest in installs for name in re.findall(r"optional-dependencies'\]\['(\w+)'", rest)}
    lines = [line for line in (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines() if line[:1] != "#"]
    pins = [Requirement(line) for line in lines]
    assert {Requirement(line).name for line in project["optional-dependencies"][extra]} <= {pin.name for pin in pins}
    torch = [pin.specifier for pin in pins if pin.name in ("torch", "torchvision")]
    for specifier in torch:
        (version,) = [one.version for one in specifier]
        assert specifier.contains(f"{version}+cpu") and specifier.contains(f"{version}+cu130")


def test_the_dockerfiles_own_line_reads_the_dependencies(dockerfile: list[tuple[str, str]]) -> None:
    line = next(rest for word, rest in dockerfile if word == "RUN" and "tomllib" in rest)
    program = re.search(r'python -c "(.*?)" > ', line)
    assert program
    done = subprocess.run([sys.executable, "-c", program[1]], cwd=ROOT, capture_output=True, text=True, check=True)
    names = {Requirement(one).name for one in done.stdout.splitlines()}
    assert {"torch", "prefect", "dvc", "mlflow", "ray", "psycopg2-binary"} <= names and "pytest" not in names
