"""Trains the grid of heads on one encoder's features and says which head counts."""

from pathlib import Path
from typing import Literal, NamedTuple, Protocol

import numpy as np
import torch

from components.probe.dataset import Part
from components.probe.extraction import Features
from components.probe.grid import Head
from components.probe.heads import Source, Task, fit
from components.probe.params import HeadParams


class Rows(NamedTuple):
    """Features to judge heads on, with the labels [n] of their images."""

    features: Features
    labels: np.ndarray


class Choice(NamedTuple):
    """Each head's percent right [heads] (`holdout` in profile clean only) and its classes for test rows [heads, n]."""

    heads: list[Head]
    holdout: np.ndarray | None
    test: np.ndarray
    predictions: np.ndarray

    def best(self, features: str = "") -> int:
        """Index of the chosen head, among those that read `features` if it is given; the first wins a tie.

        Without, profile paper chooses as the paper does, among the pooled patches: a class token has its own score.
        """
        judge, sets = self.test if self.holdout is None else self.holdout, {head.features for head in self.heads}
        if self.holdout is None and len(sets) > 1:
            sets -= {"class_token"}
        sets = {features} if features else sets
        return int(np.argmax([x if head.features in sets else -1.0 for head, x in zip(self.heads, judge, strict=True)]))

    def has(self, features: str) -> bool:
        """Whether any head reads `features`."""
        return any(head.features == features for head in self.heads)

    def score(self, features: str = "") -> float:
        """Percent of test rows that the chosen head classifies right."""
        return float(self.test[self.best(features)])

    def sentence(self) -> str:
        """The score and what it was chosen on, for a person."""
        judge = "the test images themselves" if self.holdout is None else "held-out training images"
        return f"top-1 {self.score():.2f} %, the best of {len(self.heads)} heads on {judge}"


def accuracy(predictions: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Percent of `predictions` [..., n] equal to `labels` [n]. Raises ValueError unless every row has exactly one."""
    if predictions.shape[-1] != len(labels):
        raise ValueError(
            f"{predictions.shape[-1]} predictions for {len(labels)} labels; every image must be scored once"
        )
    return np.asarray(100 * (predictions == labels).sum(axis=-1) / len(labels))


def gain(pretrained: float, untrained: float) -> float:
    """The difference in percentage points, without the dust of binary fractions: 69.4 − 67.8 is 1.6."""
    return round(pretrained - untrained, 9)


def check_labels(task: Task, part: Part, labels: np.ndarray) -> None:
    """Raises ValueError naming dataset and image unless each label [n] is that of a class."""
    for wrong, what in (
        (labels < 0, "no label"),
        (labels >= len(task.classes), f"a label above {len(task.classes) - 1}"),
    ):
        if wrong.any():
            path, card = part.column("path")[wrong][0], part.store.card
            raise ValueError(
                f"{task.name}: {int(wrong.sum())} of {len(labels)} images in split {part.store.split!r} of dataset "
                f"{card['name']!r} have {what}, {str(path)!r} first, and there are {len(task.classes)} classes; heads need a label "
                f"for each image: prepare the dataset from folders <split>/<class>/"
            )


def check(train: np.ndarray, test: np.ndarray, task: Task) -> None:
    """Raises ValueError unless training labels [n] and test labels [m] can train and judge a classifier."""
    present = np.unique(train)
    if len(train) < len(task.classes) or len(present) < 2 or not len(test):
        raise ValueError(
            f"{task.name}: {len(train)} training images of {len(present)} classes and {len(test)} test images for "
            f"{len(task.classes)} classes; take two classes or more to learn, no fewer images than classes, and an image to "
            f"judge: raise the limits or take other splits"
        )
    if missing := [task.classes[int(label)] for label in np.setdiff1d(test, present)]:
        raise ValueError(
            f"{task.name}: {len(missing)} classes of the test images have no training image: {', '.join(missing[:8])}; "
            f"no head can learn them: raise train_limit, lower holdout_fraction or take other splits"
        )


class Chooses(Protocol):
    """What `split` asks of a stage's params."""

    @property
    def profile(self) -> Literal["paper", "clean"]:
        """What the best of several is chosen on: 'paper' the scored rows, 'clean' held-out training rows."""

    @property
    def holdout_fraction(self) -> float:
        """Share of the training rows that 'clean' holds out."""


def split(params: Chooses, task: Task, train: Part, labels: np.ndarray, test: Part, judged: np.ndarray) -> np.ndarray:
    """Mask [n] of the training rows that only choose the head: none in profile paper.

    `labels` [n] and `judged` [m] are the classes of the two parts. Needs no features, so that a stage finds bad labels
    (ValueError) before it encodes anything.
    """
    check_labels(task, train, labels)
    check_labels(task, test, judged)
    if params.profile == "paper":
        hold = np.zeros(len(labels), dtype=bool)
    elif not (hold := train.column("holdout") < params.holdout_fraction).any():
        raise ValueError(
            f"{task.name}: holdout_fraction {params.holdout_fraction} holds out none of {len(hold)} training images: "
            f"raise it, raise train_limit, or take profile 'paper'"
        )
    paths = train.column("path")
    for label in np.setdiff1d(labels, labels[~hold]):  # a small class keeps one image to learn from
        rows = np.flatnonzero(labels == label)
        hold[max(rows, key=lambda row: str(paths[row]))] = False
    check(labels[~hold], judged, task)
    return hold


def choose(
    params: HeadParams,
    task: Task,
    source: Source,
    test: Rows,
    held: Rows | None,
    seed: int,
    device: torch.device,
    work: Path,
) -> Choice:
    """Trains the grid on `source` and scores each head on all of `test`, and on the rows `held` out of training if there are any."""
    trained = fit(params, task, source, seed, device, work)
    predictions = trained.predict(test.features)
    holdout = None if held is None else accuracy(trained.predict(held.features), held.labels)
    choice = Choice(trained.heads, holdout, accuracy(predictions, test.labels), predictions)
    if (predictions[choice.best()] < 0).any():
        raise ValueError(
            f"{task.name}: every head diverged; learning_rates is {params.learning_rates}: add a lower one"
        )
    return choice
