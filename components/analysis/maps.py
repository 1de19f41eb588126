"""The figures that are maps of the patch grid, a row for each query or image. The shades are perceptually uniform and read the
same by colour-blind people; axes count patches."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from components.analysis.curves import NOISY, noise_text, profile
from components.analysis.patches import Components
from components.analysis.positions import Positions
from components.analysis.predictions import HeatMaps, Predictions
from components.analysis.sheet import Sheet
from components.analysis.trained import Trained
from components.images.transforms import Pixels
from components.mim.grid import Size

SHADES = "viridis"
GREY = 200  # of patches that are hidden and belong to no block, or another one
ASKED = ((1, 1), (1, 4), (4, 4), (6, 6))
"""Query positions (row, column) in eighths of the grid: near a corner, at an edge, in the middle, near the opposite corner."""


def position_similarity(trained: Trained, found: Positions, draws: int) -> Figure:
    """Rows are query positions; columns are the deterministic embedding, draws of the noisy one and the mean of all draws."""
    grid = trained.grid
    queries = sorted({row * grid.h // 8 * grid.w + column * grid.w // 8 for row, column in ASKED})
    columns = {"deterministic, ψ": found.still_NN}
    columns |= {f"with noise, draw {number}": drawn for number, drawn in enumerate(found.drawn_SNN, 1)}
    columns |= {f"mean of {draws} draws": found.mean_NN} if trained.noisy else {}
    shown = np.stack(
        [similarity[queries].cpu().numpy() for similarity in columns.values()], axis=1
    )  # queries, columns, N
    sheet = Sheet(len(queries), list(columns), grid, top=0.6, right=5.9)
    sheet.title(f"Which positions does a position embedding look like? {noise_text(trained)}")
    for (row, column), axes in np.ndenumerate(sheet.panels):
        image = _shades(axes, shown[row, column], grid, shown.min(), shown.max())
        _outline(axes, queries[row], grid, NOISY)
    sheet.bar(image, 0, len(queries) - 1, "cosine similarity with ψ there (□: the query)")
    profile(sheet.add(sheet.width - 4.3, sheet.BOTTOM, 4.1, sheet.height - sheet.BOTTOM - 0.9), trained, found)
    return sheet.figure


def prediction_heatmaps(trained: Trained, views: Sequence[Pixels], found: Predictions, draws: int) -> Figure:
    """Rows are images; columns the image, what is hidden of it, and which patches each guess at the marked one looks like."""
    grid, what = trained.grid, "pixels" if trained.objective.name == "mae" else "features"
    columns = {"target_N": f"true {what} of □", "still_N": "predicted, no noise"}
    columns |= {"drawn_N": "predicted, one draw", "mean_N": f"predicted, mean of {draws}"} if trained.noisy else {}
    sheet = Sheet(len(views), ["image", "given to the encoder", *columns.values()], grid, top=0.75, right=0.95)
    sheet.title(f"Which patches do the predicted {what} of □ look like? Step {trained.steps}\n{noise_text(trained)}")
    for number, (row, view, maps) in enumerate(zip(sheet.panels, views, found.shown, strict=True)):
        heats = [getattr(maps, name).numpy() for name in columns]
        _picture(row[0], view, grid)
        _picture(row[1], hidden(view, maps, grid), grid)
        top = max(
            heat.max() for heat in heats[1:]
        )  # the true target is most like itself, which would leave the rest dark
        for axes, heat in zip(row[2:], heats, strict=True):
            image = _shades(axes, heat, grid, 0.0, top)
            _outline(axes, maps.patch, grid, "white")
        sheet.bar(image, number, number, "softmax of the\ncosine similarity", beyond=bool(heats[0].max() > top))
    return sheet.figure


def hidden(view: Pixels, maps: HeatMaps, grid: Size) -> Pixels:
    """The image [S, S, 3] as the encoder got it: the target block black, its predicted patch white, other hidden patches grey."""
    shades = np.full(grid.h * grid.w, GREY, np.int16)
    shades[maps.context_K.numpy()] = -1  # as it is
    shades[maps.block_T.numpy()] = 0
    shades[maps.patch] = 255
    side = len(view) // grid.h
    shade = shades.reshape(grid.h, grid.w, 1).repeat(side, 0).repeat(side, 1)
    return np.where(shade < 0, view, shade).astype(np.uint8)


def patch_pca(
    trained: Trained, views: Sequence[Pixels], shown: Sequence[int], learned: Components, first: Components
) -> Figure:
    """Rows are images; columns the image and its patches' principal components as colours, after training and before."""
    told = [f"{part.explained:.0f} % of the variance" for part in (learned, first)]
    titles = ["image", f"step {trained.steps}\n{told[0]}", f"untrained\n{told[1]}"]
    sheet = Sheet(len(views), titles, trained.grid, top=0.75, right=0.2)
    sheet.title("Patch features: three principal components as red, green, blue")
    for row, view, image in zip(sheet.panels, views, shown, strict=True):
        for axes, pixels in zip(row, (view, learned.colours_Bhw3[image], first.colours_Bhw3[image]), strict=True):
            _picture(axes, pixels, trained.grid)
    return sheet.figure


def _shades(axes: Axes, values_N: NDArray[Any], grid: Size, low: float, high: float) -> Any:
    """A number per patch in the shades of the map."""
    return axes.imshow(values_N.reshape(grid.h, grid.w), cmap=SHADES, vmin=low, vmax=high, interpolation="nearest")


def _picture(axes: Axes, pixels: NDArray[Any], grid: Size) -> None:
    """A picture, of any resolution, on axes that count patches."""
    axes.imshow(pixels, extent=(-0.5, grid.w - 0.5, grid.h - 0.5, -0.5), interpolation="nearest")


def _outline(axes: Axes, patch: int, grid: Size, colour: str) -> None:
    """The square around a patch."""
    row, column = divmod(patch, grid.w)
    corners = np.array([-0.5, 0.5, 0.5, -0.5, -0.5])
    axes.plot(column + corners, row + np.array([-0.5, -0.5, 0.5, 0.5, -0.5]), color=colour, linewidth=1.6)
