"""The row of an ablation in MLflow: above the rows of its members, with its figure and tables as artefacts."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from components.parent_runs import begin_row, open_row

NOTE = "mlflow.note.content"  # what MLflow's page of a run shows as its description


def start(checkout: Path, ablation: str, known: str, tags: Mapping[str, str]) -> str:
    """Opens the row `known` again or, where there is none, makes a new one; its id, or a handle while MLflow is away."""
    return begin_row(checkout, ablation, {"ablation": ablation, **tags}, known)


def finish(
    checkout: Path,
    run_id: str,
    status: str,
    members: Mapping[str, str],
    counts: Mapping[str, int],
    files: Sequence[Path],
) -> None:
    """Closes the row: the `files` as artefacts, the first of them, Markdown, as description, too.

    `members` are ids of rows, by name, which become children unless they have a parent.
    """
    run = open_row(checkout, run_id)
    try:
        run.scalars({name: float(count) for name, count in counts.items()})
        run.tags({NOTE: files[0].read_text(encoding="utf-8")} if files else {})
        for path in files:
            run.artifact(path)
        for member in members.values():
            run.adopt(member)
    finally:
        run.end(status)
