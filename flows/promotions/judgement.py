"""Whether a run may follow the champion: on scores of equal protocols, none worse by more than a tolerance."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from components.report.gather import NO_SCORES

if TYPE_CHECKING:
    from components.parent_runs import Row

TOLERANCE = 0.5
"""Percentage points by which a score may fall short of the champion's. Scores are percentages, higher is better."""


def scores(run: "Row") -> set[str]:
    """What of a run's metrics are scores: those with the untrained encoder's beside them, as in the report."""
    names = {name for name in run.metrics if f"{name}_untrained" in run.metrics}
    return {name for name in names if name.rpartition("/")[2] not in NO_SCORES}


def headlines(run: "Row") -> set[str]:
    """The scores that are compared unless others are asked for: those with the gain over the untrained encoder beside them."""
    return {name for name in scores(run) if f"{name}_gain" in run.metrics}


def check(run: "Row", metrics: Sequence[str], tolerance: float) -> None:
    """ValueError for a tolerance below 0, or a metric that is no score of `run`."""
    if not tolerance >= 0:
        raise ValueError(f"tolerance is {tolerance:g}; it must be at least 0, the points by which a score may be worse")
    unknown = [name for name in metrics if name not in scores(run)]
    if unknown:
        raise ValueError(
            f"metric is {unknown[0]!r}, which is no score of run {run.name!r}; its scores are: {_listed(scores(run))}"
        )


def faults(run: "Row", champion: "Row", metrics: Sequence[str], tolerance: float) -> list[str]:
    """What speaks against `run`, a sentence for each of `metrics`, or of the headlines that both have; none if it may follow."""
    chosen = sorted(metrics or headlines(run) & headlines(champion))
    if not chosen:
        return [
            f"they share no score; the run has {_listed(headlines(run))}, the champion {_listed(headlines(champion))}"
        ]
    return [fault for name in chosen if (fault := _fault(name, run, champion, tolerance))]


def _fault(name: str, run: "Row", champion: "Row", tolerance: float) -> str:
    value, best = run.metrics[name], champion.metrics.get(name)
    if best is None:
        return f"{name}: {value:.6g}, the champion has none"
    mark, other = run.protocol(name)[1], champion.protocol(name)[1]
    if mark != other or not mark:
        return f"{name}: {value:.6g} and the champion's {best:.6g} do not compare: protocol {mark or 'none'} and {other or 'none'}"
    if value < best - tolerance:
        return f"{name}: {value:.6g}, the champion has {best:.6g}; worse by {best - value:.3g}, more than the tolerance {tolerance:g}"
    return ""


def _listed(names: set[str]) -> str:
    return ", ".join(sorted(names)) or "none"
