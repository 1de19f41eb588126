"""compose.yaml as data, and as real processes of this machine: its own commands, environment, order and health checks."""

import functools
import os
import pwd
import re
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "docker"
HEALTHY_S = 240.0
BINARIES = Path(sys.executable).parent
CONTAINER_UID, PASSWORD = 12345, "p@s:s/w%r d#'\"\\x"  # a uid without a name; what an address would have to escape
VARIABLE = re.compile(r"\$\{(\w+)(?::([-?])([^}]*))?\}")


def instructions(text: str) -> list[tuple[str, str]]:
    """A Dockerfile's (instruction, rest), comments out and continued lines joined."""
    lines = "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("#"))
    found = [line.split(maxsplit=1) for line in lines.replace("\\\n", " ").splitlines() if line.strip()]
    return [(word.upper(), " ".join(rest.split())) for word, rest in found]


def interpolated(value: Any, environment: Mapping[str, str]) -> Any:
    """`value` with `${NAME:-default}` and `${NAME:?message}` replaced, as compose does."""
    if isinstance(value, dict):
        return {key: interpolated(one, environment) for key, one in value.items()}
    if isinstance(value, list):
        return [interpolated(one, environment) for one in value]
    if not isinstance(value, str):
        return value

    def replaced(match: re.Match[str]) -> str:
        name, kind, rest = match.groups()
        if not environment.get(name) and kind == "?":
            raise KeyError(f"{name}: {rest}")
        return environment.get(name) or (rest if kind == "-" else "")

    return VARIABLE.sub(replaced, value)


@pytest.fixture(scope="session")
def dockerfile() -> list[tuple[str, str]]:
    return instructions((FOLDER / "Dockerfile").read_text(encoding="utf-8"))


@pytest.fixture(scope="session")
def image_environment(dockerfile: list[tuple[str, str]]) -> dict[str, str]:
    """What ENV of the Dockerfile gives every container."""
    return {
        name: value for word, rest in dockerfile if word == "ENV" for name, value in re.findall(r"(\w+)=(\S+)", rest)
    }


@pytest.fixture(scope="session")
def compose() -> dict[str, Any]:
    """compose.yaml as written."""
    return yaml.safe_load((FOLDER / "compose.yaml").read_text(encoding="utf-8"))


def free_port() -> int:
    """A port of the system's choosing, which lies outside the range that Ray gives its workers."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def postgresql() -> Path | None:
    """The folder of PostgreSQL's programs."""
    found = shutil.which("initdb")
    folders = [Path(found).resolve().parent] if found else sorted(Path("/usr/lib/postgresql").glob("*/bin"))
    return folders[-1] if folders else None


def unprivileged(uid: int) -> list[str]:
    """The start of a command that runs as `uid` where we are root: PostgreSQL refuses root and containers are none, either.

    It may read what root can: here the interpreter stands in root's home.
    """
    if os.getuid() != 0:
        return []
    reading = ["--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search"]
    return ["setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups", *reading, "--"]


class Stack:
    """Services of compose.yaml without containers: each a process, with names of hosts, ports and paths put in place."""

    def __init__(self, folder: Path, binaries: Path, image_environment: Mapping[str, str]) -> None:
        self.folder, self.binaries, self._image = folder, binaries, image_environment
        self.ports = {"5432": free_port(), "4200": free_port(), "5000": free_port(), "6379": free_port()}
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        variables = {
            "STOP_PROJECT": str(ROOT),
            "POSTGRES_PASSWORD": PASSWORD,
            "RAY_AUTH_TOKEN": secrets.token_hex(16),
            "RAY_WORKER_CPUS": "1",
            "RAY_OBJECT_STORE": "100000000",
            "PREFECT_PORT": str(self.ports["4200"]),
            "MLFLOW_PORT": str(self.ports["5000"]),
        }
        self.services = interpolated(yaml.safe_load((FOLDER / "compose.yaml").read_text(encoding="utf-8")), variables)[
            "services"
        ]
        for name in ("home", "mlartifacts", "ray", "tmp"):
            (folder / name).mkdir()
            self._give(folder / name, CONTAINER_UID)

    def up(self, name: str) -> None:
        """Starts a service after those it depends on, each when the one before is healthy by its own check."""
        if name in self.processes:
            return
        for needed, how in self.services[name].get("depends_on", {}).items():
            assert how["condition"] == "service_healthy"
            self.up(needed)
        if name == "postgres":
            self._initialise()
            command = self._postgres("-c", "listen_addresses=127.0.0.1", "-p", str(self.ports["5432"]))
        else:
            command = [*unprivileged(CONTAINER_UID), *self._command(self.services[name]["command"])]
        self._start(name, command)
        self._wait(name)

    def down(self) -> None:
        """Ends exactly what was started, in the order in which compose would; raises when one had to be killed."""
        late = []
        for name in reversed(self.processes):
            try:
                self.end(name)
            except subprocess.TimeoutExpired:
                late.append(name)
        assert not late, f"they did not end in the time that compose.yaml grants: {late}"

    def end(self, name: str) -> int:
        """SIGTERM as from `docker stop`, then SIGKILL after the time that compose.yaml grants; the exit status."""
        process = self.processes[name]
        grace = float(str(self.services[name].get("stop_grace_period", "10s")).removesuffix("s"))
        process.send_signal(signal.SIGINT if name == "postgres" else signal.SIGTERM)  # the image's STOPSIGNAL
        try:
            return process.wait(grace)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait(10)
            raise

    def health(self, name: str, **changed: str) -> subprocess.CompletedProcess[str]:
        """The service's own health check, once."""
        kind, *command = self.services[name]["healthcheck"]["test"]
        assert kind == "CMD"
        environment = self.environment(name) | changed
        return subprocess.run(self._command(command), env=environment, capture_output=True, text=True, timeout=60)

    def execute(self, name: str, *command: str) -> subprocess.CompletedProcess[str]:
        """As `docker compose exec`: a command in the service's place, as its user."""
        return subprocess.run(
            [*unprivileged(CONTAINER_UID), *command],
            cwd=self.services[name].get("working_dir", "/"),
            env=self.environment(name),
            capture_output=True,
            text=True,
            timeout=180,
        )

    def environment(self, name: str) -> dict[str, str]:
        """What the service's container would have: the image's environment and compose.yaml's, nothing of ours."""
        own = {key: self._here(str(value)) for key, value in self.services[name].get("environment", {}).items()}
        path = os.pathsep.join([str(BINARIES), str(self.binaries), os.defpath])
        places = {"HOME": "home", "TMPDIR": "tmp", "RAY_TMPDIR": "ray"}  # a container has them to itself
        here = {name: str(self.folder / folder) for name, folder in places.items()}
        return {**self._image, **own, **here, "PATH": path, "PGPORT": str(self.ports["5432"])}

    def log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text(encoding="utf-8", errors="replace")

    def sql(self, database: str, statement: str, *options: str) -> str:
        """psql's answer, asked by the superuser through the socket as the image's own scripts do."""
        command = [*unprivileged(_uid()), str(self.binaries / "psql"), "--no-psqlrc", "--username=postgres"]
        command += ["--no-align", "--tuples-only", f"--host={self.folder}", f"--dbname={database}", *options]
        command += ["--command", statement] if statement else []
        environment = self.environment("postgres")
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def _initialise(self) -> None:
        """As the image does with an empty volume: initdb, a server on the socket alone, the scripts, the end of that server."""
        (self.folder / "password").write_text(PASSWORD)
        self._give(self.folder, _uid())
        initdb = [str(self.binaries / "initdb"), "-D", str(self.folder / "data"), "--username=postgres"]
        initdb += [f"--pwfile={self.folder / 'password'}", "--auth-local=trust", "--auth-host=scram-sha-256"]
        done = subprocess.run([*unprivileged(_uid()), *initdb], capture_output=True, text=True, cwd="/")
        assert done.returncode == 0, done.stderr
        self._start("postgres", self._postgres("-c", "listen_addresses=", "-p", str(self.ports["5432"])))
        try:
            deadline = time.monotonic() + 60
            ready = [str(self.binaries / "pg_isready"), "--quiet", f"--host={self.folder}"]
            while subprocess.run(ready, env=self.environment("postgres")).returncode:
                assert time.monotonic() < deadline, self.log("postgres")
                time.sleep(0.1)
            assert self.health("postgres").returncode, "healthy before its databases exist"
            self.sql("postgres", "", "--set=ON_ERROR_STOP=1", "--no-password", f"--file={FOLDER / 'postgres-init.sql'}")
        finally:
            self.end("postgres")
            del self.processes["postgres"]

    def _postgres(self, *options: str) -> list[str]:
        server = [str(self.binaries / "postgres"), "-D", str(self.folder / "data"), "-k", str(self.folder), *options]
        return [*unprivileged(_uid()), *server]

    def _start(self, name: str, command: list[str]) -> None:
        folder = self.services[name].get("working_dir", "/")
        with (self.folder / f"{name}.log").open("ab") as log:
            self.processes[name] = subprocess.Popen(
                command,
                cwd=folder,
                env=self.environment(name),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def _wait(self, name: str) -> None:
        deadline = time.monotonic() + HEALTHY_S
        while (last := self.health(name)).returncode or not self._joined(name):
            ended = self.processes[name].poll()
            if ended is not None or time.monotonic() > deadline:
                why = "is not healthy" if ended is None else f"ended with status {ended}"
                pytest.fail(f"{name} {why}: {last.stderr[-1000:]}\n{self.log(name)[-4000:]}")
            time.sleep(0.2)

    def _joined(self, name: str) -> bool:
        """Nodes share this machine's processes and one folder, in which two that start at once take the same names."""
        return not name.startswith(("ray-", "runner")) or "Ray runtime started" in self.log(name)

    def _command(self, command: list[str]) -> list[str]:
        ours = {"stop-health": [sys.executable, str(FOLDER / "health.py")], "stop-runner": [str(FOLDER / "runner.sh")]}
        first, *rest = command
        return [*ours.get(first, [first]), *map(self._here, rest)]

    def _here(self, text: str) -> str:
        """A word of compose.yaml with what only containers know put in terms of this machine."""
        exact = {"postgres": "127.0.0.1", "0.0.0.0": "127.0.0.1", "--host=postgres": "--host=127.0.0.1"}
        exact |= {port: str(number) for port, number in self.ports.items()}
        exact["/var/lib/stop/mlartifacts"] = str(self.folder / "mlartifacts")
        if text in exact:
            return exact[text]
        hosts = r"(?<=[/@])(?:postgres|prefect|mlflow|127\.0\.0\.1):(\d{4})\b"
        text = re.sub(hosts, lambda found: f"127.0.0.1:{self.ports[found[1]]}", text)
        if "ray-head" in text:
            text = text.replace("ray-head:6379", f"{_ray_address()}:{self.ports['6379']}")
        return text.replace("--port=6379", f"--port={self.ports['6379']}")

    def _give(self, folder: Path, uid: int) -> None:
        if os.getuid() == 0:
            os.chown(folder, uid, uid)


def _uid() -> int:
    """Whose server PostgreSQL's is: it wants a user with a name."""
    names = {one.pw_name: one.pw_uid for one in pwd.getpwall()}
    return names.get("postgres", names.get("nobody", 65534))


@functools.cache
def _ray_address() -> str:
    from ray.util import get_node_ip_address

    return str(get_node_ip_address())


@pytest.fixture(scope="module")
def stack(image_environment: dict[str, str]) -> Iterator[Stack]:
    """Nothing started yet; what a test starts ends with its module."""
    binaries = postgresql()
    if binaries is None:
        pytest.skip("needs PostgreSQL's initdb and postgres")
    if os.getuid() == 0 and not shutil.which("setpriv"):
        pytest.skip("we are root, which PostgreSQL refuses, and there is no setpriv to become another user")
    folder = Path(tempfile.mkdtemp(prefix="stop-", dir="/tmp"))  # short: paths of sockets end at 107 characters
    folder.chmod(0o755)
    try:
        made = Stack(folder, binaries, image_environment)
        try:
            yield made
        finally:
            made.down()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
