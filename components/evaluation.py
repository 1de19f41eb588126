"""What every evaluation has in common: where it runs, and the protocol that its scores belong to.

A score without its protocol compares with nothing: MAE's ViT-B has 37.9, 50.9 and 57.5 for J&F in three publications. So each
evaluation writes, beside its metrics, the settings and the data that decided them, with a hash of both; scores of one hash
differ by encoder and chance alone.
"""

import platform
from collections.abc import Collection, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from components.images import AS_THEY_CAME
from components.stage import Metrics, Params, digest, write_json

LIBRARIES = ("torch", "torchvision", "timm", "numpy", "scipy", "scikit-learn", "pillow")
"""Those that a score can depend on; DAVIS scores of torch 1.7 and 1.8 differ (dino#94)."""
DIGITS = 12


class EvaluationParams(Params):
    """What every evaluation may be told."""

    device: Literal["cpu", "gpu"] = Field(
        description="Where the encoder runs: 'cpu', or 'gpu' for the first CUDA device. It changes the time taken, and a score by "
        "rounding at most; the protocol hash ignores it."
    )


class Scores(Metrics):
    """Scores with the protocol they were measured by."""

    protocol: str = Field(
        description="hash of settings and data, 12 hex digits; scores of different hashes do not compare"
    )


def settings(params: Params, without: Collection[str] = ()) -> dict[str, Any]:
    """The values of `params` that decide what a score means: all but device, seed and the fields named in `without`."""
    return {key: value for key, value in params.model_dump().items() if key not in {"device", "seed", *without}}


def data(card: Mapping[str, Any], used: Mapping[str, int]) -> dict[str, Any]:
    """What was measured on: a prepared dataset by its `card`, with the number of rows in use of each split."""
    splits = {split: {"rows": card["splits"][split]["count"], "used": count} for split, count in used.items()}
    facts = {key: card[key] for key in ("name", "kind", "format", "content")}
    return {**facts, "stored": card.get("stored", AS_THEY_CAME), "classes": len(card["classes"]), "splits": splits}


def write_protocol(
    path: Path, stage: str, version_: int, decided_by: Mapping[str, Any], measured_on: Mapping[str, Any]
) -> str:
    """Writes the protocol of one evaluation as JSON and returns its hash, for `Scores.protocol`.

    `version_` is a number that the stage raises when its code begins to measure something else; `decided_by` comes from
    `settings`, `measured_on` from `data`. The hash leaves out the dataset's name and layout, which change no image, how
    it is stored, which its content says, and the environment, which stands beside it.
    """
    identity = {key: value for key, value in measured_on.items() if key not in ("name", "format", "stored")}
    mark = digest([stage, version_, dict(decided_by), identity])[:DIGITS]
    environment = {"python": platform.python_version(), **{name: version(name) for name in LIBRARIES}}
    record = {"protocol": mark, "stage": stage, "version": version_, "settings": dict(decided_by)}
    write_json(path, {**record, "data": dict(measured_on), "environment": environment})
    return mark
