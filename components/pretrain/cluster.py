"""What pretraining asks of Ray: workers of one size, each on one node."""

import os
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from ray.train import ScalingConfig

from components.cluster import Asked, connected, never
from components.pretrain.training_params import Scale

os.environ.setdefault("RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S", "300")  # importing torch takes long on a busy disk
# The controller takes one report at each poll; at Ray's 2 s, training that logs more often stands still in between.
os.environ.setdefault("RAY_TRAIN_HEALTH_CHECK_INTERVAL_S", "0.2")


def asked(scale: Scale) -> Asked:
    """What `scale` wants of a cluster."""
    return Asked(
        workers=scale.workers,
        cpus=scale.cpus_per_worker,
        gpus=float(scale.device == "gpu"),
        section="scale",
        fewer_cpus="lower scale.workers or scale.cpus_per_worker",
        fewer_gpus="lower scale.workers or set scale.device to cpu",
    )


def cluster(scale: Scale, stopping: Callable[[], bool] = never) -> AbstractContextManager[None]:
    """The Ray cluster at RAY_ADDRESS, else one on this machine for the time of the stage. Checks its resources first.

    `stopping` ends the wait for a busy cluster; look at it inside the block.
    """
    return connected(asked(scale), stopping)


def scaling(scale: Scale) -> Any:
    """What each worker gets."""
    return ScalingConfig(
        num_workers=scale.workers, use_gpu=scale.device == "gpu", resources_per_worker=asked(scale).each()
    )
