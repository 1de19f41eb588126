"""What a person looks at beside the numbers: training curves, histories and confusion matrices, drawn by matplotlib.

Plain `Figure` objects and no pyplot: nothing global is opened, so that any thread may draw and nothing has to be closed.
"""

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442")
"""Okabe and Ito's colours, which colour-blind people can tell apart, without black."""
DASHES = ("-", "--", ":")  # lines of one panel differ in print, too

PANELS: tuple[tuple[str, str, dict[str, str]], ...] = (
    ("Loss", "loss", {"loss": ""}),
    ("Gradient", "norm of all gradients", {"gradient_norm": ""}),
    ("Learning rate", "learning rate", {"lr": ""}),
    ("Norm of the noise projection", "‖A‖ (Frobenius)", {"A_norm": ""}),
    ("Norms of mask token and bias", "Euclidean norm", {"mask_token_norm": "‖m̃‖, mask token", "b_norm": "‖b‖, bias"}),
    ("Noise beside positions", "rms(A·n) / rms(ψ)", {"noise_ratio": ""}),
    ("Effective rank of the target features", "effective rank (dimensions)", {"effective_rank": ""}),
    (
        "Spread of features and targets",
        "standard deviation over a batch",
        {"feature_std": "features, pooled", "target_std": "targets, patch by patch"},
    ),
    ("Throughput, all workers", "images / s", {"images_per_second": ""}),
)
"""Title, y label, and the curves of a panel: their names in a row of the history, and in the legend."""
QUALITY = (
    "Labelled images, target encoder",
    "top-1 (%)",
    {"quality_knn_top1": "k-NN", "quality_probe_top1": "linear probe", "quality_guessing_top1": "guessing, at most"},
)
"""The panel of what only some rows have, where quality was measured."""

QUANTITIES = {
    "train_loss": ("Training loss, with augmentation", "cross-entropy (nats)"),
    "top1": ("Accuracy on the images that choose the epoch", "top-1 (%)"),
    "lr": ("Learning rate of the head", "learning rate"),
}
"""Title and y label of a finetuning's panels."""

CELLS_WITH_NUMBERS = 12  # classes; more leave no room for a number in each cell
TICKS = 25  # at most, on each axis
LABEL = 24  # characters of a class name beside an axis
MARKED = 40  # rows; few points are shown as such, many as a line


def curves(rows: Sequence[Mapping[str, float]]) -> Figure:
    """The history of a pretraining run, a panel per quantity over the step; `rows` as `loop.Trainer` logs them.

    Raises ValueError when there is no row or a row lacks a curve; those of QUALITY may be anywhere or nowhere.
    """
    if not rows:
        raise ValueError("the history has 0 rows; curves need at least one: train until log_every steps are done")
    named = {"step", *(name for _, _, lines in PANELS for name in lines)}
    if missing := sorted({name for row in rows for name in named - row.keys()}):
        raise ValueError(f"rows of the history lack {', '.join(missing)}; each row must hold every curve: train again")
    panels = [*PANELS, QUALITY] if any(QUALITY[2].keys() & row.keys() for row in rows) else PANELS
    lines_of_three = -(-len(panels) // 3)
    figure = Figure(figsize=(12, 8.5 * lines_of_three / 3), dpi=100, layout="constrained")
    grid = figure.subplots(lines_of_three, 3, sharex=True)
    for unused in grid.flat[len(panels) :]:
        unused.remove()
    for axes, panel in zip(grid.flat, panels, strict=False):
        _panel(axes, rows, *panel)
    for axes in figure.axes[-3:]:
        axes.set_xlabel("step (updates)")
        axes.tick_params(labelbottom=True)  # sharing it hides the numbers above a place that is not used
    return figure


def _panel(axes: Axes, rows: Sequence[Mapping[str, float]], title: str, label: str, lines: Mapping[str, str]) -> None:
    for number, (name, meaning) in enumerate(lines.items()):
        points = [(row["step"], row[name]) for row in rows if name in row]
        axes.plot(
            *zip(*points, strict=True),
            color=COLOURS[number],
            linestyle=DASHES[number],
            marker="o" if len(points) <= MARKED else "",
            markersize=3.5,
            linewidth=1.8 if len(points) <= MARKED else 1.0,
            label=meaning,
        )
    if len(lines) > 1:
        axes.legend(loc="center right", fontsize=8)  # the search for the best place is slow for a long history
    _dress(axes, title, label)


def spectrum(end: Sequence[float], start: Sequence[float]) -> Figure:
    """Eigenvalues of AAᵀ, the largest first, at the end and at the start of training, on a logarithmic scale."""
    figure = Figure(figsize=(7, 4.5), dpi=100, layout="constrained")
    axes = figure.add_subplot()
    for number, (values, meaning) in enumerate(((end, "at the end"), (start, "at the start"))):
        places = range(1, len(values) + 1)
        axes.plot(places, values, color=COLOURS[number], linestyle=DASHES[number], linewidth=1.8, label=meaning)
    axes.legend()
    _dress(axes, "Eigenvalues of AAᵀ (times noise_std²: variances of the noise)", "eigenvalue")
    axes.set_yscale("log")
    axes.set_xlabel("rank")
    return figure


def by_epoch(columns: Mapping[str, Sequence[float]]) -> Figure:
    """A finetuning's history: a panel for each quantity over the column `epoch`, a line for each encoder; the best
    accuracy is ringed.

    A column is named `<quantity>_<encoder>` with encoder pretrained or untrained; others are quantities of their own.
    """
    panels: dict[str, dict[str, Sequence[float]]] = {}
    for name, values in columns.items():
        quantity, _, encoder = name.rpartition("_")
        if encoder in ("pretrained", "untrained"):
            panels.setdefault(quantity, {})[encoder] = values
        elif name != "epoch":
            panels.setdefault(name, {})[""] = values
    figure = Figure(figsize=(4 * len(panels), 3.6), dpi=100, layout="constrained")
    for axes, (quantity, lines) in zip(
        figure.subplots(1, len(panels), squeeze=False).flat, panels.items(), strict=True
    ):
        for number, (encoder, values) in enumerate(lines.items()):
            style = {
                "color": COLOURS[number],
                "linestyle": DASHES[number],
                "marker": "o" if len(values) <= MARKED else "",
            }
            axes.plot(columns["epoch"], values, markersize=3.5, linewidth=1.8, label=encoder, **style)
            if quantity == "top1":
                best = int(np.argmax(values))  # the first of equals, as the stage chooses
                axes.plot(
                    columns["epoch"][best],
                    values[best],
                    "o",
                    markersize=10,
                    markerfacecolor="none",
                    color=COLOURS[number],
                )
        if len(lines) > 1:
            axes.legend(fontsize=8)
        title, label = QUANTITIES.get(quantity, (quantity, quantity))
        _dress(axes, title, label)
        axes.set_xlabel("epoch")
    return figure


def _dress(axes: Axes, title: str, label: str) -> None:
    axes.set_title(title, fontsize=11)
    axes.set_ylabel(label)
    axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
    axes.ticklabel_format(axis="y", style="sci", scilimits=(-2, 4), useOffset=False)
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)


def confusion(classes: Sequence[str], actual: NDArray[np.integer], predicted: NDArray[np.integer]) -> Figure:
    """Percent of each actual class's images (rows) that were given each class (columns); a class without images is 0.

    `classes` names labels 0, 1, …; `actual` and `predicted` are labels [n] of the same n ≥ 1 images. Raises ValueError for
    lengths that differ, no images, or a label without a name.
    """
    percent_CC = _percent(classes, actual, predicted)
    side, dpi = (7.0, 100) if len(classes) <= TICKS else (8.5, 100) if len(classes) <= 200 else (12.0, 150)
    figure = Figure(
        figsize=(side * 1.12, side), dpi=dpi, layout="constrained"
    )  # about a pixel for each of 1000 classes
    axes = figure.add_subplot()
    image = axes.imshow(percent_CC, cmap="Blues", vmin=0, vmax=100)
    right = 100 * np.mean(np.equal(actual, predicted))
    axes.set_title(f"top-1 {right:.1f} % of {len(actual)} images", fontsize=11)
    axes.set_xlabel("predicted class")
    axes.set_ylabel("actual class")
    places = range(0, len(classes), -(-len(classes) // TICKS))
    names = [_short(classes[place]) for place in places]
    axes.set_xticks(places, names, rotation=45, ha="right", rotation_mode="anchor", fontsize=9, parse_math=False)
    axes.set_yticks(places, names, fontsize=9, parse_math=False)
    figure.colorbar(image, ax=axes, shrink=0.8, label="percent of the actual class")
    if len(classes) <= CELLS_WITH_NUMBERS:
        for row, column in np.argwhere(percent_CC):  # an empty cell says that there was no such image
            colour, text = "white" if percent_CC[row, column] > 55 else "black", f"{percent_CC[row, column]:.0f}"
            axes.text(column, row, text, ha="center", va="center", color=colour, fontsize=9)
    return figure


def _percent(
    classes: Sequence[str], actual: NDArray[np.integer], predicted: NDArray[np.integer]
) -> NDArray[np.float64]:
    """The row-normalised matrix [C, C] in percent."""
    if len(actual) != len(predicted) or not len(actual):
        raise ValueError(
            f"{len(actual)} actual and {len(predicted)} predicted labels; a confusion matrix needs one pair per image and "
            f"at least one image"
        )
    count = len(classes)
    for name, labels in (("actual", actual), ("predicted", predicted)):
        if labels.min() < 0 or labels.max() >= count:
            wrong = labels.min() if labels.min() < 0 else labels.max()
            raise ValueError(
                f"{name} holds label {wrong}, but {count} classes are named; labels must lie in 0..{count - 1}: name every "
                f"class and leave out images without label"
            )
    pairs = actual.astype(np.int64) * count + predicted.astype(np.int64)
    counts_CC = np.bincount(pairs, minlength=count * count).reshape(count, count)
    percent_CC: NDArray[np.float64] = 100.0 * counts_CC / np.maximum(counts_CC.sum(axis=1, keepdims=True), 1)
    return percent_CC


def _short(name: str) -> str:
    return name if len(name) <= LABEL else name[: LABEL - 1] + "…"
