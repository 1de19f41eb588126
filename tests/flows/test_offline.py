"""No connection attempt leaves this machine: whole runs and servers where the only way out counts what takes it.

The environment is made from nothing, so that no switch of this machine, of pytest or of CI turns a phone-home off, and
everything runs at a terminal for the first time in its life, which is when Prefect tells its makers.
"""

import json
import os
import pty
import shutil
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

PROJECT = Path(__file__).parents[2]
WITNESS = Path(__file__).with_name("witness.py")
VISIT = Path(__file__).with_name("visit.py")
CLOSED = ["--net", "--pid", "--fork", "--kill-child", "--mount", "--mount-proc"]
Witnessed = Callable[..., dict[str, Any]]

SENT = "import socket; socket.socket(socket.AF_INET{}, socket.SOCK_DGRAM).sendto(b'x', ('{}', 9))"
CALLED = "import socket; s = socket.socket(); s.settimeout(0.1); s.connect_ex(('203.0.113.9', 443))"
ASKED = """
import socket, sys
query = bytes(12) + b"\\7example\\3org\\0"
socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(query, (sys.argv[1], 53))
"""
BY_A_DAEMON = f"""
import os, time
if os.fork() == 0:
    while os.getppid() != 1:
        time.sleep(0.01)
    {SENT.format("", "203.0.113.9")}
"""
TO_ITSELF = """
import socket
for address in ("127.0.0.1", "192.0.2.2"):
    with socket.create_server((address, 0)) as server:
        socket.create_connection(server.getsockname()).close()
"""


@cache
def unshare() -> list[str]:
    """The command that makes a closed network; skips the test where this machine lets us have none."""
    missing = [name for name in ("unshare", "ip", "mount", "make") if shutil.which(name) is None]
    if missing:
        pytest.skip(f"no closed network: {', '.join(missing)} not installed")
    trial = "ip link set lo up && ip link add out type veth peer name far"
    for rights in ([], ["--map-root-user"]):
        command = ["unshare", *rights, *CLOSED]
        tried = subprocess.run([*command, "sh", "-c", trial], capture_output=True, text=True)
        if tried.returncode == 0:
            return command
    pytest.skip(f"no closed network: {tried.stderr.strip()}")


def environment(home: Path) -> dict[str, str]:
    """What a person has who just got this machine."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    git = {
        name: value for name, value in os.environ.items() if name.startswith("GIT_")
    }  # who commits in a toy checkout
    return git | {"PATH": path, "HOME": str(home), "LANG": "C.UTF-8", "TERM": "xterm"}


@pytest.fixture
def witnessed(tmp_path: Path) -> Witnessed:
    """Runs `python WORDS` from a terminal in a closed network; what the witness reports and `output`, the screen's text."""
    home, report = tmp_path / "home", tmp_path / "witness.json"
    home.mkdir()

    def run(*words: str | Path, folder: Path = tmp_path, limit_s: int = 540) -> dict[str, Any]:
        command = [
            *unshare(),
            sys.executable,
            str(WITNESS),
            str(report),
            str(limit_s),
            sys.executable,
            *map(str, words),
        ]
        screen, terminal = pty.openpty()
        ends = {"stdin": terminal, "stdout": terminal, "stderr": terminal}
        with subprocess.Popen(command, cwd=folder, env=environment(home), **ends) as process:
            os.close(terminal)
            output = _read(screen)
        assert process.returncode == 0, output
        return json.loads(report.read_text()) | {"output": output}

    return run


def _read(screen: int) -> str:
    """Everything that is written until the last one who could write has gone."""
    text = b""
    with os.fdopen(screen, "rb", buffering=0) as file:
        try:
            while chunk := file.read(65536):
                text += chunk
        except OSError:  # how a terminal says so
            pass
    return text.decode(errors="replace")


def stayed(seen: dict[str, Any]) -> None:
    assert seen["packets"] == 0, f"{seen['packets']} packets left: {'; '.join(seen['traces'])}\n{seen['output']}"
    assert not seen["running"], f"still running: {seen['running']}\n{seen['output']}"
    assert seen["status"] == 0, seen["output"]


@pytest.mark.parametrize(
    ("words", "trace"),
    [
        (["-c", SENT.format("", "203.0.113.9")], "UDP to 203.0.113.9 port 9"),
        (["-c", SENT.format("6", "2001:db8:1::9")], "UDP to 2001:db8:1::9 port 9"),
        (["-c", CALLED], "TCP to 203.0.113.9 port 443"),
        (["-c", ASKED, "203.0.113.53"], "UDP to 203.0.113.53 port 53, lookup of example.org"),
        (["-c", ASKED, "127.0.0.53"], "lookup of example.org at this machine"),
        (["-c", BY_A_DAEMON], "UDP to 203.0.113.9 port 9"),
    ],
)
def test_the_witness_sees_what_leaves(witnessed: Witnessed, words: list[str], trace: str) -> None:
    if "2001:" in trace and not Path("/proc/net/if_inet6").exists():
        pytest.skip("this kernel has no IPv6")
    seen = witnessed(*words)
    assert seen["packets"] == 1 and seen["traces"] == [trace], seen


def test_what_a_machine_tells_itself_has_not_left(witnessed: Witnessed) -> None:
    stayed(witnessed("-c", TO_ITSELF))


@pytest.mark.faults
@pytest.mark.timeout(900)  # a demo and two stages of it again, beside other tests
def test_nothing_leaves_during_a_whole_run_and_dvc_alone(witnessed: Witnessed, checkout: Path) -> None:
    run = witnessed("-m", "flows.demo", "--root", checkout, folder=PROJECT)
    stayed(run)
    (tree,) = (checkout / "workspaces").glob("*/tree")
    assert (tree / "report.md").exists(), run["output"]
    again = witnessed("-m", "dvc", "repro", "--force", "--single-item", "pretrain", "report", folder=tree)
    stayed(again)
    assert again["output"].count("Running stage") == 2, again["output"]


@pytest.mark.faults
def test_nothing_leaves_from_the_servers(witnessed: Witnessed, tmp_path: Path) -> None:
    stayed(witnessed(VISIT, PROJECT, tmp_path, folder=PROJECT))
