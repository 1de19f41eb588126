"""What a person reads when a run has ended."""

import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from prefect.client.schemas import State

from components.parent_runs import Row
from components.report.markdown import SMALL_PRINT, grid
from flows import compare, links
from flows.graph import Node
from flows.workspace import Workspace

COLUMNS = ("stage", "state", "seconds", "log")
DONE = ("ran", "cached")


def row(stage: str, state: State[Any]) -> dict[str, Any]:
    """A stage's result from the final state of its task run; `message` says why it failed or didn't run."""
    if state.name == "NotReady":
        message = "a stage before it failed"
        return {"stage": stage, "state": "not run", "seconds": 0.0, "log": "", "message": message}
    result = state.result(raise_on_failure=False)
    if not isinstance(
        result, dict
    ):  # the task itself broke: ours to see in full, but not at the cost of the other stages
        broken = traceback.format_exception(result) if isinstance(result, BaseException) else [str(state.message)]
        message = f"the task of this stage broke, in state {state.name}\n{''.join(broken)}"
        return {"stage": stage, "state": "failed", "seconds": 0.0, "log": "", "message": message}
    return result | {"message": state.message or ""}


def report(root: Path, nodes: Sequence[Node], rows: Sequence[dict[str, Any]], compared: Sequence[Row]) -> str:
    """Markdown: what the stage `report` wrote, if this run made or kept it, the table of stages, and each failure.

    `compared` holds this run and the one before it; their metrics stand side by side. The small print comes last.
    """
    done = {row["stage"] for row in rows if row["state"] in DONE}
    pages = [out for node in nodes if node.word == "report" and node.name in done for out in node.outs]
    texts = [page.read_text(encoding="utf-8").partition(SMALL_PRINT) for page in pages if page.suffix == ".md"]
    parts = [above for above, _, _ in texts]
    if len(compared) > 1:
        parts.append("\n\n".join(["## Beside the previous run", compare.table(compared), *compare.warnings(compared)]))
    parts.append("## Stages\n\n" + _table([COLUMNS, *([str(row[column]) for column in COLUMNS] for row in rows)]))
    for row in rows:
        if row["state"] == "failed":
            parts.append(f"## {row['stage']} failed\n\n```\n{row['message']}\n```\n\nAll its lines: `{row['log']}`")
    parts += _links(compared)
    parts += [heading + below for _, heading, below in texts if heading]
    return "\n\n".join(part.strip() for part in parts) + "\n"


def brief(report: str) -> str:
    """The report without its small print, for a terminal."""
    return report.partition(SMALL_PRINT)[0].rstrip() + "\n"


def _links(compared: Sequence[Row]) -> list[str]:
    ui = links.mlflow_ui()
    if not ui or not compared:
        return []
    current = compared[0]
    text = f"[{current.name} in MLflow]({links.run(ui, current.experiment, current.run_id)})"
    if len(compared) > 1:
        page = links.comparison(ui, current.experiment, [row.run_id for row in compared])
        text += f" · [beside {compared[1].name}]({page})"
    return [text + f" · [all runs]({links.experiment(ui, current.experiment)})"]


def _table(rows: Sequence[Sequence[str]]) -> str:
    """Markdown that is readable as plain text, too; the first of the `rows` is the head."""
    return grid(rows, words=len(rows[0]))


def failure(rows: Sequence[dict[str, Any]]) -> str:
    """One message for the run's failed state."""
    failed = [row for row in rows if row["state"] == "failed"]
    skipped = [row["stage"] for row in rows if row["state"] == "not run"]
    parts = [f"{row['stage']} failed: {row['message']}" for row in failed]
    return "\n".join(parts + ([f"not run: {', '.join(skipped)}"] if skipped else []))


def whereabouts(space: Workspace, nodes: Sequence[Node], uri: str, compared: Sequence[Row], unsaved: str) -> str:
    """Where the results are and what to do next; `unsaved` says why there is no DVC experiment."""
    root, name = space.root, space.record.name
    folders = dict.fromkeys(out.relative_to(root).parts[0] for node in nodes for out in node.outs)
    pages = _links(compared) or [f"mlflow ui --backend-store-uri {uri}"]
    saved = f"{name} (`dvc exp show` lists it, `dvc exp apply {name}` brings it into the checkout)"
    lines = [
        "## Where things are",
        "",
        *[f"- report: {page}" for node in nodes for page in node.outs if page.suffix == ".html" and page.is_file()],
        f"- results: {', '.join(folders)} in {root}",
        f"- MLflow run {name}: {pages[0]}",
        f"- DVC experiment: {f'not saved: {unsaved}' if unsaved else saved}",
        f"- every line the stages printed: {space.checkout / 'logs' / name}/",
    ]
    if space.patch:
        lines.append(f"- what was not committed when it started: {space.patch}, and with the run in MLflow")
    lines += [
        "",
        "## Next",
        "",
        "- Change a value in params/ and run again: only the stages it touches run. `dvc exp diff` and",
        "  `dvc params diff` show what changed.",
        "- `dvc repro` runs the same stages in the checkout, without Prefect; `dvc dag` draws them.",
        "- `make run PRESET=cifar10 DATA=FOLDER` runs on CIFAR-10 and DAVIS in FOLDER.",
    ]
    return "\n".join(lines)
