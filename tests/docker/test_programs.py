"""The two programs of ours inside the image: what says that a container is healthy, and what the runner starts."""

import http.server
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "docker"

FAKE = """#!/bin/sh
trap 'echo "$(basename "$0") stopped" >> "$LINES"; exit 0' TERM
echo "$(basename "$0") $*" >> "$LINES"
{body}
while :; do sleep 0.05; done
"""
JOIN = 'mkdir -p "$RAY_TMPDIR/ray"; touch "$RAY_TMPDIR/ray/ray_current_cluster"\n'
BOTH = 'until [ "$(wc -l < "$LINES")" -ge 2 ]; do sleep 0.02; done\n'


@pytest.fixture
def server() -> Iterator[tuple[str, dict[str, tuple[int, bytes]]]]:
    """An address and what it answers by path; 404 elsewhere."""
    answers: dict[str, tuple[int, bytes]] = {}

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:  # noqa: N802 - the base class's name
            status, body = answers.get(self.path, (404, b""))
            self.send_response(status)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_POST = do_GET  # noqa: N815

        def log_message(self, *_: object) -> None:
            pass

    made = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=made.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{made.server_port}", answers
    made.shutdown()
    made.server_close()


def health(*checks: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(FOLDER / "health.py"), *checks]
    return subprocess.run(command, env=os.environ | environment, capture_output=True, text=True, timeout=60)


def test_an_address_is_healthy_when_it_answers_200(server: tuple[str, dict[str, tuple[int, bytes]]]) -> None:
    address, answers = server
    answers["/good"], answers["/ill"] = (200, b"true"), (503, b"")
    assert health(f"{address}/good").returncode == 0
    for path, said in (("/ill", "503"), ("/none", "404")):
        asked = health(f"{address}/good", address + path)
        assert asked.returncode == 1 and said in asked.stderr and path in asked.stderr
    assert health("http://127.0.0.1:1/").returncode == 1


@pytest.mark.parametrize(
    ("states", "status"), [([], 1), (["NOT_READY"], 1), (["NOT_READY", "READY"], 0)], ids=["none", "stale", "served"]
)
def test_deployments_are_healthy_while_one_is_served(
    server: tuple[str, dict[str, tuple[int, bytes]]], states: list[str], status: int
) -> None:
    address, answers = server
    answers["/api/deployments/filter"] = (200, json.dumps([{"status": state} for state in states]).encode())
    assert health("deployments", PREFECT_API_URL=f"{address}/api").returncode == status


def test_a_node_is_healthy_while_its_raylet_runs(tmp_path: Path) -> None:
    raylet = shutil.copy(shutil.which("sleep") or "/bin/sleep", tmp_path / "raylet")
    with subprocess.Popen([raylet, "60"]) as process:
        assert health("raylet").returncode == 0
        process.kill()


def test_no_check_is_a_mistake() -> None:
    assert health().returncode == 2


@pytest.fixture
def runner(tmp_path: Path) -> Iterator[Callable[[str, str], subprocess.Popen[str]]]:
    """Starts runner.sh with a `ray` and a `python` of ours, whose shell code may do more than wait."""
    started: list[subprocess.Popen[str]] = []

    def start(ray: str, python: str) -> subprocess.Popen[str]:
        for name, body in (("ray", ray), ("python", python)):
            (tmp_path / "bin").mkdir(exist_ok=True)
            (tmp_path / "bin" / name).write_text(FAKE.format(body=body))
            (tmp_path / "bin" / name).chmod(0o755)
        environment = os.environ | {
            "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}",
            "LINES": str(tmp_path / "lines"),
        }
        environment |= {"RAY_ADDRESS": "ray-head:6379", "RAY_OBJECT_STORE": "1000", "RAY_TMPDIR": str(tmp_path)}
        process = subprocess.Popen([str(FOLDER / "runner.sh")], env=environment, stderr=subprocess.PIPE, text=True)
        started.append(process)
        return process

    yield start
    for process in started:
        if process.poll() is None:
            process.terminate()
            process.wait(10)


def lines(folder: Path, count: int) -> list[str]:
    """The first `count` lines that the fakes have written, in order."""
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        text = (folder / "lines").read_text().splitlines() if (folder / "lines").exists() else []
        if len(text) >= count:
            return text
        time.sleep(0.02)
    raise AssertionError(f"only {text}")


def test_the_runner_is_a_node_without_cpus_beside_the_deployments(
    runner: Callable[[str, str], subprocess.Popen[str]], tmp_path: Path
) -> None:
    process = runner(JOIN, "")
    ray, python = lines(tmp_path, 2)
    assert ray.startswith("ray start --address=ray-head:6379 --num-cpus=0 --num-gpus=0 --object-store-memory=1000 ")
    assert python == "python -m flows.deploy"
    process.send_signal(signal.SIGTERM)
    assert process.wait(20) == 0
    assert lines(tmp_path, 4)[2:] == ["python stopped", "ray stopped"], "a stage saves its state while it has a node"


@pytest.mark.parametrize(
    ("ray", "python", "status", "said", "written"),
    [
        (JOIN + BOTH + "exit 7", "", 7, "the Ray node ended with status 7", "python stopped"),
        (JOIN, "exit 3", 3, "the deployments ended with status 3", "ray stopped"),
        (JOIN, "exit 0", 1, "the deployments ended with status 0", "ray stopped"),
    ],
)
def test_when_one_ends_so_does_the_other(
    runner: Callable[[str, str], subprocess.Popen[str]],
    tmp_path: Path,
    ray: str,
    python: str,
    status: int,
    said: str,
    written: str,
) -> None:
    process = runner(ray, python)
    assert process.wait(20) == status
    assert process.stderr and said in process.stderr.read()
    assert written in lines(tmp_path, 3)


def test_nothing_is_served_before_the_node_has_joined(
    runner: Callable[[str, str], subprocess.Popen[str]], tmp_path: Path
) -> None:
    (tmp_path / "ray").mkdir()
    (tmp_path / "ray" / "ray_current_cluster").touch()  # of an earlier start
    process = runner("sleep 0.5; exit 5", "")
    assert process.wait(20) == 5
    assert [line.split()[0] for line in lines(tmp_path, 1)] == ["ray"]
    assert process.stderr and "the Ray node ended with status 5" in process.stderr.read()


def test_it_can_be_stopped_before_the_node_has_joined(
    runner: Callable[[str, str], subprocess.Popen[str]], tmp_path: Path
) -> None:
    process = runner("", "")
    lines(tmp_path, 1)
    process.send_signal(signal.SIGTERM)
    assert process.wait(20) == 0
    assert lines(tmp_path, 2)[1:] == ["ray stopped"]
