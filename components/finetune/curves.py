"""The history of a finetuning as columns, and as the table that DVC plots."""

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path

from components.finetune.loop import Row
from components.stage import atomic


def columns(histories: Mapping[str, Sequence[Row]]) -> dict[str, list[float]]:
    """`epoch`, `lr`, then `train_loss_<encoder>` and `top1_<encoder>`, a value per epoch.

    `lr` is the head's at the epoch's last step, the same for all encoders; `top1` is of the images that choose the epoch, in percent.
    """
    first = next(iter(histories.values()))
    shared = {name: [row[name] for row in first] for name in ("epoch", "lr")}
    own = {
        f"{name}_{kind}": [row[name] for row in rows]
        for kind, rows in histories.items()
        for name in ("train_loss", "top1")
    }
    return shared | own


def write(path: Path, histories: Mapping[str, Sequence[Row]]) -> None:
    """The columns as CSV, a row per epoch."""
    named = columns(histories)
    with atomic(path) as temporary, temporary.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(named)
        writer.writerows((int(epoch), *values) for epoch, *values in zip(*named.values(), strict=True))
