"""What is drawn is what was measured: the arrays and lines on the axes, not only that a file exists."""

from collections.abc import Callable
from io import BytesIO

import numpy as np
import pytest
import torch
from matplotlib import pyplot
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from components.analysis import curves, maps
from components.analysis.patches import Components
from components.analysis.positions import by_distance, positions
from components.analysis.predictions import predictions
from components.analysis.trained import read_history
from components.figures import COLOURS


def drawn(axes: Axes) -> np.ndarray:
    return np.asarray(axes.images[0].get_array())


def grids(figure: Figure) -> list[Axes]:
    """Panels, without colour bars."""
    return [axes for axes in figure.axes if axes.images and axes.get_label() != "<colorbar>"]


def write(figure: Figure) -> None:
    figure.savefig(BytesIO(), format="png")
    assert not pyplot.get_fignums()


@pytest.mark.parametrize("std", [0.0, 0.3])
def test_each_panel_of_positions_is_a_row_of_its_matrix(make: Callable, std: float) -> None:
    run = make(stop={"noise_std": std}, encoder={"image_size": 64}).load()
    found = positions(run, 0, 5)
    figure = maps.position_similarity(run, found, 5)
    write(figure)
    columns = [found.still_NN, *found.drawn_SNN, found.mean_NN] if std else [found.still_NN]
    panels, queries = grids(figure), [1 * 8 + 1, 1 * 8 + 4, 4 * 8 + 4, 6 * 8 + 6]
    assert len(panels) == 4 * len(columns)
    for row, query in enumerate(queries):
        for column, matrix in enumerate(columns):
            axes = panels[row * len(columns) + column]
            np.testing.assert_array_equal(drawn(axes), matrix[query].view(8, 8))
            outline = axes.lines[0].get_xydata()
            assert (outline.mean(axis=0)[0] - query % 8) ** 2 < 0.02 and abs(np.ptp(outline[:, 1]) - 1) < 1e-9
            assert outline[:, 1].min() == query // 8 - 0.5 and outline[:, 0].min() == query % 8 - 0.5
    assert len({axes.images[0].get_clim() for axes in panels}) == 1  # one scale, or shades would not compare
    assert panels[0].images[0].get_cmap().name == "viridis"
    assert f"noise_std {std:g}" in figure.get_suptitle()
    profile = figure.axes[-1] if figure.axes[-1].lines else figure.axes[-2]
    lines = [np.asarray(line.get_ydata()) for line in profile.lines]
    expected = [found.still_NN, found.mean_NN] if std else [found.still_NN]
    for line, matrix in zip(lines, expected, strict=True):
        np.testing.assert_allclose(line, by_distance(run.grid, matrix)[1])
    assert profile.get_xlabel() and profile.get_ylabel() and bool(std) == bool(profile.collections)


@pytest.mark.parametrize("std", [0.0, 0.3])
def test_each_panel_of_predictions_is_its_heat_map(make: Callable, std: float) -> None:
    run = make(stop={"noise_std": std}).load()
    pixels = torch.from_numpy(np.random.default_rng(0).integers(0, 256, (3, 32, 32, 3), dtype=np.uint8))
    found, views = predictions(run, pixels, [0, 2], 0, 2, 0.1), list(pixels[[0, 2]].numpy())
    figure = maps.prediction_heatmaps(run, views, found, 2)
    write(figure)
    panels, width = np.array(grids(figure)).reshape(2, -1), 6 if std else 4
    assert panels.shape == (2, width)
    for row, view, heats in zip(panels, views, found.shown, strict=True):
        expected = [heats.target_N, heats.still_N, *((heats.drawn_N, heats.mean_N) if std else ())]
        np.testing.assert_array_equal(drawn(row[0]), view)
        for axes, heat in zip(row[2:], expected, strict=True):
            np.testing.assert_array_equal(drawn(axes), heat.view(4, 4))
        assert len({axes.images[0].get_clim() for axes in row[2:]}) == 1
        seen, context = drawn(row[1]), set(heats.context_K.tolist())
        for patch in range(16):
            place = np.s_[patch // 4 * 8 : patch // 4 * 8 + 8, patch % 4 * 8 : patch % 4 * 8 + 8]
            black = patch in heats.block_T.tolist()
            shade = 255 if patch == heats.patch else 0 if black else maps.GREY
            np.testing.assert_array_equal(seen[place], view[place] if patch in context else np.full((8, 8, 3), shade))
    assert "look like? Step 20" in figure.get_suptitle()


def test_pixels_are_called_pixels(make: Callable) -> None:
    run = make(objective={"name": "mae"}, masks={"sampler": "random"}, predictor={"passes": "joint"}).load()
    pixels = torch.zeros(1, 32, 32, 3, dtype=torch.uint8)
    figure = maps.prediction_heatmaps(run, list(pixels.numpy()), predictions(run, pixels, [0], 0, 2, 0.1), 2)
    assert "true pixels of □" in [axes.get_title() for axes in figure.axes]


def test_colours_stand_beside_their_image(make: Callable) -> None:
    run, draws = make().load(), np.random.default_rng(0)
    learned, first = (Components(draws.random((5, 4, 4, 3)), share) for share in (40.0, 60.0))
    views = list(draws.integers(0, 256, (2, 32, 32, 3), dtype=np.uint8))
    figure = maps.patch_pca(run, views, [1, 4], learned, first)
    write(figure)
    panels = np.array(figure.axes).reshape(2, 3)
    for row, view, image in zip(panels, views, (1, 4), strict=True):
        for axes, pixels in zip(row, (view, learned.colours_Bhw3[image], first.colours_Bhw3[image]), strict=True):
            np.testing.assert_array_equal(drawn(axes), pixels)
            assert axes.images[0].get_extent() == [-0.5, 3.5, 3.5, -0.5]  # one patch of either lies beside the other's
    assert [axes.get_title() for axes in panels[0]] == [
        "image",
        "step 20\n40 % of the variance",
        "untrained\n60 % of the variance",
    ]


@pytest.mark.parametrize(
    ("stop", "live"),
    [
        ({"mask_token": True, "bias_on_noise": False}, ["mask_token"]),
        ({"mask_token": False, "bias_on_noise": True}, ["b"]),
        ({"mask_token": True, "bias_on_noise": True}, ["mask_token", "b"]),
    ],
)
def test_norms_are_those_of_the_live_parameters(make: Callable, stop: dict[str, bool], live: list[str]) -> None:
    """In the released code's form the bias of A marks masked tokens, and there is no m̃ to look at."""
    made = make(stop=stop)
    run, history = made.load(), read_history(made.load(), made.history)
    figure = curves.norms(run, history)
    write(figure)
    panels = np.array(figure.axes).reshape(2, 2)
    for row, suffix in zip(panels, ("", "_l1"), strict=True):
        for axes, names in zip(row, (["A"], live), strict=True):
            for line, name in zip(axes.lines, names, strict=True):
                assert list(line.get_ydata()) == history[f"{name}_norm{suffix}"]
                assert list(line.get_xdata()) == [1, 20]
            assert (
                len({line.get_color() for line in axes.lines}) == len(names) and axes.lines[0].get_color() == COLOURS[0]
            )
            assert axes.get_ylim()[0] == 0 and axes.get_ylabel()
    assert "noise_std 0.25 (standard deviation of n)" in figure.get_suptitle()


def test_a_spectrum_says_when_it_is_not_the_noises(make: Callable) -> None:
    values = {"end": [2.0, 1.0], "start": [3.0, 3.0]}
    for stop, title in (
        ({"noise_std": 0.3}, "Eigenvalues of AAᵀ (times noise_std²: variances of the noise)"),
        ({"noise_std": 0.0}, "Eigenvalues of AAᵀ: no noise (noise_std 0)"),
        (
            {"covariance": "untied"},
            "Eigenvalues of AAᵀ: N·n on masked tokens, noise_std 0.25 (standard deviation of n)",
        ),
    ):
        (axes,) = curves.spectrum(make(stop=stop).load(), values).axes
        assert axes.get_title() == title
        assert [list(line.get_ydata()) for line in axes.lines] == [[2.0, 1.0], [3.0, 3.0]]
