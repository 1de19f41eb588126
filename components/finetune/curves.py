"""The history of a finetuning, as a table and as a drawing."""

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path

from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from components.figures import COLOURS, DASHES
from components.finetune.loop import Row
from components.stage import atomic

MARKED = 40  # epochs; few points are shown as such


def write(path: Path, histories: Mapping[str, Sequence[Row]]) -> None:
    """CSV, a row per epoch: `epoch`, `lr`, then `train_loss_<encoder>` and `top1_<encoder>`.

    `lr` is the head's at the epoch's last step; `top1` is of the images that choose the epoch, in percent.
    """
    names = [f"{quantity}_{kind}" for kind in histories for quantity in ("train_loss", "top1")]
    with atomic(path) as temporary, temporary.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(("epoch", "lr", *names))
        for rows in zip(*histories.values(), strict=True):
            values = [row[quantity] for row in rows for quantity in ("train_loss", "top1")]
            writer.writerow((int(rows[0]["epoch"]), rows[0]["lr"], *values))


def draw(histories: Mapping[str, Sequence[Row]], judged_on: str) -> Figure:
    """Training loss, accuracy on the images `judged_on` and learning rate over the epoch, a line per encoder; the "
    "best epoch is ringed."""
    figure = Figure(figsize=(12, 4), dpi=100, layout="constrained")
    panels = (
        ("Training loss, with augmentation", "cross-entropy (nats)", "train_loss"),
        (f"Accuracy on {judged_on}", "top-1 (%)", "top1"),
        ("Learning rate of the head", "learning rate", "lr"),
    )
    for axes, (title, label, quantity) in zip(figure.subplots(1, 3), panels, strict=True):
        for number, (kind, rows) in enumerate(histories.items()):
            epochs, values = [row["epoch"] for row in rows], [row[quantity] for row in rows]
            marker = "o" if len(rows) <= MARKED else ""
            axes.plot(
                epochs,
                values,
                color=COLOURS[number],
                linestyle=DASHES[number],
                marker=marker,
                markersize=3.5,
                label=kind,
            )
            if quantity == "top1":
                best = max(range(len(values)), key=values.__getitem__)
                axes.plot(epochs[best], values[best], "o", markersize=10, markerfacecolor="none", color=COLOURS[number])
            if quantity == "lr":
                break  # both encoders have the same
        else:
            axes.legend(fontsize=9)
        axes.set_title(title, fontsize=11)
        axes.set_xlabel("epoch")
        axes.set_ylabel(label)
        axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
        axes.grid(alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
    return figure
