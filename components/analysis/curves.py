"""The figures that are lines: norms over training, the spectrum of A, similarity over distance. Colours are figures.COLOURS'."""

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from components import figures
from components.analysis.positions import Positions, by_distance
from components.analysis.trained import Curves, Trained
from components.figures import COLOURS, DASHES, MARKED

NOISY = "#D55E00"  # of all that is noisy; stands out from every shade of the maps
KINDS = (("", "Euclidean norm"), ("_l1", "normalised L1 norm: mean |entry|"))
"""Suffix in the history and y label; the second is the paper's in Figure 4."""


def noise_text(trained: Trained) -> str:
    """Which noise the run had, in words: its size is a standard deviation here, a variance in the paper's text."""
    if not trained.noisy:
        return "no noise (noise_std 0)"
    stray = {"learned": "A·n", "untied": "N·n", "fixed": "n"}[trained.stop.covariance]
    where = {"masked": "masked tokens", "context": "context tokens", "both": "masked and context tokens"}
    return f"{stray} on {where[trained.stop.apply_to]}, noise_std {trained.stop.noise_std:g} (standard deviation of n)"


def norms(trained: Trained, history: Curves) -> Figure:
    """Norms over training: of A on the left, of what marks masked tokens on the right; below as in the paper's Figure 4."""
    figure = Figure(figsize=(10, 6.4), dpi=100, layout="constrained")
    figure.suptitle(f"Norms over training: {noise_text(trained)}", fontsize=12)
    panels, marks = figure.subplots(2, 2, sharex=True), trained.mark_names()
    titles = ["A, which projects context and noise", f"What marks masked tokens: {' and '.join(marks.values())}"]
    for row, (suffix, label) in zip(panels, KINDS, strict=True):
        for axes, names in zip(row, ({"A": "A"}, marks), strict=True):
            drawn = {meaning: history[f"{name}_norm{suffix}"] for name, meaning in names.items()}
            for number, (meaning, values) in enumerate(drawn.items()):
                _line(axes, history["step"], values, number, meaning)
            axes.set_ylim(0, 1.08 * max(max(values) for values in drawn.values()) or 1)
            axes.set_ylabel(label)
            if len(names) > 1:
                axes.legend(fontsize=8)
            _dress(axes)
    for axes, title in zip(panels[0], titles, strict=True):
        axes.set_title(title, fontsize=11)
    for axes in panels[1]:
        axes.set_xlabel("step (updates)")
    return figure


def spectrum(trained: Trained, eigenvalues: Curves) -> Figure:
    """Eigenvalues of AAᵀ at the end and at the start; what they are to the noise depends on its covariance."""
    figure = figures.spectrum(eigenvalues["end"], eigenvalues["start"])
    if not trained.noisy or trained.stop.covariance != "learned":
        figure.axes[0].set_title(f"Eigenvalues of AAᵀ: {noise_text(trained)}", fontsize=11)
    return figure


def profile(axes: Axes, trained: Trained, found: Positions) -> None:
    """All queries at once: their similarity with the deterministic positions, over the distance in between."""
    apart, still = by_distance(trained.grid, found.still_NN)
    axes.plot(apart, still, color=COLOURS[0], linestyle=DASHES[0], marker="o", markersize=4, label="deterministic, ψ")
    title = "no noise: every position is most like itself"
    if trained.noisy:
        (_, mean), (_, spread) = by_distance(trained.grid, found.mean_NN), by_distance(trained.grid, found.spread_NN)
        label = "with noise: mean and standard deviation of the draws"
        axes.plot(apart, mean, color=NOISY, linestyle=DASHES[1], marker="s", markersize=4, label=label)
        axes.fill_between(apart, mean - spread, mean + spread, color=NOISY, alpha=0.2, linewidth=0)
        title = f"noise moves a position by {found.blur:.2g} patches\ntowards its neighbours (standard deviation)"
    axes.set_title(title, fontsize=9)
    axes.set_xlabel("distance from the query (patches, rounded)")
    axes.set_ylabel("cosine similarity, mean over all queries")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.legend(fontsize=8)
    _dress(axes)


def _line(axes: Axes, steps: list[float], values: list[float], number: int, label: str) -> None:
    marker = "o" if len(steps) <= MARKED else ""
    style = {"color": COLOURS[number], "linestyle": DASHES[number], "marker": marker}
    axes.plot(steps, values, markersize=3.5, label=label, **style)  # type: ignore[arg-type]


def _dress(axes: Axes) -> None:
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
