"""Scores as tables per object and per sequence, and averaged into the stage's metrics."""

import csv
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from components.davis.judging import Score
from components.davis.scores import Statistics
from components.stage import atomic

STATISTICS = ("jf_mean", "j_mean", "j_recall", "j_decay", "f_mean", "f_recall", "f_decay")


def write_objects(path: Path, scores: Sequence[Score]) -> None:
    """CSV, percent with 4 decimals, one line per encoder, sequence and object."""
    rows = ([s.encoder, s.sequence, s.object, s.frames, *_texts([s])] for s in scores)
    _write(path, ("encoder", "sequence", "object", "frames", *STATISTICS), rows)


def write_sequences(path: Path, scores: Sequence[Score]) -> None:
    """CSV, percent with 4 decimals, one line per encoder and sequence: means over the sequence's objects."""
    groups: dict[tuple[str, str], list[Score]] = {}
    for score in scores:
        groups.setdefault((score.encoder, score.sequence), []).append(score)
    rows = ([*key, len(group), group[0].frames, *_texts(group)] for key, group in groups.items())
    _write(path, ("encoder", "sequence", "objects", "frames", *STATISTICS), rows)


def means(scores: Sequence[Score]) -> dict[str, float]:
    """`STATISTICS` in percent: plain means over all objects (not over sequences), as in the official tool; J&F is (J + F) / 2."""
    j, f = _mean([score.j for score in scores]), _mean([score.f for score in scores])
    return dict(zip(STATISTICS, ((j.mean + f.mean) / 2, *j, *f), strict=True))


def summary(scores: Sequence[Score], follower: str, suffix: str) -> dict[str, float]:
    """The means of one follower, each name with `suffix`."""
    return {f"{name}{suffix}": value for name, value in means([s for s in scores if s.encoder == follower]).items()}


def _mean(values: Sequence[Statistics]) -> Statistics:
    return Statistics(*(100 * np.array(values, dtype=np.float64).mean(0)).tolist())


def _texts(scores: Sequence[Score]) -> list[str]:
    return [f"{value:.4f}" for value in means(scores).values()]


def _write(path: Path, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    with atomic(path) as temporary, temporary.open("w", encoding="utf-8", newline="") as stream:
        writer = csv.writer(stream, lineterminator="\n")
        writer.writerow(columns)
        writer.writerows(rows)
