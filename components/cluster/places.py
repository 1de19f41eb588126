"""What a Ray cluster can give: places for workers, each on one node."""

import math
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import ray
from ray._private.state import available_resources_per_node

from components import progress

POLL_S = 1.0
TELL_S = 30.0
QUIET_S = 3.0
"""Not told of, since a worker that has gone leaves its place a moment later."""


class Asked(NamedTuple):
    """What a stage wants at one time."""

    workers: int
    cpus: float
    """CPUs of each worker."""
    gpus: float
    """GPUs of each worker."""
    section: str
    """Where the params say so, as `scale`: the subject of messages."""
    fewer_cpus: str
    """What to do in the params when CPUs are short, as `lower scale.workers or scale.cpus_per_worker`."""
    fewer_gpus: str
    """The same for GPUs."""

    def each(self) -> dict[str, float]:
        """Resources of one worker, without those it needs none of."""
        return {kind: count for kind, count in (("GPU", self.gpus), ("CPU", self.cpus)) if count}

    def way_out(self, kind: str) -> str:
        """What to do when `kind` (CPU or GPU) is short."""
        return f"{self.fewer_cpus if kind == 'CPU' else self.fewer_gpus}, or set RAY_ADDRESS to a larger cluster"


def check(asked: Asked) -> None:
    """ValueError where the connected cluster cannot hold all workers, even when nobody else uses it."""
    if short := shortage(asked, totals()):
        raise ValueError(short)


def totals() -> list[dict[str, float]]:
    """Resources of each node that is alive."""
    return [node["Resources"] for node in ray.nodes() if node["Alive"]]


def shortage(asked: Asked, nodes: Iterable[Mapping[str, float]]) -> str:
    """Why `nodes` cannot hold all workers, and the way out; '' where they can."""
    nodes = list(nodes)
    for kind, each in asked.each().items():
        wanted, there = asked.workers * each, sum(node.get(kind, 0) for node in nodes)
        if wanted > there:
            return (
                f"{asked.section} asks for {wanted:g} {kind}s ({asked.workers} workers), the Ray cluster has {there:g}; "
                f"{asked.way_out(kind)}"
            )
    places = sum(min(math.floor(node.get(kind, 0) / each) for kind, each in asked.each().items()) for node in nodes)
    if places < asked.workers:
        sizes = ", ".join(" and ".join(f"{node.get(kind, 0):g} {kind}s" for kind in asked.each()) for node in nodes)
        needs = " and ".join(f"{count:g} {kind}s" for kind, count in asked.each().items())
        return (
            f"{asked.section} asks for {asked.workers} workers with {needs} each, all of one node; the Ray cluster's nodes have "
            f"{sizes}: room for {places}; {asked.way_out('CPU')}"
        )
    return ""


def never() -> bool:
    """For those whom no signal asks to stop."""
    return False


def wait_for(asked: Asked, patience_s: float, stopping: Callable[[], bool] = never) -> bool:
    """Returns once the connected cluster has room for all workers; False when `stopping` says so before.

    Room is what nobody uses now. Shows every half minute what is missing: nodes that have gone, or are full of others' work.
    ValueError when there is no room after `patience_s`.
    """
    start = time.monotonic()
    told = start - TELL_S + QUIET_S
    while missing := _missing(asked):
        now = time.monotonic()
        if stopping():
            return False
        if now - start >= patience_s:
            raise ValueError(f"{missing}; waited {patience_s:.0f} s for it; {asked.way_out('CPU')}")
        if now - told >= TELL_S:
            told = now
            progress.show(f"{missing}; waiting, for {patience_s - (now - start):.0f} s more")
        time.sleep(POLL_S)
    return True


def _missing(asked: Asked) -> str:
    """What of the cluster is not there now, in words; '' when all workers find a place."""
    alive = totals()
    free = available_resources_per_node().values()
    if not shortage(asked, free):
        return ""
    wanted = {kind: asked.workers * each for kind, each in asked.each().items()}
    has = " and ".join(f"{_sum(alive, kind):g} {kind}s ({_sum(free, kind):g} free)" for kind in wanted)
    return (
        f"{asked.section} asks for {' and '.join(f'{count:g} {kind}s' for kind, count in wanted.items())} "
        f"({asked.workers} workers), the Ray cluster of {len(alive)} nodes has {has}"
    )


def _sum(nodes: Iterable[Mapping[str, Any]], kind: str) -> float:
    return sum(float(node.get(kind, 0)) for node in nodes)
