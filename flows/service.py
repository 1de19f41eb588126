"""One service as a process: its port, its start, its answer, its end."""

import contextlib
import http.client
import json
import os
import shlex
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

import psutil

START_S, GRACE_S = 180.0, 60.0
TAIL = 15  # lines of a log in an error


class Service(NamedTuple):
    """What to start. `port` 0 means that it listens nowhere: the deployments, which ask Prefect's server for work."""

    name: str
    command: list[str]
    port: int
    health: str


class Started(NamedTuple):
    """A process that was started. Its start time tells it from a later one that was given the same id."""

    pid: int
    created: float
    port: int

    def process(self) -> psutil.Process | None:
        """The process if it still runs."""
        try:
            process = psutil.Process(self.pid)
            alive = self._leads() and process.status() != psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return None
        return process if alive else None

    def session(self) -> list[psutil.Process]:
        """What still runs of it and of all that it started; these outlive a leader that was killed.

        Nothing when its number belongs to another process by now, or when the machine was started after it.
        """
        if (psutil.pid_exists(self.pid) and not self._leads()) or psutil.boot_time() > self.created + 1:
            return []
        return [process for process in psutil.process_iter() if self._holds(process)]

    def _leads(self) -> bool:
        try:
            return abs(psutil.Process(self.pid).create_time() - self.created) < 1
        except psutil.NoSuchProcess:
            return False

    def _holds(self, process: psutil.Process) -> bool:
        try:
            return os.getsid(process.pid) == self.pid and process.create_time() >= self.created - 1
        except (ProcessLookupError, PermissionError, psutil.NoSuchProcess):
            return False

    def since(self) -> str:
        """When it was started, for a person."""
        return datetime.fromtimestamp(self.created).strftime("%Y-%m-%d %H:%M:%S")


def port(variable: str, default: int) -> int:
    """The port that environment `variable` names. Raises ValueError for a text that is no port."""
    text = os.environ.get(variable) or str(default)
    if not text.isdigit() or not 1 <= int(text) <= 65535:
        raise ValueError(
            f"{variable} is {text!r}; it must be a port, a number from 1 to 65535, as in {variable}={default}"
        )
    return int(text)


def check_port(service: Service) -> None:
    """Raises ValueError naming who listens on the service's port already, and the variable that changes it."""
    if not service.port:
        return
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # else the last server's closed connections count
        try:
            probe.bind(("127.0.0.1", service.port))
        except OSError:
            raise ValueError(
                f"port {service.port} of 127.0.0.1, meant for {service.name}, is taken by {_listener(service.port)}; end that, or "
                f"choose another port: make up {service.name.upper()}_PORT={service.port + 10}"
            ) from None


def _listener(number: int) -> str:
    try:
        for connection in psutil.net_connections("tcp"):
            listens = connection.status == psutil.CONN_LISTEN and connection.laddr and connection.laddr.port == number
            if listens and connection.pid:
                return f"{psutil.Process(connection.pid).name()} (process {connection.pid})"
    except psutil.Error:  # another user's process does not tell us its name
        pass
    return "another program"


def log(root: Path, name: str) -> Path:
    """The file of a service's lines."""
    return root / "logs" / "services" / f"{name}.log"


def start(service: Service, root: Path, environment: Mapping[str, str]) -> Started:
    """Starts it in a session of its own: a closed terminal or a Ctrl-C there does not end it."""
    log(root, service.name).parent.mkdir(parents=True, exist_ok=True)
    with log(root, service.name).open("ab") as lines:
        lines.write(f"--- {datetime.now():%Y-%m-%d %H:%M:%S} {shlex.join(service.command)}\n".encode())
        lines.flush()
        process = subprocess.Popen(
            service.command,
            cwd=root,
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=lines,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    return Started(process.pid, psutil.Process(process.pid).create_time(), service.port)


def wait(service: Service, started: Started, root: Path, prefect: int) -> None:
    """Returns when it answers, and the deployments when Prefect's server says that they are ready. Raises RuntimeError otherwise."""
    deadline = time.monotonic() + START_S
    while not (answers(started.port, service.health) if service.port else _served(prefect, started)):
        if not started.process() or time.monotonic() > deadline:
            why = "ended" if not started.process() else f"did not answer within {START_S:.0f} s"
            lines = log(root, service.name).read_text(encoding="utf-8", errors="replace").splitlines()[-TAIL:]
            raise RuntimeError(f"{service.name} {why}; the end of {log(root, service.name)}:\n" + "\n".join(lines))
        time.sleep(0.2)


def answers(number: int, path: str) -> bool:
    """Whether a GET of `path` on this machine's port is answered with 200."""
    return _fetch(number, "GET", path) is not None


def _served(prefect: int, started: Started) -> bool:
    """Ready deployments that this very process registered: those of an earlier one have polled before it started."""
    text = _fetch(prefect, "POST", "/api/deployments/filter")
    polled = [one["last_polled"] for one in json.loads(text or "[]") if one["status"] == "READY" and one["last_polled"]]
    return any(datetime.fromisoformat(time_).timestamp() > started.created for time_ in polled)


def _fetch(number: int, method: str, path: str) -> str | None:
    connection = http.client.HTTPConnection("127.0.0.1", number, timeout=5)
    try:
        connection.request(
            method, path, body="{}" if method == "POST" else None, headers={"Content-Type": "application/json"}
        )
        response = connection.getresponse()
        text = response.read().decode()
        return text if response.status == http.client.OK else None
    except (OSError, http.client.HTTPException):
        return None
    finally:
        connection.close()


def end(processes: Sequence[Started]) -> None:
    """SIGTERM to each, one after the other, then to what it leaves behind, then SIGKILL; GRACE_S for each."""
    for started in processes:
        session = started.session()
        tree = list({*session, *(child for one in session for child in _children(one))})
        # First the service alone: told twice, a run would break off while it tells Prefect and MLflow that it was stopped. A
        # run's stages have sessions of their own, and it ends them itself.
        for told in ([one for one in session if one.pid == started.pid], session):
            for one in told:
                _signal(one, "terminate")
            tree = psutil.wait_procs(tree, timeout=GRACE_S if told else 0)[1]
        for one in tree:
            _signal(one, "kill")
        psutil.wait_procs(tree, timeout=GRACE_S)


def _children(process: psutil.Process) -> list[psutil.Process]:
    try:
        return process.children(recursive=True)
    except psutil.NoSuchProcess:
        return []


def _signal(process: psutil.Process, how: str) -> None:
    with contextlib.suppress(psutil.NoSuchProcess):
        getattr(process, how)()
