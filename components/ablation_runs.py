"""The row of an ablation in MLflow: above the rows of its members, with its figure and tables as artefacts."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from components.parent_runs import reopened
from components.tracking import Run, create_run, tolerant, uri

NOTE = "mlflow.note.content"  # what MLflow's page of a run shows as its description


def start(checkout: Path, ablation: str, known: str, tags: Mapping[str, str]) -> str:
    """Opens the row `known` again or, where there is none, makes a new one; its id, or '' where MLflow refused."""
    run = None
    if known:
        with tolerant(f"ablation {ablation} under its row {known}"):
            run = reopened(checkout, known)
    if run is None:
        with tolerant(f"the row of ablation {ablation}"):
            run = create_run(checkout, ablation, "", {})
    if run is None:
        return ""
    run.tags({"ablation": ablation, **tags})
    return run.run_id


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
    if not run_id:
        return
    run = Run(uri(checkout), run_id)
    try:
        run.metrics({name: float(count) for name, count in counts.items()})
        run.tags({NOTE: files[0].read_text(encoding="utf-8")} if files else {})
        for path in files:
            run.artifact(path)
        for member in members.values():
            run.adopt(member)
    finally:
        run.end(status)
