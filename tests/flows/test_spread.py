"""Mean and spread over seeds equal numpy's, scores of two protocols meet nowhere, and the figure shows what the table says."""

import csv
import io

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from components.ablation_figure import Panel, figure
from components.parent_runs import Row
from flows.ablations import spread
from flows.ablations.cells import Cell
from flows.ablations.members import Member
from flows.ablations.results import panels
from flows.ablations.spread import Scored

TOP1, NORM = "davis/jf_mean", "pretrain/A_norm"
NUMBERS = st.floats(-1e3, 1e3, allow_nan=False)


def member(label: str, shown: dict[str, object], seed: int) -> Member:
    return Member(f"trial-{label}-seed-{seed}", Cell(label, (), {}, shown), seed, {})


def scored(noise: float, seed: int, metrics: dict[str, float], protocol: str = "p", **others: object) -> Scored:
    label = "-".join([f"noise-{noise}", *map(str, others.values())])
    one = member(label, {"noise": noise, **others}, seed)
    row = Row(f"id-{one.name}", "1", one.name, metrics, {"davis": protocol})
    return Scored(one, "finished", "", row)


def failed(noise: float, seed: int) -> Scored:
    return Scored(member(f"noise-{noise}", {"noise": noise}, seed), "failed", "error: out of memory", None)


def rows(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


@given(st.lists(NUMBERS, min_size=1, max_size=8))
def test_mean_and_deviation_are_numpys(values: list[float]) -> None:
    found = spread.spread(values)
    assert found and found.n == len(values)
    assert found.mean == pytest.approx(np.mean(values), rel=1e-9, abs=1e-9)
    if len(values) > 1:
        assert found.deviation == pytest.approx(np.std(values, ddof=1), rel=1e-7, abs=1e-9)
    else:
        assert found.deviation is None


def test_the_table_has_each_combination_over_its_seeds() -> None:
    scores = {0.0: [1.0, 2.0, 4.0], 0.5: [3.0, 5.0, 10.0]}
    every = [scored(noise, seed, {TOP1: value}) for noise, of in scores.items() for seed, value in enumerate(of)]
    for row, (noise, of) in zip(rows(spread.table_csv(every, [TOP1])), scores.items(), strict=True):
        assert float(row["noise"]) == noise
        measured = [float(row[f"{TOP1} {what}"]) for what in ("n", "mean", "sd")]
        assert measured == pytest.approx([3, np.mean(of), np.std(of, ddof=1)])
    text = spread.markdown("trial", every, [TOP1])
    assert "| 0     |     3 |   2.333 ± 1.5 |" in text
    assert "| 0.5   |     3 |       6 ± 3.6 |" in text


def test_a_failed_member_is_in_no_mean_and_its_reason_is_told() -> None:
    every = [scored(0.0, 0, {TOP1: 1.0}), failed(0.0, 1), failed(0.5, 0), failed(0.5, 1)]
    first, second = rows(spread.table_csv(every, [TOP1]))
    assert (first[f"{TOP1} n"], first[f"{TOP1} mean"], first[f"{TOP1} sd"]) == ("1", "1.0", "")
    assert (second[f"{TOP1} n"], second[f"{TOP1} mean"]) == ("0", "")
    assert [row["reason"] for row in rows(spread.members_csv(every, [TOP1]))] == ["", *["error: out of memory"] * 3]
    text = spread.markdown("trial", every, [TOP1])
    assert "| 0     | 1 of 2 |             1 |" in text
    assert "| 0.5   | 0 of 2 |             – |" in text
    assert "trial-noise-0.5-seed-1 failed:\n\n```\nerror: out of memory\n```" in text


def test_scores_of_two_protocols_stand_in_two_columns() -> None:
    every = [
        scored(0.0, 0, {TOP1: 10.0, NORM: 1.0}, "old"),
        scored(0.0, 1, {TOP1: 20.0, NORM: 2.0}, "new"),
        scored(0.0, 2, {TOP1: 40.0, NORM: 3.0}, "new"),
    ]
    (row,) = rows(spread.table_csv(every, [TOP1, NORM]))
    assert (row[f"{TOP1} [old] mean"], row[f"{TOP1} [new] mean"], row[f"{NORM} mean"]) == ("10.0", "30.0", "2.0")
    assert row[f"{TOP1} [new] sd"] == str(np.std([20.0, 40.0], ddof=1))
    text = spread.markdown("trial", every, [TOP1, NORM])
    assert (
        "davis/jf_mean: members have it by several protocols (old, new), which do not compare, so each stands apart."
        in text
    )
    assert [panel.title for panel in panels(every, [TOP1, NORM])[1]] == [f"{TOP1} [old]", f"{TOP1} [new]", NORM]


def test_the_axis_of_numbers_is_x_and_the_others_are_lines() -> None:
    every = [
        scored(noise, seed, {NORM: noise + seed}, covariance=kind)
        for kind in ("learned", "fixed")
        for noise in (0.5, 0.25)
        for seed in (0, 1)
    ]
    axis, (panel,) = panels(every, [NORM])
    assert axis == "noise"
    assert panel.lines == {
        "covariance learned": {0.25: [0.25, 1.25], 0.5: [0.5, 1.5]},
        "covariance fixed": {0.25: [0.25, 1.25], 0.5: [0.5, 1.5]},
    }


def test_words_stand_side_by_side() -> None:
    every = [
        Scored(member(label, {"presets": label}, seed), "finished", "", Row("id", "1", label, {NORM: seed}, {}))
        for label in ("l1", "l2")
        for seed in (0, 1)
    ]
    axis, (panel,) = panels(every, [NORM])
    assert (axis, panel.lines) == ("", {"": {"l1": [0, 1], "l2": [0, 1]}})
    drawn = figure("trial", axis, [panel])
    assert [text.get_text() for text in drawn.axes[0].get_xticklabels()] == ["l1", "l2"]


def test_the_figure_shows_means_deviations_and_every_seed() -> None:
    lines = {"a": {0.0: [1.0, 2.0, 4.0], 0.5: [3.0]}, "b": {0.0: [5.0, 7.0], 0.5: []}}
    drawn = figure("trial", "noise", [Panel("one", lines), Panel("two", {"": {0.0: [1.0]}})])
    axes = drawn.axes[0]
    for container, line in zip(axes.containers, lines.values(), strict=True):
        shown = {place: scores for place, scores in line.items() if scores}
        mean, _, (bars,) = container
        assert list(mean.get_xdata()) == list(shown)
        assert list(mean.get_ydata()) == pytest.approx([np.mean(scores) for scores in shown.values()])
        lengths = [segment[1][1] - segment[0][1] for segment in bars.get_segments()]
        deviations = [np.std(scores, ddof=1) if len(scores) > 1 else 0.0 for scores in shown.values()]
        assert lengths == pytest.approx([2 * deviation for deviation in deviations])
    dots = sorted(value for line in axes.lines if line.get_marker() == "." for value in line.get_ydata())
    assert dots == [1.0, 2.0, 3.0, 4.0, 5.0, 7.0]
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["a", "b"]
    assert drawn.axes[1].get_legend() is None


def test_no_score_is_no_figure() -> None:
    with pytest.raises(ValueError, match="ablation 'trial' has no score to draw"):
        figure("trial", "noise", [Panel("one", {"": {0.0: []}})])
