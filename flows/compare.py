"""Headline metrics of pipeline runs side by side: `python -m flows.compare RUN RUN …`, each an id or name in MLflow.

Scores of different protocols are not set against each other: a warning on stderr names each evaluation that differs.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from components.report.markdown import grid

if TYPE_CHECKING:
    from components.parent_runs import Row

OTHER = "other protocol"


def main(argv: Sequence[str] | None = None) -> int:
    """Exit status 0; 1 with --strict where scores do not compare; 2 for a run that is not there (one message on stderr)."""
    parser = argparse.ArgumentParser(prog="python -m flows.compare", description=__doc__, allow_abbrev=False)
    parser.add_argument(
        "runs", nargs="+", metavar="RUN", help="id or name of a pipeline run; a name means its newest run"
    )
    parser.add_argument("--strict", action="store_true", help="end with status 1 when protocols differ")
    parser.add_argument("--root", type=Path, default=Path.cwd(), help="the project's folder, for its mlflow.db")
    arguments = parser.parse_args(argv)
    from components import parent_runs  # imports mlflow

    try:
        if len(arguments.runs) < 2:
            raise ValueError(f"one run is given, {arguments.runs[0]!r}; comparing takes two or more")
        rows = parent_runs.pipeline_rows(arguments.root.resolve(), arguments.runs)
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(table(rows))
    told = warnings(rows)
    for warning in told:
        print(f"warning: {warning}", file=sys.stderr)
    return int(arguments.strict and bool(told))


def table(runs: Sequence["Row"]) -> str:
    """Every metric of the `runs`, a dash where one has none; of two runs the difference, the first minus the second.

    Where protocols differ the words `other protocol` stand for the difference.
    """
    apart = changes(runs)
    lines = []
    for name in _metrics(runs):
        values = [run.metrics.get(name) for run in runs]
        texts = ["–" if value is None else f"{value:.6g}" for value in values]
        lines.append([name, *texts, OTHER if name in apart else _difference(values)])
    return grid([("metric", *(run.name for run in runs), "difference" if len(runs) == 2 else ""), *lines], words=1)


def warnings(runs: Sequence["Row"]) -> list[str]:
    """One sentence for each evaluation whose scores do not compare across the `runs`."""
    sentences = {}
    for name, evaluation in changes(runs).items():
        hashes = ", ".join(f"{run.name} has {run.protocol(name)[1] or 'none'}" for run in runs if name in run.metrics)
        sentences[evaluation] = (
            f"{evaluation.replace('.', '/', 1)}: {OTHER}, so that scores do not compare: {hashes}; the small print of each report "
            f"has the settings and data"
        )
    return list(sentences.values())


def changes(runs: Sequence["Row"]) -> dict[str, str]:
    """The metrics that do not compare, with the dotted name of their evaluation.

    A run without the metric has no say; one that recorded no protocol has another.
    """
    found = {}
    for name in _metrics(runs):
        known = [run.protocol(name) for run in runs if name in run.metrics]
        if len({mark for _, mark in known}) > 1:
            found[name] = next(evaluation for evaluation, _ in known if evaluation)
    return found


def _metrics(runs: Sequence["Row"]) -> list[str]:
    return sorted(set().union(*(run.metrics for run in runs)))


def _difference(values: Sequence[float | None]) -> str:
    known = [value for value in values if value is not None]
    return f"{known[0] - known[1]:+.3g}" if len(values) == len(known) == 2 else ""


if __name__ == "__main__":
    sys.exit(main())
