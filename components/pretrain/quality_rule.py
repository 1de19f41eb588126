"""When the curves of quality say that a run goes wrong. Pure Python, for the process that only watches."""

from collections.abc import Mapping, Sequence

LOST = 0.5
"""Share of what k-NN had above chance whose loss is told."""


def verdict(rows: Sequence[Mapping[str, float]]) -> str:
    """What is wrong by the last of the `rows`, for a person; '' where nothing is, or it has no measurement.

    k-NN that is no better than guessing, or has lost half of what it once had above that.
    """
    if not rows or "quality_knn_top1" not in rows[-1]:
        return ""
    now, guessing = rows[-1]["quality_knn_top1"], rows[-1]["quality_guessing_top1"]
    if now <= guessing:
        return f"k-NN top-1 is {now:.1f} %, no better than guessing (up to {guessing:.1f} %)"
    best = max((row for row in rows if "quality_knn_top1" in row), key=lambda row: row["quality_knn_top1"])
    if now - guessing < LOST * (best["quality_knn_top1"] - guessing):
        return f"k-NN top-1 fell to {now:.1f} % from {best['quality_knn_top1']:.1f} % at step {best['step']:.0f}"
    return ""
