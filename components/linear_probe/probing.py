"""What one encoder is put through: its features, the grid of heads, nearest neighbours, logistic regression."""

from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np

from components.images.transforms import View, square
from components.linear_probe.contract import LinearProbeParams, TaskParams
from components.probe import logistic
from components.probe.choice import Choice, Rows, accuracy, choose
from components.probe.dataset import Part, Subject
from components.probe.extraction import Features
from components.probe.heads import Source, Task
from components.probe.kept import home, pooled
from components.probe.neighbours import nearest
from components.probe.sources import Augmented, Cached, Crop


class Parts(NamedTuple):
    """The images of a task with their classes. `hold` [n] marks the training images that only choose."""

    train: Part
    labels: np.ndarray
    hold: np.ndarray
    test: Part
    judged: np.ndarray


class Outcome(NamedTuple):
    """The scores of one encoder, in percent."""

    choice: Choice
    neighbours: float
    logistic: logistic.Result | None

    def sentence(self, profile: str) -> str:
        """All of them, for a person."""
        more = "" if self.logistic is None else f", {self.logistic.sentence(profile)}"
        return f"k-NN {self.neighbours:.2f} %, {self.choice.sentence()}{more}"


def probe(
    params: LinearProbeParams, settings: TaskParams, task: Task, parts: Parts, subject: Subject, work: Path
) -> Outcome:
    """Scores of one encoder. Features are kept in `work`, and heads that learn from random crops go on from there."""
    device = next(subject.encoder.parameters()).device
    name = task._replace(name=f"{task.name}: {subject.kind}")

    def features(part: Part, layers: int, mirror: bool = False) -> Features:
        label = f"{name.name} features of {part.store.split}{', mirrored' if mirror else ''}"
        seen = view(settings)._replace(mirror=mirror)
        how = params.encoding()
        return pooled(subject, part, seen, layers=layers, encoding=how, folder=work, label=label)

    judge = features(parts.test, params.layers)
    if settings.training == "cached":
        seen = features(parts.train, params.layers)
        views = [seen, features(parts.train, params.layers, mirror=True)] if settings.flip else [seen]
        rows = np.flatnonzero(~parts.hold)
        source: Source = Cached(views, rows, parts.labels[rows], params.seed, device)
        held = seen.where(parts.hold) if parts.hold.any() else None
    else:
        seen = features(parts.train, layers=1)
        crop = Crop(settings.image_size, settings.crop_scale_min, settings.crop_scale_max, settings.flip)
        kept, labels = parts.train.where(~parts.hold), parts.labels[~parts.hold]
        at_once = params.encoding_batch_size
        source = Augmented(subject, kept, labels, crop, params.seed, params.layers, at_once)
        held = features(parts.train.where(parts.hold), params.layers) if parts.hold.any() else None
    choice = choose(
        settings.heads,
        name,
        source,
        Rows(judge, parts.judged),
        None if held is None else Rows(held, parts.labels[parts.hold]),
        params.seed,
        device,
        home(work, subject),
    )
    votes = nearest(seen.of("last"), parts.labels, judge.of("last"), params.knn_k, len(task.classes), device)
    return Outcome(choice, float(accuracy(votes, parts.judged)), _logistic(settings, parts, seen, judge, name.name))


def _logistic(
    settings: TaskParams, parts: Parts, seen: Features, judge: Features, where: str
) -> logistic.Result | None:
    if not settings.logistic_lambdas:
        return None
    sets = logistic.SETS if parts.hold.any() else logistic.SETS[:1]  # the paper's 1 % number is of pooled patches
    train, test = ({name: x.of(name) for name in sets if name in x.columns} for x in (seen, judge))
    fit = partial(logistic.sweep, lambdas=settings.logistic_lambdas, where=where)
    return fit(train, parts.labels, test, parts.judged, parts.hold)


def view(settings: TaskParams) -> View:
    """The square the encoder sees of images that are not augmented."""
    return square(settings.image_size, settings.resize, settings.resize_short_side)
