"""The figure of an ablation: each metric over the axis that was swept, mean and spread over seeds."""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from components.figures import COLOURS, DASHES

WIDEST = 3  # panels in a row
MARKERS = "os^Dv"


class Panel(NamedTuple):
    """One metric."""

    title: str
    lines: Mapping[str, Mapping[float | str, Sequence[float]]]
    """By what the legend says of it ('' for a line alone): by place on the axis, the scores of the seeds; a place may have none."""


def figure(name: str, axis: str, panels: Sequence[Panel]) -> Figure:
    """A panel for each metric. Numbers stand at their place on the x axis `axis`, words side by side.

    The mark is the mean, its bar reaches one sample standard deviation (n − 1) up and down, each dot is a seed. Raises ValueError
    when there is no score at all.
    """
    if not any(scores for panel in panels for line in panel.lines.values() for scores in line.values()):
        raise ValueError(f"ablation {name!r} has no score to draw; run its members first")
    across = min(WIDEST, math.ceil(len(panels) ** 0.5))
    down = -(-len(panels) // across)
    drawn = Figure(figsize=(4.4 * across + 0.4, 3.6 * down + 0.4), dpi=100, layout="constrained")
    places = drawn.subplots(down, across, squeeze=False).flat
    for axes in places[len(panels) :]:
        axes.set_visible(False)
    for axes, panel in zip(places, panels, strict=False):
        _panel(axes, panel)
        axes.set_xlabel(axis)
    drawn.suptitle(name, fontsize=11, parse_math=False)
    return drawn


def _panel(axes: Axes, panel: Panel) -> None:
    words = list(dict.fromkeys(place for line in panel.lines.values() for place in line))
    numeric = all(not isinstance(place, str) for place in words)
    for number, (legend, line) in enumerate(panel.lines.items()):
        found = {place: scores for place, scores in line.items() if scores}
        at = [float(place) if numeric else words.index(place) + 0.08 * number for place in found]
        colour = COLOURS[number % len(COLOURS)]
        axes.errorbar(
            at,
            [float(np.mean(scores)) for scores in found.values()],
            yerr=[float(np.std(scores, ddof=1)) if len(scores) > 1 else 0.0 for scores in found.values()],
            color=colour,
            linestyle=DASHES[number % len(DASHES)] if numeric else "",
            marker=MARKERS[number % len(MARKERS)],
            markersize=5,
            linewidth=1.5,
            capsize=3,
            label=legend,
        )
        for place, scores in zip(at, found.values(), strict=True):
            axes.plot([place] * len(scores), scores, ".", color=colour, alpha=0.45, markersize=5, zorder=1)
    if not numeric:
        axes.set_xticks(
            range(len(words)), [str(word) for word in words], rotation=20, ha="right", fontsize=8, parse_math=False
        )
        axes.margins(x=0.15)
    if any(panel.lines):
        axes.legend(fontsize=8)
    axes.set_title(panel.title, fontsize=10, parse_math=False)
    axes.grid(alpha=0.3)
    axes.ticklabel_format(axis="y", useOffset=False)
    axes.spines[["top", "right"]].set_visible(False)
