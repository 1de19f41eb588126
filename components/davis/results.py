"""Scores per object: as a table, and averaged into the stage's metrics."""

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from components.davis.contract import DavisMetrics
from components.davis.scores import Statistics
from components.stage import atomic

COLUMNS = ("encoder", "sequence", "object", "frames", "j_mean", "j_recall", "j_decay", "f_mean", "f_recall", "f_decay")


@dataclass(frozen=True)
class Score:
    """J and F of one object over the scored frames of its sequence, as fractions."""

    encoder: str
    sequence: str
    object: int
    frames: int
    j: Statistics
    f: Statistics


def write_table(path: Path, scores: Sequence[Score]) -> None:
    """CSV, percent with 4 decimals, one line per encoder, sequence and object."""
    with atomic(path) as temporary, temporary.open("w", encoding="utf-8", newline="") as stream:
        writer = csv.writer(stream, lineterminator="\n")
        writer.writerow(COLUMNS)
        for score in scores:
            values = [f"{100 * value:.4f}" for value in (*score.j, *score.f)]
            writer.writerow([score.encoder, score.sequence, score.object, score.frames, *values])


def summarise(scores: Sequence[Score], *, sequences_excluded: int) -> DavisMetrics:
    """Plain means over all objects of all sequences (not over sequences), as in the official tool; J&F is (J + F) / 2."""
    pretrained = [score for score in scores if score.encoder == "pretrained"]
    j, f = _mean(pretrained, "j"), _mean(pretrained, "f")
    untrained = [score for score in scores if score.encoder == "untrained"]
    j_untrained, f_untrained = _mean(untrained, "j").mean, _mean(untrained, "f").mean
    jf_mean, jf_mean_untrained = (j.mean + f.mean) / 2, (j_untrained + f_untrained) / 2
    frames_by_sequence = {score.sequence: score.frames for score in pretrained}
    return DavisMetrics(
        jf_mean=jf_mean,
        j_mean=j.mean,
        j_recall=j.recall,
        j_decay=j.decay,
        f_mean=f.mean,
        f_recall=f.recall,
        f_decay=f.decay,
        jf_mean_untrained=jf_mean_untrained,
        j_mean_untrained=j_untrained,
        f_mean_untrained=f_untrained,
        jf_mean_gain=jf_mean - jf_mean_untrained,
        sequences=len(frames_by_sequence),
        objects=len(pretrained),
        frames=sum(frames_by_sequence.values()),
        sequences_excluded=sequences_excluded,
    )


def _mean(scores: Sequence[Score], measure: str) -> Statistics:
    """Mean over objects of each statistic, in percent."""
    values = np.array([getattr(score, measure) for score in scores])
    return Statistics(*(100 * values.mean(0)).tolist())
