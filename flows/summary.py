"""What a person reads when a run has ended."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from prefect.client.schemas import State

from flows.graph import Node

COLUMNS = ("stage", "state", "seconds", "log")
DONE = ("ran", "cached")


def row(stage: str, state: State[Any]) -> dict[str, Any]:
    """A stage's result from the final state of its task run; `message` says why it failed or didn't run."""
    if state.name == "NotReady":
        message = "a stage before it failed"
        return {"stage": stage, "state": "not run", "seconds": 0.0, "log": "", "message": message}
    result = state.result(raise_on_failure=False)
    if not isinstance(result, dict):  # the task itself broke, which is ours to see in full
        raise RuntimeError(f"the task of stage {stage!r} ended in state {state}") from (
            result if isinstance(result, BaseException) else None
        )
    return result | {"message": state.message or ""}


def report(root: Path, nodes: Sequence[Node], rows: Sequence[dict[str, Any]]) -> str:
    """Markdown: what the stage `report` wrote, if this run made or kept it, the table of stages, and each failure."""
    done = {row["stage"] for row in rows if row["state"] in DONE}
    pages = [out for node in nodes if node.word == "report" and node.name in done for out in node.outs]
    parts = [page.read_text(encoding="utf-8") for page in pages if page.suffix == ".md"]
    parts.append("## Stages\n\n" + _table(rows))
    for row in rows:
        if row["state"] == "failed":
            parts.append(f"## {row['stage']} failed\n\n```\n{row['message']}\n```\n\nAll its lines: `{row['log']}`")
    return "\n\n".join(part.strip() for part in parts) + "\n"


def _table(rows: Sequence[dict[str, Any]]) -> str:
    columns = [[column, *(str(row[column]) for row in rows)] for column in COLUMNS]
    widths = [max(map(len, column)) for column in columns]
    for column, width in zip(columns, widths, strict=True):
        column.insert(1, "-" * width)
    lines = zip(*columns, strict=True)
    return "\n".join("| " + " | ".join(map(str.ljust, line, widths)) + " |" for line in lines)


def failure(rows: Sequence[dict[str, Any]]) -> str:
    """One message for the run's failed state."""
    failed = [row for row in rows if row["state"] == "failed"]
    skipped = [row["stage"] for row in rows if row["state"] == "not run"]
    parts = [f"{row['stage']} failed: {row['message']}" for row in failed]
    return "\n".join(parts + ([f"not run: {', '.join(skipped)}"] if skipped else []))


def whereabouts(root: Path, name: str, nodes: Sequence[Node], uri: str, unsaved: str) -> str:
    """Where the results are and what to do next; `unsaved` says why there is no DVC experiment."""
    folders = dict.fromkeys(out.relative_to(root).parts[0] for node in nodes for out in node.outs)
    saved = f"{name} (`dvc exp show` lists it, `dvc exp apply {name}` brings it back)"
    return "\n".join(
        [
            "## Where things are",
            "",
            f"- results: {', '.join(folders)} in {root}",
            f"- MLflow run {name}: mlflow ui --backend-store-uri {uri}",
            f"- DVC experiment: {f'not saved: {unsaved}' if unsaved else saved}",
            f"- every line the stages printed: logs/{name}/",
            "",
            "## Next",
            "",
            "- Change a value in params/ and run again: only the stages it touches run. `dvc params diff` and",
            "  `dvc metrics diff` show what changed.",
            "- `dvc repro` runs the same stages without Prefect; `dvc dag` draws them.",
            "- `make run PRESET=cifar10 DATA=FOLDER` runs on CIFAR-10 and DAVIS in FOLDER.",
        ]
    )
