"""Connected to Ray for the time of a stage: to the cluster at RAY_ADDRESS, or to one of its own on this machine."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import ray
from ray._private import ray_constants, services
from ray._private.authentication import authentication_token_setup

from components import progress, tracking
from components.cluster import address, places

PROJECT = Path(__file__).parents[2]
BUSY_S = 600.0
"""How long a cluster may be full of others' work when a stage starts."""
DASHBOARD = "Ray's dashboard: "
"""Begins the line that flows show as a link."""


@contextmanager
def connected(asked: places.Asked, stopping: Callable[[], bool] = places.never) -> Iterator[None]:
    """Ray, with room for `asked`, unless `stopping` ended the wait for others' work.

    ValueError at once where there is no cluster at RAY_ADDRESS, it lets nobody in or is too small.
    """
    there = address.given()
    _choose()
    if there:
        address.check(there)
        dashboard = ray.init(address="auto", log_to_driver=False, logging_level="warning").dashboard_url
    else:
        dashboard = ""
        with _offline():
            ray.init(
                address="local",
                num_cpus=os.cpu_count(),
                include_dashboard=False,
                log_to_driver=False,
                logging_level="warning",
                object_store_memory=200 * 2**20,  # nothing large passes through it
            )
    try:
        places.check(asked)
        if there:
            places.wait_for(asked, BUSY_S, stopping)
        if dashboard:
            _link(dashboard)
        yield
    finally:
        ray.shutdown()


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
    server, others, resolver = (
        services.start_api_server,
        ray_constants.ENABLE_RAY_CLUSTER,
        os.environ.get("RES_OPTIONS"),
    )
    services.start_api_server = lambda *_, **__: (None, None)  # as Ray has it when that process doesn't start
    ray_constants.ENABLE_RAY_CLUSTER = False  # listen on 127.0.0.1, as Ray does on macOS
    os.environ["RES_OPTIONS"] = "attempts:0"  # inherited by the workers
    try:
        yield
    finally:
        services.start_api_server, ray_constants.ENABLE_RAY_CLUSTER = server, others
        if resolver is None:
            del os.environ["RES_OPTIONS"]
        else:
            os.environ["RES_OPTIONS"] = resolver
