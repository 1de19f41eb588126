"""Two nodes, one of which has its own disk where the other has the run's folder or its dataset: a mount nobody else sees."""

import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ..cluster.nodes import Nodes

pytestmark = pytest.mark.faults

DRIVER = """
import sys
from pathlib import Path
from components.cluster import Asked, connected
from components.pretrain.storage import check_storage

work, *paths = map(Path, sys.argv[1:])
with connected(Asked(1, 1, 0, "scale", "lower it", "lower it")):
    try:
        check_storage(work, paths)
    except ValueError as error:
        print(error)
"""


@pytest.fixture
def nodes() -> Iterator[Nodes]:
    """A head that trains nothing."""
    cluster = Nodes(0)
    yield cluster
    cluster.close()


@pytest.fixture
def work(tmp_path: Path) -> Path:
    (tmp_path / "work").mkdir()
    (tmp_path / "toy").mkdir()
    (tmp_path / "toy/card.json").write_text('{"content": "1"}')
    (tmp_path / "init.safetensors").write_bytes(b"weights")
    return tmp_path / "work"


def own(nodes: Nodes, script: str, *paths: Path) -> None:
    """Adds a node in a mount namespace of its own, after `script`, whose $1 … are `paths`."""
    before = ["unshare", "--mount", "sh", "-c"]
    if subprocess.run([*before, "mount -t tmpfs none /mnt"], capture_output=True).returncode:
        pytest.skip("no second disk: unshare --mount is not allowed here")
    places = " ".join(f"'{path}'" for path in paths)
    nodes.add(1, [*before, f'for place in {places}; do {script}; done && exec "$0" "$@"'])


def told(nodes: Nodes, work: Path) -> str:
    paths = [work, work.with_name("toy"), work.with_name("init.safetensors")]
    done = subprocess.run(
        [sys.executable, "-c", DRIVER, *map(str, paths)],
        env=nodes.environment,
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr
    assert not list(work.iterdir()), "the probe stays behind"
    return done.stdout.strip()


def test_nodes_that_share_everything_pass(nodes: Nodes, work: Path) -> None:
    nodes.add(1)
    assert told(nodes, work) == ""


def test_a_work_folder_on_a_disk_of_the_nodes_own_is_refused(nodes: Nodes, work: Path) -> None:
    own(nodes, 'mount -t tmpfs none "$place"', work)
    said = told(nodes, work)
    assert said.startswith(f"node {socket.gethostname()} (")
    assert f"does not see this run's folder {work}; put the checkout with its work/ and data/ on storage" in said


def test_another_dataset_of_that_name_is_refused(nodes: Nodes, work: Path) -> None:
    script = """mount -t tmpfs none "$place"; echo '{"content": "2"}' > "$place/card.json" """
    own(nodes, script, work.with_name("toy"))
    assert f"has something else at {work.with_name('toy')} than this machine" in told(nodes, work)


def test_a_folder_that_a_node_may_only_read_is_refused(nodes: Nodes, work: Path) -> None:
    own(nodes, 'mount --bind "$place" "$place" && mount -o remount,bind,ro "$place"', work)
    assert f"cannot use this run's folder {work}: Read-only file system" in told(nodes, work)
