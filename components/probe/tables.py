"""The tables that a grid of heads leaves."""

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from components.probe.choice import Choice
from components.probe.grid import Head
from components.stage import atomic


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
