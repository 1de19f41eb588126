"""Whether all nodes of a Ray cluster see the same files: a checkpoint on one node's own disk is gone with the node."""

import secrets
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from components.cluster.connection import PROJECT
from components.stage import remove

PATIENCE_S = 120.0
"""Until a node has started a process and looked; a disk that takes longer is as good as none."""
GONE_S, POLL_S = 30.0, 0.5
"""Until Ray counts a node as gone that has gone, and how often to look."""
WAY_OUT = (
    "put the checkout with its work/ and data/ on storage that all nodes mount at this same path (NFS, Lustre, …; docs/cluster.md), or "
    "train on one node"
)


def check_storage(folder: Path, paths: Sequence[Path]) -> None:
    """Returns when every node that may get a worker can write into `folder` and sees what is here at `paths` and in our code.

    Asks the nodes of the connected cluster, unless it is this machine's one. ValueError names node, path and way out. Ray's own error
    where a node goes meanwhile, once Ray counts it as gone.
    """
    here = ray.get_runtime_context().get_node_id()
    places = [node for node in _alive() if node["Resources"].get("CPU", 0) and node["NodeID"] != here]
    if not places:
        return
    look = _looker()
    wanted = [*paths, PROJECT / "components"]
    expected = [(str(path), look(str(path))) for path in wanted]
    probe = folder / f".seen-{secrets.token_hex(8)}"
    probe.mkdir()
    try:
        (probe / "driver").write_text(probe.name, encoding="utf-8")
        for node, found in zip(places, _ask(look, probe, expected, places), strict=True):
            name = f"node {node['NodeManagerHostname']} ({node['NodeManagerAddress']})"
            if found:
                raise ValueError(f"{name} {found}; {WAY_OUT}")
            if not (probe / node["NodeID"]).is_file():
                raise ValueError(f"what {name} writes into {folder} does not arrive here; {WAY_OUT}")
    finally:
        remove(probe)


def _alive() -> list[Any]:
    return [node for node in ray.nodes() if node["Alive"]]


def _ask(
    look: Callable[[str], str], probe: Path, expected: Sequence[tuple[str, str]], nodes: Sequence[dict[str, str]]
) -> list[str]:
    """What is wrong at each node, in words; '' where nothing is. A task needs no code of ours there, which may be what is missing."""

    def task(folder: str, name: str, node: str) -> str:
        from pathlib import Path

        try:
            there = Path(folder, "driver")
            if not there.is_file() or there.read_text(encoding="utf-8") != name:
                return f"does not see this run's folder {there.parents[1]}"
            Path(folder, node).touch()
        except OSError as error:
            return f"cannot use this run's folder {Path(folder).parent}: {error.strerror}"
        for path, content in expected:
            try:
                found = look(path)
            except OSError as error:
                return f"cannot read {path}: {error.strerror}"
            if found != content:
                return f"does not see {path}" if not found else f"has something else at {path} than this machine"
        return ""

    asked = [
        ray.remote(task)
        .options(
            num_cpus=0, max_retries=0, scheduling_strategy=NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
        )
        .remote(str(probe), probe.name, node["NodeID"])
        for node in nodes
    ]
    _, late = ray.wait(asked, num_returns=len(asked), timeout=PATIENCE_S)
    return [
        f"did not answer within {PATIENCE_S:.0f} s; its disks may stand still" if each in late else _answer(each, node)
        for each, node in zip(asked, nodes, strict=True)
    ]


def _answer(asked: Any, node: dict[str, str]) -> str:
    try:
        return str(ray.get(asked))
    except RayError:
        deadline = time.monotonic() + GONE_S
        while time.monotonic() < deadline and node["NodeID"] in [each["NodeID"] for each in _alive()]:
            time.sleep(POLL_S)  # or the next try would find the same node, and no room beside it
        raise


def _looker() -> Callable[[str], str]:
    """A function of a path that says in a hash what is there, '' where nothing is. Made here, so that Ray sends it whole.

    A file counts by its length and first MiB, a prepared dataset by its card, another folder by its Python files.
    """

    def look(path: str) -> str:
        import hashlib
        from pathlib import Path

        place, seen = Path(path), hashlib.sha256()
        if not place.exists():
            return ""
        card = place / "card.json"
        chosen = [place] if place.is_file() else [card] if card.is_file() else sorted(place.rglob("*.py"))
        for file in chosen:
            with file.open("rb") as content:
                seen.update(f"{file.relative_to(place)} {file.stat().st_size}\n".encode() + content.read(2**20))
        return seen.hexdigest()

    return look
