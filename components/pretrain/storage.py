"""Whether all nodes of a Ray cluster see the same files: a checkpoint on one node's own disk is gone with the node."""

import secrets
from collections.abc import Callable, Sequence
from pathlib import Path

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from components.cluster.connection import PROJECT
from components.stage import remove

PATIENCE_S = 120.0
"""Until a node has started a process and looked; a disk that takes longer is as good as none."""
WAY_OUT = (
    "put the checkout with its work/ and data/ on storage that all nodes mount at this same path (NFS, Lustre, …; docs/cluster.md), or "
    "train on one node"
)


def check_storage(folder: Path, paths: Sequence[Path]) -> None:
    """Returns when every node that may get a worker can write into `folder` and sees what is here at `paths` and in our code.

    Asks the nodes of the connected cluster, unless it is this machine's one. ValueError names node, path and way out.
    """
    nodes = [node for node in ray.nodes() if node["Alive"]]
    here = ray.get_runtime_context().get_node_id()
    places = [node for node in nodes if node["Resources"].get("CPU", 0) and node["NodeID"] != here]
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
            found = look(path)
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
    answers: list[str] = ray.get(asked, timeout=PATIENCE_S)
    return answers


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
