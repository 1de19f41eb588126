"""The stage graph as dvc.yaml states it. DVC resolves it; nothing here repeats or changes it."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dvc.exceptions import DvcException
from dvc.repo import Repo

from components.stage import read_yaml


@dataclass(frozen=True)
class Node:
    """One stage of dvc.yaml, a member of a `foreach` group being a stage of its own (`prepare@shapes`)."""

    name: str
    upstreams: tuple[str, ...]
    sources: tuple[Path, ...]
    """Absolute paths of what it reads and no stage makes."""
    outs: tuple[Path, ...]
    """Absolute paths of what it makes."""
    retries: int
    """From `meta: {retries: …}` of the stage in dvc.yaml; 0 where it says nothing. DVC's cache ignores `meta`."""
    timeout_s: float
    """From `meta: {timeout_s: …}`, seconds; 0 means no limit."""
    gpus: int
    """GPUs it takes while it runs: `meta: {gpu: …}` where `meta: {device: …}` is `gpu` or not said; else 0."""

    @property
    def word(self) -> str:
        """The name without the member: what its params file, component and tests are called."""
        return self.name.partition("@")[0]


def words(root: Path) -> list[str]:
    """The stage words of `root`/dvc.yaml in their order there, read without resolving any parameter."""
    stages = read_yaml(root / "dvc.yaml").get("stages")
    if not isinstance(stages, dict):
        raise ValueError(f"{root / 'dvc.yaml'} has no mapping `stages`; it must name every stage of the pipeline there")
    return list(stages)


def read(root: Path, targets: Sequence[str] = ()) -> list[Node]:
    """The stages in an order that puts each after its upstreams, ties as in dvc.yaml.

    `targets` are stage names or whole `foreach` groups; they bring their upstreams along, and none means every stage.
    Raises ValueError for a name that is no stage and for a dvc.yaml that DVC refuses.
    """
    try:
        with Repo(str(root)) as repo:
            index = repo.index
            stages = [stage for stage in index.stages if stage.cmd and stage.path_in_repo == "dvc.yaml"]
            edges = {stage: set(index.graph.successors(stage)) for stage in stages}
    except DvcException as error:
        causes = [str(error), str(error.__cause__)] if error.__cause__ else [str(error)]
        raise ValueError(f"DVC cannot read the stages of {root / 'dvc.yaml'}: {': '.join(causes)}") from error
    made = {out.fs_path for stage in stages for out in stage.outs}
    nodes = [_node(stage, [up for up in stages if up in edges[stage]], made) for stage in stages]
    return _select(_ordered(nodes), targets)


def _node(stage: Any, upstreams: list[Any], made: set[str]) -> Node:
    paths = [dep.fs_path for dep in stage.deps if type(dep).__name__ != "ParamsDependency"]
    sources = [Path(path) for path in paths if not any(_overlap(Path(path), Path(out)) for out in made)]
    hints = _hints(stage)
    return Node(
        name=stage.name,
        upstreams=tuple(up.name for up in upstreams),
        sources=tuple(sources),
        outs=tuple(Path(out.fs_path) for out in stage.outs),
        retries=int(hints["retries"]),
        timeout_s=float(hints["timeout_s"]),
        gpus=int(hints["gpu"]) if hints["device"] == "gpu" else 0,
    )


def _hints(stage: Any) -> dict[str, Any]:
    """What `meta` says of how to run the stage. DVC fills in `${…}` from params, and its cache ignores all of it."""
    hints = {"retries": 0, "timeout_s": 0, "gpu": 0, "device": "gpu", **(stage.meta or {})}
    device = hints.pop("device")
    for hint, value in hints.items():
        if hint not in ("retries", "timeout_s", "gpu") or not isinstance(value, int | float) or value < 0:
            raise ValueError(
                f"dvc.yaml: stage {stage.name!r} has `meta: {{{hint}: {value!r}}}`; the hints are `retries`, `timeout_s` (seconds) and "
                "`gpu`, each a number of at least 0, and `device`, which is cpu or gpu"
            )
    if device not in ("cpu", "gpu"):
        raise ValueError(f"dvc.yaml: stage {stage.name!r} has `meta: {{device: {device!r}}}`; it must be cpu or gpu")
    return hints | {"device": device}


def _overlap(one: Path, other: Path) -> bool:
    return one.is_relative_to(other) or other.is_relative_to(one)


def _ordered(nodes: list[Node]) -> list[Node]:
    """Always the first node in the file whose upstreams have all come; DVC has refused cycles already."""
    ordered: list[Node] = []
    waiting = list(nodes)
    while waiting:
        done = {node.name for node in ordered}
        ordered.append(next(node for node in waiting if done.issuperset(node.upstreams)))
        waiting.remove(ordered[-1])
    return ordered


def _select(ordered: list[Node], targets: Iterable[str]) -> list[Node]:
    wanted: set[str] = set()
    for target in targets:
        matches = {node.name for node in ordered if target in (node.name, node.word)}
        if not matches:
            legal = ", ".join(dict.fromkeys(name for node in ordered for name in (node.word, node.name)))
            raise ValueError(f"target is {target!r}, which is no stage of dvc.yaml; the stages are: {legal}")
        wanted |= matches
    if not wanted:
        return ordered
    for node in reversed(ordered):
        if node.name in wanted:
            wanted.update(node.upstreams)
    return [node for node in ordered if node.name in wanted]
