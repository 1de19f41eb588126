"""Connected to Ray for the time of a stage: to the cluster at RAY_ADDRESS, or to one of its own on this machine."""

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import ray
from ray._private import ray_constants, services
from ray._private.authentication import authentication_token_setup
from ray._private.node import Node

from components import progress, tracking
from components.cluster import address, places

PROJECT = Path(__file__).parents[2]
BUSY_S = 600.0
"""How long a cluster may be full of others' work when a stage starts."""
UNREAD = {
    "RAY_enable_metrics_collection": "0",
    "RAY_task_events_report_interval_ms": "0",
    "RAY_TRAIN_METRICS_ENABLED": "0",
    "RAY_TRAIN_ENABLE_PREEMPTION_WATCHER": "0",
}
"""Off in a Ray of one stage's own: figures that only a dashboard reads, and the watch for machines that a cloud takes away. They and
the copying of workers' logs to a driver that prints none would take their time from workers that use every core."""
DASHBOARD = "Ray's dashboard: "
"""Begins the line that flows show as a link."""


@contextmanager
def connected(asked: places.Asked, stopping: Callable[[], bool] = places.never) -> Iterator[None]:
    """Ray, with room for `asked`, unless `stopping` ended the wait for others' work.

    ValueError at once where there is no cluster at RAY_ADDRESS, it lets nobody in or is too small.
    """
    there = address.given()
    _choose()
    with _environment({} if there else {name: value for name, value in UNREAD.items() if name not in os.environ}):
        dashboard = _join(there) if there else _start()
        try:
            places.check(asked)
            if there:
                places.wait_for(asked, BUSY_S, stopping)
            if dashboard:
                _link(dashboard)
            yield
        finally:
            ray.shutdown()


def _join(there: str) -> str:
    address.check(there)
    return ray.init(address="auto", log_to_driver=False, logging_level="warning").dashboard_url or ""


def _start() -> str:
    with _offline():
        ray.init(
            address="local",
            num_cpus=os.cpu_count(),
            include_dashboard=False,
            log_to_driver=False,
            logging_level="warning",
            object_store_memory=200 * 2**20,  # nothing large passes through it
        )
    return ""


def _choose() -> None:
    """Ray's switches that nobody has set. Two of them Ray reads when it is imported, so it is told of them as well."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    if "RAY_ENABLE_UV_RUN_RUNTIME_ENV" not in os.environ:  # under `uv run` each worker would build an environment first
        os.environ["RAY_ENABLE_UV_RUN_RUNTIME_ENV"] = "0"
        ray_constants.RAY_ENABLE_UV_RUN_RUNTIME_ENV = False
    # Whoever reaches a cluster without a token runs code in it. By itself Ray has one only for clusters that it starts.
    if authentication_token_setup.AUTH_MODE_ENV_VAR not in os.environ:
        authentication_token_setup._enable_token_auth()


def code() -> dict[str, Any]:
    """Workers of a cluster import the code of this checkout; those started here inherit the driver's path anyway."""
    return {"env_vars": {"PYTHONPATH": str(PROJECT)}} if address.given() else {}


def _link(dashboard: str) -> None:
    """Where a person sees the cluster at work, in the stage's output and in MLflow."""
    link = dashboard if "://" in dashboard else f"http://{dashboard}"
    progress.show(f"{DASHBOARD}{link}")
    tracking.log_tags({"ray.dashboard": link})


@contextmanager
def _offline() -> Iterator[None]:
    """A cluster started inside asks nothing of other machines (tests/flows/test_offline.py counts the packets).

    Without a dashboard, Ray's API server only reports usage, and asks the clouds' metadata addresses even when that is off (2.60,
    usage_stats_head.py). Workers' torch looks their own address up backwards, 10 s where no nameserver answers.
    """
    server, others, logs = services.start_api_server, ray_constants.ENABLE_RAY_CLUSTER, Node.start_log_monitor
    services.start_api_server = lambda *_, **__: (None, None)  # as Ray has it when that process doesn't start
    ray_constants.ENABLE_RAY_CLUSTER = False  # listen on 127.0.0.1, as Ray does on macOS
    Node.start_log_monitor = lambda _: None  # it would bring workers' lines to a driver that prints none
    try:
        with _environment({"RES_OPTIONS": "attempts:0"}):  # inherited by the workers
            yield
    finally:
        services.start_api_server, ray_constants.ENABLE_RAY_CLUSTER, Node.start_log_monitor = server, others, logs


@contextmanager
def _environment(values: Mapping[str, str]) -> Iterator[None]:
    """In the environment for the time of the block."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
