"""Rows and columns of square panels that count patches."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from components.mim.grid import Size

TICKS = 5  # at most, on each axis of a panel


class Sheet:
    """A figure with a square panel for each row and column, sizes in inches; `top` and `right` are kept free for more.

    Laid out by hand: matplotlib's own engine takes seconds for as many panels.
    """

    SIDE, GAP, LEFT, BOTTOM = 1.75, 0.13, 0.55, 0.5

    def __init__(self, rows: int, titles: Sequence[str], grid: Size, top: float, right: float) -> None:
        step, columns = self.SIDE + self.GAP, len(titles)
        self.width = self.LEFT + columns * step + right
        self.height = top + rows * step + self.BOTTOM
        self.figure = Figure(figsize=(self.width, self.height), dpi=100)
        panels = [
            [
                self.add(self.LEFT + column * step, self.BOTTOM + (rows - 1 - row) * step, self.SIDE, self.SIDE)
                for column in range(columns)
            ]
            for row in range(rows)
        ]
        self.panels: NDArray[Any] = np.array(panels).reshape(rows, columns)
        for (row, column), axes in np.ndenumerate(self.panels):
            axes.set_xticks(range(0, grid.w, -(-grid.w // TICKS)))
            axes.set_yticks(range(0, grid.h, -(-grid.h // TICKS)))
            axes.tick_params(labelsize=7, labelbottom=row == rows - 1, labelleft=column == 0)
            if row == 0:
                axes.set_title(titles[column], fontsize=9)
            if row == rows - 1:
                axes.set_xlabel("column (patches)", fontsize=8)
            if column == 0:
                axes.set_ylabel("row (patches)", fontsize=8)

    def add(self, left: float, bottom: float, width: float, height: float) -> Axes:
        """Axes with their lower left corner there."""
        return self.figure.add_axes((left / self.width, bottom / self.height, width / self.width, height / self.height))

    def bar(self, image: Any, first: int, last: int, label: str, beyond: bool = False) -> None:
        """What the shades of the rows from `first` to `last` mean, to their right; a pointed end says that some lie `beyond`."""
        step, (rows, columns) = self.SIDE + self.GAP, self.panels.shape
        low, high = (rows - 1 - last) * step + self.BOTTOM, (rows - 1 - first) * step + self.BOTTOM + self.SIDE
        inset = 0.1 * self.SIDE
        axes = self.add(self.LEFT + columns * step + 0.05, low + inset, 0.13, high - low - 2 * inset)
        self.figure.colorbar(image, cax=axes, extend="max" if beyond else "neither").set_label(label, fontsize=8)
        axes.tick_params(labelsize=7)

    def title(self, text: str) -> None:
        """Above all panels."""
        self.figure.suptitle(text, fontsize=11, y=1 - 0.1 / self.height, va="top")
