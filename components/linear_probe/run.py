"""Linear heads and nearest neighbours on one labelled dataset, for the pretrained encoder and the untrained one."""

from collections.abc import Mapping
from functools import partial

import numpy as np
from PIL import Image

from components import progress, tracking
from components.features import pooled
from components.figures import confusion
from components.images.transforms import Pixels, direct_resize, resize_center_crop
from components.linear_probe.contract import (
    LinearProbeInputs,
    LinearProbeMetrics,
    LinearProbeOutputs,
    LinearProbeParams,
    TaskParams,
)
from components.mim.encoder import VisionEncoder
from components.probe.choice import Choice, Rows, Task, accuracy, choose, gain, split, write_confusion, write_heads
from components.probe.dataset import Part, encoders, open_part
from components.probe.neighbours import check_k, nearest


def run(params: LinearProbeParams, inputs: LinearProbeInputs, outputs: LinearProbeOutputs) -> LinearProbeMetrics:
    """Probes the one task in `params`. Raises ValueError for a dataset, a grid or limits that cannot work."""
    ((name, settings),) = params.tasks.items()
    train = open_part(inputs.dataset, settings.dataset, "images", settings.train_split, settings.train_limit)
    test = open_part(inputs.dataset, settings.dataset, "images", settings.test_split, settings.test_limit)
    task = Task(f"linear_probe {name}", train.store.card["classes"], params.epochs)
    check_k(params.knn_k, len(train.rows))
    split(params, task, train.column("label"), train.column("path"), test.column("label"))
    choices, neighbours = {}, {}
    for kind, encoder in encoders(inputs.encoder, settings.image_size, settings.image_size):
        learn, judge = (_rows(params, settings, part, encoder, f"{task.name}: {kind}") for part in (train, test))
        choices[kind] = choose(params, task, learn, judge)
        votes = nearest(learn.features["last"], learn.labels, judge.features["last"], params.knn_k, len(task.classes))
        neighbours[kind] = float(accuracy(votes, judge.labels))
        progress.show(f"{task.name}: {kind} k-NN {neighbours[kind]:.2f} %, {choices[kind].sentence()}")
    write_heads(outputs.heads, choices)
    chosen = choices["pretrained"]
    actual, predicted = test.column("label"), chosen.predictions[chosen.best()]
    write_confusion(outputs.confusion, task.classes, actual, predicted)
    tracking.log_figure(outputs.heads)
    tracking.log_figure(outputs.confusion)
    tracking.log_plot("confusion.png", confusion(task.classes, actual, predicted))
    return _metrics(chosen, choices["untrained"], neighbours)


def _metrics(pretrained: Choice, untrained: Choice, neighbours: Mapping[str, float]) -> LinearProbeMetrics:
    return LinearProbeMetrics(
        top1=pretrained.score(),
        top1_untrained=untrained.score(),
        top1_gain=gain(pretrained.score(), untrained.score()),
        last_top1=pretrained.score("last"),
        last4_top1=pretrained.score("last4"),
        knn_top1=neighbours["pretrained"],
        knn_top1_untrained=neighbours["untrained"],
        knn_top1_gain=gain(neighbours["pretrained"], neighbours["untrained"]),
        scored=pretrained.predictions.shape[1],
    )


def _rows(params: LinearProbeParams, settings: TaskParams, part: Part, encoder: VisionEncoder, label: str) -> Rows:
    features = pooled(
        encoder,
        part.store,
        part.rows,
        partial(view, settings=settings),
        layers=params.layers,
        batch_size=params.encoding_batch_size,
        label=f"{label} features of {part.store.split}",
    )
    return Rows(features, part.column("label").astype(np.int64), part.column("path"))


def view(image: Image.Image, settings: TaskParams) -> Pixels:
    """The square the encoder sees, the same for training and test images: uint8 [image_size, image_size, 3]."""
    if settings.resize == "direct":
        return direct_resize(image, settings.image_size, settings.image_size)
    return resize_center_crop(image, settings.resize_short_side, settings.image_size)
