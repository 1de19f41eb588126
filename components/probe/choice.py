"""Trains the grid of heads on one encoder's features and says which head counts."""

import csv
import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from components.probe.heads import Head, fit
from components.probe.params import HeadParams
from components.stage import atomic


class Task(NamedTuple):
    """What heads learn: `name` starts progress lines and errors ("clevr count"), `classes` names labels 0, 1, …"""

    name: str
    classes: Sequence[str]
    epochs: int


class Rows(NamedTuple):
    """Labelled features: each set [n,D] float32, labels [n] int, paths [n]. Two views of an image share its path."""

    features: Mapping[str, np.ndarray]
    labels: np.ndarray
    paths: np.ndarray

    def where(self, keep: np.ndarray) -> "Rows":
        """The rows for which the mask `keep` [n] is true."""
        return Rows({name: x[keep] for name, x in self.features.items()}, self.labels[keep], self.paths[keep])


class Choice(NamedTuple):
    """Each head's percent right [heads] (`holdout` in profile clean only) and its classes for test rows [heads, n]."""

    heads: list[Head]
    holdout: np.ndarray | None
    test: np.ndarray
    predictions: np.ndarray

    def best(self, features: str = "") -> int:
        """Index of the chosen head, among those that read `features` if it is given; the first wins a tie."""
        judge = self.test if self.holdout is None else self.holdout
        return int(
            np.argmax(
                [x if features in ("", head.features) else -1.0 for head, x in zip(self.heads, judge, strict=True)]
            )
        )

    def score(self, features: str = "") -> float:
        """Percent of test rows that the chosen head classifies right."""
        return float(self.test[self.best(features)])

    def sentence(self) -> str:
        """The score and what it was chosen on, for a person."""
        judge = "the test images themselves" if self.holdout is None else "held-out training images"
        return f"top-1 {self.score():.2f} %, the best of {len(self.heads)} heads on {judge}"


def held_out(paths: Sequence[str] | np.ndarray, fraction: float) -> np.ndarray:
    """Mask [n] of the paths that hash below `fraction`; nothing else matters, neither seed nor order."""
    hashes = (int.from_bytes(hashlib.sha256(str(path).encode()).digest()[:8], "big") for path in paths)
    return np.array([value < fraction * 2**64 for value in hashes], dtype=bool)


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


def check(train: np.ndarray, test: np.ndarray, task: Task) -> None:
    """Raises ValueError unless training labels [n] and test labels [m] can train and judge a classifier."""
    for split, labels in (("training", train), ("test", test)):
        if unlabelled := int((labels < 0).sum()):
            raise ValueError(
                f"{task.name}: {unlabelled} of {len(labels)} {split} images have no label; heads need labels: prepare "
                f"the dataset from folders <split>/<class>/"
            )
    present = np.unique(train)
    if len(present) < 2 or not len(test):
        raise ValueError(
            f"{task.name}: {len(train)} training images of {len(present)} classes and {len(test)} test images; take "
            f"two classes or more to learn and an image to judge: raise the limits or take other splits"
        )
    if missing := [task.classes[int(label)] for label in np.setdiff1d(test, present)]:
        raise ValueError(
            f"{task.name}: {len(missing)} classes of the test images have no training image: {', '.join(missing[:8])}; "
            f"no head can learn them: raise train_limit, lower holdout_fraction or take other splits"
        )


def split(params: HeadParams, task: Task, labels: np.ndarray, paths: np.ndarray, test_labels: np.ndarray) -> np.ndarray:
    """Mask [n] of the training rows that only choose the head: none in profile paper.

    Needs no features, so that a stage finds bad labels (ValueError) before it encodes anything.
    """
    if params.profile == "paper":
        hold = np.zeros(len(paths), dtype=bool)
    elif not (hold := held_out(paths, params.holdout_fraction)).any():
        raise ValueError(
            f"{task.name}: holdout_fraction {params.holdout_fraction} holds out none of {len(hold)} training images: "
            f"raise it, raise train_limit, or take profile 'paper'"
        )
    check(labels[~hold], test_labels, task)
    return hold


def choose(params: HeadParams, task: Task, train: Rows, test: Rows) -> Choice:
    """Trains the grid and scores each head on all of `test`; in profile clean also on the rows held out of `train`."""
    hold = split(params, task, train.labels, train.paths, test.labels)
    kept, held = train.where(~hold), train.where(hold)
    trained = fit(params, task.epochs, kept.features, kept.labels, len(task.classes), task.name)
    predictions = trained.predict(test.features)
    holdout = None if params.profile == "paper" else accuracy(trained.predict(held.features), held.labels)
    choice = Choice(trained.heads, holdout, accuracy(predictions, test.labels), predictions)
    if (predictions[choice.best()] < 0).any():
        raise ValueError(
            f"{task.name}: every head diverged; learning_rates is {params.learning_rates}: add a lower one"
        )
    return choice


def write_heads(path: Path, choices: Mapping[str, Choice]) -> None:
    """Every head of every choice as CSV, in percent; `holdout_top1` is empty in profile paper, `chosen` is 0 or 1."""
    with atomic(path) as temporary, temporary.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(("encoder", *Head._fields, "holdout_top1", "test_top1", "chosen"))
        for name, choice in choices.items():
            holdout = [""] * len(choice.heads) if choice.holdout is None else [f"{x:.4f}" for x in choice.holdout]
            for i, head in enumerate(choice.heads):
                kind = ("no", "yes")[head.batch_norm]
                values = (head.features, kind, head.learning_rate, head.weight_decay)
                writer.writerow((name, *values, holdout[i], f"{choice.test[i]:.4f}", int(i == choice.best())))


def write_confusion(path: Path, classes: Sequence[str], actual: np.ndarray, predicted: np.ndarray) -> None:
    """One CSV row of class names for each scored image: what DVC's `confusion` template draws."""
    with atomic(path) as temporary, temporary.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(("actual", "predicted"))
        writer.writerows((classes[int(a)], classes[int(p)]) for a, p in zip(actual, predicted, strict=True))
