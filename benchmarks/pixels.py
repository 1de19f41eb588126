"""Linear heads, nearest neighbours and logistic regression on raw pixels: what the small-scale table's encoders must beat.

The same heads, grid, selection and seed as `linear_probe` has for an encoder; the features are an image's pixels, normalised as
for an encoder and averaged to at most 32×32, since nobody would take more for a linear layer.
"""

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch

from components.images import decoding
from components.images.transforms import direct_resize, normalise
from components.linear_probe.contract import LinearProbeParams
from components.probe.choice import Rows, accuracy, choose
from components.probe.dataset import Part, open_part
from components.probe.extraction import Features
from components.probe.heads import Task
from components.probe.logistic import sweep
from components.probe.neighbours import nearest
from components.probe.sources import Cached
from components.stage import validate

SIDE = 32
CPU = torch.device("cpu")


def scores_of_pixels(root: Path, recipe: dict[str, dict[str, Any]]) -> dict[str, float]:
    """Percent by the names that MLflow has for an encoder's scores, for each task of `recipe`."""
    params = validate(LinearProbeParams, recipe["linear_probe"], "linear_probe")
    assert isinstance(params, LinearProbeParams)
    scores: dict[str, float] = {}
    for name, task in params.tasks.items():
        folder = root / "data" / "prepared" / task.dataset
        train = open_part(folder, task.dataset, "images", task.train_split, task.train_limit)
        test = open_part(folder, task.dataset, "images", task.test_split, task.test_limit)
        seen, judged, labels, truth = pixels(train), pixels(test), train.labels(), test.labels()
        hold = (train.column("holdout") < params.holdout_fraction) & (params.profile == "clean")
        learn = Task(name, train.store.card["classes"], task.epochs)
        source = Cached([seen], np.flatnonzero(~hold), labels[~hold], params.seed, CPU)
        held = Rows(seen.where(hold), labels[hold]) if hold.any() else None
        with tempfile.TemporaryDirectory() as work:
            choice = choose(task.heads, learn, source, Rows(judged, truth), held, params.seed, CPU, Path(work))
        votes = nearest(seen.matrix, labels, judged.matrix, params.knn_k, len(learn.classes), CPU)
        where = f"linear_probe/{name}"
        scores |= {f"{where}/top1": choice.score(), f"{where}/knn_top1": float(accuracy(votes, truth))}
        if task.logistic_lambdas:
            sets = {"last": seen.matrix}, labels, {"last": judged.matrix}, truth, hold
            scores[f"{where}/logistic_top1"] = sweep(*sets, task.logistic_lambdas, name).top1
    return scores


def pixels(part: Part) -> Features:
    """Each image of the part as one row: float32 [n, 3·SIDE²]."""
    images = np.stack([direct_resize(decoding.pixels(part.store, int(row)), SIDE, SIDE) for row in part.rows])
    return Features(normalise(images).flatten(1).numpy(), {"last": slice(0, 3 * SIDE * SIDE)})
