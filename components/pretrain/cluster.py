"""The Ray cluster that trains: the one at RAY_ADDRESS, or one on this machine for the time of the stage."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
os.environ.setdefault("RAY_ENABLE_UV_RUN_RUNTIME_ENV", "0")
os.environ.setdefault("RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S", "300")  # importing torch takes long on a busy disk
# The controller takes one report at each poll; at Ray's 2 s, training that logs more often stands still in between.
os.environ.setdefault("RAY_TRAIN_HEALTH_CHECK_INTERVAL_S", "0.2")

import ray  # noqa: E402 - reads its environment when imported
from ray._private import services  # noqa: E402
from ray.train import ScalingConfig  # noqa: E402

from components.pretrain.training_params import Scale  # noqa: E402

PROJECT = Path(__file__).parents[2]


@contextmanager
def cluster(scale: Scale) -> Iterator[None]:
    """The Ray cluster at RAY_ADDRESS, else one on this machine for the time of the stage. Checks its resources first."""
    if os.environ.get("RAY_ADDRESS"):
        ray.init(address="auto", log_to_driver=False, logging_level="warning")
    else:
        with _offline():
            ray.init(
                num_cpus=os.cpu_count(),
                include_dashboard=False,
                log_to_driver=False,
                logging_level="warning",
                object_store_memory=200 * 2**20,  # nothing large passes through it
            )
    try:
        total = ray.cluster_resources()
        asked = {"CPU": scale.workers * scale.cpus_per_worker, "GPU": scale.workers * (scale.device == "gpu")}
        for kind, count in asked.items():
            if count > total.get(kind, 0):
                lower = "scale.cpus_per_worker" if kind == "CPU" else "set scale.device to cpu"
                raise ValueError(
                    f"scale asks for {count} {kind}s ({scale.workers} workers), the Ray cluster has {total.get(kind, 0):.0f}; "
                    f"lower scale.workers or {lower}, or set RAY_ADDRESS to a larger cluster"
                )
        yield
    finally:
        ray.shutdown()


@contextmanager
def _offline() -> Iterator[None]:
    """A cluster started inside asks nothing of other machines (tests/flows/test_offline.py counts the packets).

    Without a dashboard, Ray's API server only reports usage, and asks the clouds' metadata addresses even when that is off (2.60,
    usage_stats_head.py). Workers' torch looks their own address up backwards, 10 s where no nameserver answers.
    """
    server, resolver = services.start_api_server, os.environ.get("RES_OPTIONS")
    services.start_api_server = lambda *_, **__: (None, None)  # as Ray has it when that process doesn't start
    os.environ["RES_OPTIONS"] = "attempts:0"  # inherited by the workers
    try:
        yield
    finally:
        services.start_api_server = server
        if resolver is None:
            del os.environ["RES_OPTIONS"]
        else:
            os.environ["RES_OPTIONS"] = resolver


def code() -> dict[str, Any]:
    """Workers of a cluster import the code of this checkout; those started here inherit the driver's path anyway."""
    return {"env_vars": {"PYTHONPATH": str(PROJECT)}} if os.environ.get("RAY_ADDRESS") else {}


def scaling(scale: Scale) -> Any:
    """What each worker gets."""
    gpu = scale.device == "gpu"
    resources = {"CPU": scale.cpus_per_worker, **({"GPU": 1} if gpu else {})}
    return ScalingConfig(num_workers=scale.workers, use_gpu=gpu, resources_per_worker=resources)
