"""The drawn data equal what other programs compute from the same rows and labels."""

import math
import time
from io import BytesIO
from typing import Any

import numpy as np
import pytest
from matplotlib import pyplot
from matplotlib.figure import Figure
from PIL import Image
from sklearn.metrics import confusion_matrix

from components.figures import CELLS_WITH_NUMBERS, LABEL, PANELS, QUALITY, TICKS, by_epoch, confusion, curves, spectrum

DRAWN = [name for _, _, lines in PANELS for name in lines]


def history(length: int) -> list[dict[str, float]]:
    """Rows with numbers that differ everywhere."""
    return [
        {"step": 10.0 * (i + 1)} | {name: math.sin(i + place) + place for place, name in enumerate(DRAWN)}
        for i in range(length)
    ]


def png(figure: Figure) -> np.ndarray:
    buffer = BytesIO()
    figure.savefig(buffer, format="png")
    return np.asarray(Image.open(buffer).convert("RGB"))


@pytest.mark.parametrize("length", [1, 5, 300])
def test_the_lines_are_the_rows(length: int) -> None:
    rows = history(length)
    figure = curves(rows)
    lines = [line for axes in figure.axes for line in axes.lines]
    for name, line in zip(DRAWN, lines, strict=True):
        assert list(line.get_xdata()) == [row["step"] for row in rows], name
        assert list(line.get_ydata()) == [row[name] for row in rows], name
    png(figure)
    assert (lines[0].get_marker() == "o") == (length < 100)  # a single point would be no line at all
    assert not pyplot.get_fignums()


def test_each_panel_says_what_it_shows_and_lines_of_one_differ() -> None:
    figure = curves(history(3))
    titles = [axes.get_title() for axes in figure.axes]
    assert len(set(titles)) == len(PANELS)
    assert all(axes.get_ylabel() for axes in figure.axes)
    assert {axes.get_xlabel() for axes in figure.axes[-3:]} == {"step (updates)"}
    norms, spread = [axes for axes in figure.axes if len(axes.lines) > 1]
    for axes, beginnings in ((norms, ["‖m̃‖"[:3], "‖b‖"]), (spread, ["fea", "tar"])):
        legend = axes.get_legend()
        assert legend and [text.get_text()[:3] for text in legend.get_texts()] == beginnings
        assert len({(line.get_color(), line.get_linestyle()) for line in axes.lines}) == 2


def test_quality_is_drawn_where_it_was_measured() -> None:
    """Points of every third row, and none of a row that has none."""
    rows = history(7)
    for place in (0, 3, 6):
        rows[place] |= {name: 20.0 + place + number for number, name in enumerate(QUALITY[2])}
    figure = curves(rows)
    png(figure)
    assert [axes.get_title() for axes in figure.axes] == [title for title, _, _ in (*PANELS, QUALITY)]
    for number, line in enumerate(figure.axes[-1].lines):
        assert list(line.get_xdata()) == [10.0, 40.0, 70.0]
        assert list(line.get_ydata()) == [20.0 + number, 23.0 + number, 26.0 + number]


def test_the_spectrum_shows_both_ends() -> None:
    figure = spectrum([4.0, 1.0, 0.25], [2.0, 2.0, 2.0])
    (axes,) = figure.axes
    assert [list(line.get_ydata()) for line in axes.lines] == [[4.0, 1.0, 0.25], [2.0, 2.0, 2.0]]
    assert axes.get_yscale() == "log" and axes.get_xlabel() == "rank"
    png(figure)


def test_what_a_worker_logs_can_be_drawn() -> None:
    """Values of a broken run, too: a gap in the line, not an error."""
    rows = history(3)
    rows[1] |= {"loss": math.nan, "lr": math.inf}
    png(curves(rows))


def test_a_history_that_cannot_be_drawn_is_refused() -> None:
    with pytest.raises(ValueError, match="history has 0 rows; curves need at least one"):
        curves([])
    rows = history(3)
    del rows[1]["A_norm"], rows[2]["lr"]
    with pytest.raises(ValueError, match="rows of the history lack A_norm, lr; each row must hold every curve"):
        curves(rows)


@pytest.mark.parametrize("count", [2, 12, 13, 60])
def test_the_matrix_is_scikit_learns(count: int) -> None:
    draws = np.random.default_rng(count)
    actual = draws.integers(0, count, 400).astype(np.int32)
    actual[actual == 1] = 0  # class 1 has no image
    predicted = np.where(draws.random(400) < 0.5, actual, draws.integers(0, count, 400))
    classes = [f"class {i}" for i in range(count)]
    axes, bar = confusion(classes, actual, predicted).axes
    image = axes.images[0]
    expected = 100 * confusion_matrix(actual, predicted, labels=range(count), normalize="true")
    np.testing.assert_allclose(np.asarray(image.get_array()), expected, rtol=1e-12, atol=0)
    assert image.get_clim() == (0, 100)
    assert bar.get_ylabel() == "percent of the actual class"
    assert axes.get_title() == f"top-1 {100 * (actual == predicted).mean():.1f} % of 400 images"
    numbers = {(text.get_position()[1], text.get_position()[0]): text.get_text() for text in axes.texts}
    written = {place: f"{expected[place]:.0f}" for place in zip(*expected.nonzero(), strict=True)}
    assert numbers == (written if count <= CELLS_WITH_NUMBERS else {})


def test_rows_are_actual_and_columns_predicted_on_paper_too() -> None:
    """Two images of class 0, both taken for 1: the dark cell is at the top right."""
    figure = confusion(["cat", "dog"], np.array([0, 0, 1]), np.array([1, 1, 1]))
    pixels = png(figure).astype(int)
    axes = figure.axes[0]
    assert (axes.get_ylabel(), axes.get_xlabel()) == ("actual class", "predicted class")

    def colour(row: float, column: float) -> Any:
        x, y = axes.transData.transform((column, row))
        return pixels[len(pixels) - 1 - round(y), round(x)]

    for row, column, dark in ((0, 0, False), (0, 1, True), (1, 0, False), (1, 1, True)):
        assert (colour(row - 0.3, column - 0.3).sum() < 300) == dark, (row, column)


def test_a_thousand_classes_are_quick_and_legible() -> None:
    draws = np.random.default_rng(0)
    actual, predicted = draws.integers(0, 1000, 50000), draws.integers(0, 1000, 50000)
    start = time.monotonic()
    figure = confusion([f"n{i:08d}, a name longer than an axis bears" for i in range(1000)], actual, predicted)
    pixels = png(figure)
    assert time.monotonic() - start < 10  # a second or two where nothing else runs
    axes = figure.axes[0]
    width, height = axes.get_window_extent().size
    assert min(width, height) > 1000  # a pixel for each cell
    assert pixels.shape[0] < 2000
    for axis in (axes.xaxis, axes.yaxis):
        labels = [label.get_text() for label in axis.get_ticklabels()]
        assert len(labels) == TICKS
        for text, place in zip(labels, range(0, 1000, 40), strict=True):
            assert text == f"n{place:08d}, a name longer than"[: LABEL - 1] + "…"


def test_names_are_text_and_no_formulas() -> None:
    figure = confusion(["$x_1$", "50 $ and 5 $^"], np.array([0, 1]), np.array([0, 1]))
    png(figure)  # the second would be an error as a formula
    assert [label.get_text() for label in figure.axes[0].get_xticklabels()] == ["$x_1$", "50 $ and 5 $^"]
    assert not any(label.get_parse_math() for label in figure.axes[0].get_yticklabels())


@pytest.mark.parametrize(
    ("actual", "predicted", "message"),
    [
        ([0, 1], [0], "2 actual and 1 predicted labels; a confusion matrix needs one pair per image"),
        ([], [], "0 actual and 0 predicted labels; .* at least one image"),
        ([0, -1], [0, 0], r"actual holds label -1, but 2 classes are named; labels must lie in 0\.\.1"),
        ([0, 1], [0, 2], r"predicted holds label 2, but 2 classes are named"),
    ],
)
def test_labels_that_make_no_matrix_are_refused(actual: list[int], predicted: list[int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        confusion(["cat", "dog"], np.array(actual, int), np.array(predicted, int))


def test_a_finetuning_has_a_panel_per_quantity_and_a_line_per_encoder() -> None:
    columns = {
        "epoch": [1.0, 2.0, 3.0],
        "lr": [0.1, 0.05, 0.01],
        "train_loss_pretrained": [2.0, 1.0, 0.5],
        "top1_pretrained": [30.0, 40.0, 45.0],
        "train_loss_untrained": [2.5, 2.0, 1.75],
        "top1_untrained": [10.0, 15.0, 20.0],
    }
    figure = by_epoch(columns)
    (accuracy,) = [axes for axes in figure.axes if axes.get_ylabel() == "top-1 (%)"]
    rings = [line for line in accuracy.lines if line.get_markersize() == 10]
    assert [line.get_xydata().tolist() for line in rings] == [[[3.0, 45.0]], [[3.0, 20.0]]]
    for ring in rings:
        ring.remove()
    drawn = {
        (axes.get_ylabel(), line.get_label()): [list(values) for values in line.get_data()]
        for axes in figure.axes
        for line in axes.lines
    }
    assert drawn.pop(("learning rate", "_child0")) == [columns["epoch"], columns["lr"]]
    for label, quantity in (("cross-entropy (nats)", "train_loss"), ("top-1 (%)", "top1")):
        for encoder in ("pretrained", "untrained"):
            assert drawn.pop((label, encoder)) == [columns["epoch"], columns[f"{quantity}_{encoder}"]]
    assert not drawn and {axes.get_xlabel() for axes in figure.axes} == {"epoch"}
    png(figure)
