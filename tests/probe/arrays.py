"""Features that come from arrays, for tests of what reads them."""

from collections.abc import Mapping

import numpy as np
import torch

from components.probe.extraction import Features
from components.probe.params import HeadParams, ProbeParams
from components.probe.sources import Cached

CPU = torch.device("cpu")


def features(sets: Mapping[str, np.ndarray]) -> Features:
    """The feature sets side by side."""
    ends = np.cumsum([0, *(values.shape[1] for values in sets.values())]).tolist()
    columns = {name: slice(*ends[i : i + 2]) for i, name in enumerate(sets)}
    return Features(np.concatenate(list(sets.values()), axis=1), columns)


def cached(sets: Mapping[str, np.ndarray], labels: np.ndarray, seed: int = 0) -> Cached:
    return Cached([features(sets)], np.arange(len(labels)), labels, seed, CPU)


def heads(**changes: object) -> HeadParams:
    values: dict[str, object] = {
        "batch_size": 64,
        "optimiser": "sgd",
        "learning_rates": [0.05, 2.0],
        "weight_decays": [0.0, 0.03],
        "batch_norm": "both",
        "schedule": "cosine",
        "milestones": [],
    }
    return HeadParams.model_validate(values | changes)


def stage(profile: str, **changes: object) -> ProbeParams:
    values: dict[str, object] = {"device": "cpu", "seed": 0, "profile": profile, "holdout_fraction": 0.25, "layers": 4}
    return ProbeParams.model_validate(
        values | {"encoding_batch_size": 32, "workers": 1, "cpus_per_worker": 1} | changes
    )
