"""The scores of an ablation: mean and spread over the seeds of each combination, for people and for programs."""

import csv
import io
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from components.parent_runs import Row
from components.report.markdown import grid
from flows.ablations.cells import Cell
from flows.ablations.members import Member


@dataclass(frozen=True)
class Scored:
    """A member that has ended, or didn't start."""

    member: Member
    state: str
    """finished, taken (finished by an earlier run of the ablation) or failed."""
    reason: str
    """Why it failed; ''."""
    row: Row | None
    """Its row in MLflow; None for one that did not finish."""


class Column(NamedTuple):
    """One metric of one protocol: scores of another protocol stand in a column of their own and are in no common mean."""

    title: str
    metric: str
    protocol: str

    def value(self, one: Scored) -> float | None:
        """The score of a member; None where it has none by this protocol."""
        if one.row is None or self.metric not in one.row.metrics or one.row.protocol(self.metric)[1] != self.protocol:
            return None
        return one.row.metrics[self.metric]


class Spread(NamedTuple):
    """Scores of one combination over its seeds."""

    n: int
    mean: float
    deviation: float | None
    """Sample standard deviation, with n − 1; None for a single seed."""


def spread(values: Sequence[float]) -> Spread | None:
    """None for no values."""
    if not values:
        return None
    return Spread(len(values), statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else None)


def columns(scored: Sequence[Scored], metrics: Sequence[str]) -> list[Column]:
    """A column for each metric, or one for each protocol of a metric that members have by several."""
    found = []
    for metric in metrics:
        marks = dict.fromkeys(one.row.protocol(metric)[1] for one in scored if one.row and metric in one.row.metrics)
        for mark in marks or [""]:
            found.append(Column(f"{metric} [{mark or 'no protocol'}]" if len(marks) > 1 else metric, metric, mark))
    return found


def cells(scored: Sequence[Scored]) -> dict[str, list[Scored]]:
    """The members by the label of their combination, in order."""
    found: dict[str, list[Scored]] = {}
    for one in scored:
        found.setdefault(one.member.cell.label, []).append(one)
    return found


def over_seeds(members: Sequence[Scored], column: Column) -> list[float]:
    """The scores of one combination."""
    return [value for one in members if (value := column.value(one)) is not None]


def markdown(ablation: str, scored: Sequence[Scored], metrics: Sequence[str]) -> str:
    """The table, what is apart or missing, and the members; it reads well as plain text, too."""
    shown = columns(scored, metrics)
    axes = _axes([one.member.cell for one in scored])
    rows = [[*axes, "seeds", *(column.title for column in shown)]]
    for members in cells(scored).values():
        done = sum(one.row is not None for one in members)
        count = str(done) if done == len(members) else f"{done} of {len(members)}"
        cell = members[0].member.cell
        rows.append(
            [*(_text(cell, axis) for axis in axes), count, *(_score(members, column, done) for column in shown)]
        )
    parts = [f"# Ablation {ablation}", grid(rows, words=len(axes)), "Mean ± sample standard deviation over the seeds."]
    for metric in dict.fromkeys(column.metric for column in shown if column.title != column.metric):
        marks = ", ".join(column.protocol or "none" for column in shown if column.metric == metric)
        parts.append(
            f"{metric}: members have it by several protocols ({marks}), which do not compare, so each stands apart."
        )
    if failed := [one for one in scored if one.row is None]:
        parts.append("## Without result")
        parts += [f"{one.member.name} {one.state}:\n\n```\n{one.reason}\n```" for one in failed]
    states = [("member", "state", *(column.title for column in shown))]
    states += [(one.member.name, one.state, *(_number(column.value(one)) for column in shown)) for one in scored]
    parts.append("## Members\n\n" + grid(states, words=2))
    return "\n\n".join(parts) + "\n"


def table_csv(scored: Sequence[Scored], metrics: Sequence[str]) -> str:
    """A row for each combination: its axes, and n, mean and standard deviation of each metric; empty where there is none."""
    shown, axes = columns(scored, metrics), _axes([one.member.cell for one in scored])
    rows: list[list[Any]] = [[*axes, *(f"{column.title} {what}" for column in shown for what in ("n", "mean", "sd"))]]
    for members in cells(scored).values():
        row: list[Any] = [members[0].member.cell.shown.get(axis, "") for axis in axes]
        for column in shown:
            found = spread(over_seeds(members, column))
            row += (
                [0, "", ""]
                if found is None
                else [found.n, found.mean, "" if found.deviation is None else found.deviation]
            )
        rows.append(row)
    return _csv(rows)


def members_csv(scored: Sequence[Scored], metrics: Sequence[str]) -> str:
    """A row for each member: name, axes, seed, state, reason, MLflow's run id and each metric."""
    shown, axes = columns(scored, metrics), _axes([one.member.cell for one in scored])
    rows: list[list[Any]] = [
        ["member", *axes, "seed", "state", "reason", "mlflow_run_id", *(column.title for column in shown)]
    ]
    for one in scored:
        member, values = one.member, [column.value(one) for column in shown]
        about = [member.seed, one.state, one.reason, one.row.run_id if one.row else ""]
        where = [member.cell.shown.get(axis, "") for axis in axes]
        rows.append([member.name, *where, *about, *("" if value is None else value for value in values)])
    return _csv(rows)


def _axes(of: Sequence[Cell]) -> list[str]:
    return list(dict.fromkeys(axis for cell in of for axis in cell.shown))


def _text(cell: Cell, axis: str) -> str:
    value = cell.shown.get(axis, "–")
    return value if isinstance(value, str) else f"{value:.12g}"


def _score(members: Sequence[Scored], column: Column, done: int) -> str:
    found = spread(over_seeds(members, column))
    if found is None:
        return "–"
    deviation = "" if found.deviation is None else f" ± {found.deviation:.2g}"
    return f"{found.mean:.4g}{deviation}" + (f" (n = {found.n})" if found.n != done else "")


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.6g}"


def _csv(rows: Sequence[Sequence[Any]]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue()
