"""RAY_ADDRESS, asked in seconds: nobody there, somebody else, other tokens, other versions, other machines."""

import http.server
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from components.cluster import address

from .nodes import Nodes

DRIVER = """
import sys, time
import ray
from components.cluster import Asked, connected

if len(sys.argv) > 1:
    ray.__version__ = sys.argv[1]
start = time.monotonic()
try:
    with connected(Asked(2, 1, 0, "scale", "lower it", "lower it")):
        print("connected", sorted(node["Alive"] for node in ray.nodes()))
except ValueError as error:
    print("error:", error)
print(f"{time.monotonic() - start:.1f} s")
"""


@pytest.fixture(autouse=True)
def _tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_AUTH_MODE", "token")


@pytest.fixture
def web_server() -> Iterator[str]:
    with http.server.HTTPServer(("127.0.0.1", 0), http.server.SimpleHTTPRequestHandler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.mark.parametrize(("value", "words"), [
    ("ray://head:10001", "RAY_ADDRESS is ray://head:10001, an address for Ray Client, .* give HOST:PORT of the head"),
    ("head", "RAY_ADDRESS is 'head'; give HOST:PORT of the head, auto, or nothing"),
])  # fmt: skip
def test_what_is_no_address_of_a_head_is_refused(value: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        address.check(value)


def test_nobody_there_is_said_at_once() -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        nobody = f"127.0.0.1:{closed.getsockname()[1]}"
    start = time.monotonic()
    with pytest.raises(ValueError, match=f"RAY_ADDRESS is {nobody} and no Ray cluster answers there .*refused"):
        address.check(nobody)
    assert time.monotonic() - start < 5


def test_somebody_else_there_is_no_head(web_server: str) -> None:
    with pytest.raises(ValueError, match=f"RAY_ADDRESS is {web_server} and .*Ray"):
        address.check(web_server)


def test_local_is_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    for value in ("", "local", "head:6379"):
        monkeypatch.setenv("RAY_ADDRESS", value)
        found.append(address.given())
    assert found == ["", "", "head:6379"]


def told(nodes: Nodes, *words: str, before: tuple[str, ...] = (), **environment: str | None) -> str:
    """What a driver says that joins the cluster; all of it, so that Ray's own lines would be seen."""
    values = {name: value for name, value in (nodes.environment | environment).items() if value is not None}
    done = subprocess.run(
        [*before, sys.executable, "-c", DRIVER, *words], env=values, capture_output=True, text=True, timeout=120
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    line, seconds = done.stdout.strip().rsplit("\n", 1)
    assert line.count("\n") == 0, line
    assert line.startswith("connected") or float(seconds.split()[0]) < 10, done.stdout
    return line


@pytest.mark.faults
def test_who_has_the_token_joins(nodes: Nodes) -> None:
    assert told(nodes) == "connected [True]"
    assert told(nodes, RAY_AUTH_MODE=None) == "connected [True]"  # tokens are on where nobody says so


@pytest.mark.faults
def test_other_tokens_are_refused_in_one_line(nodes: Nodes, tmp_path: Path) -> None:
    way = "put the token its head was started with into"
    assert f"refuses our token; {way}" in told(nodes, RAY_AUTH_TOKEN_PATH=None, RAY_AUTH_TOKEN="0" * 64)
    assert f"there is no token to show there; {way}" in told(nodes, RAY_AUTH_TOKEN_PATH=None, HOME=str(tmp_path))
    assert f"RAY_AUTH_MODE is disabled: unset it, and {way}" in told(nodes, RAY_AUTH_MODE="disabled")


@pytest.mark.faults
def test_another_version_is_told(nodes: Nodes) -> None:
    assert "this process Ray 2.59.0 and Python" in told(nodes, "2.59.0")


@pytest.mark.faults
def test_a_driver_needs_a_node_beside_it(nodes: Nodes) -> None:
    if shutil.which("unshare") is None or subprocess.run(["unshare", "--pid", "--fork", "true"]).returncode:
        pytest.skip("no machine of its own: unshare --pid is not allowed here")
    alone = ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc")
    assert "whose 1 nodes run on other machines; a driver needs a node beside it: run `ray start" in told(
        nodes, before=alone
    )
