"""What an ablation leaves: figure and tables in `ablations/<name>/`, in MLflow and on its page in Prefect."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
from prefect import get_run_logger
from prefect.artifacts import create_link_artifact, create_markdown_artifact, create_table_artifact

from components.stage import atomic, canonical_yaml, write_json
from flows import artifacts, links, records
from flows.ablations import spread
from flows.ablations.members import Member
from flows.ablations.spread import Scored
from flows.ablations.standing import Do
from flows.ablations.sweep import Sweep

if TYPE_CHECKING:
    from components.ablation_figure import Panel

REPORT, FIGURE = "report.md", "figure.png"


def folder(checkout: Path, name: str) -> Path:
    """Where the files of an ablation are."""
    return checkout / "ablations" / name


def start(checkout: Path, name: str, definition: Sweep, url: str) -> str:
    """Opens the ablation's row in MLflow, the one of an earlier run where there is one, and writes the definition down."""
    from components import ablation_runs  # imports mlflow
    from components.tracking import uri

    about = folder(checkout, name) / "run.json"
    known = json.loads(about.read_text(encoding="utf-8")) if about.is_file() else {}
    earlier = known["mlflow_run_id"] if known.get("tracking_uri") == uri(checkout) else ""
    tags = {"ablation.seeds": ", ".join(map(str, definition.seeds))} | ({"prefect.url": url} if url else {})
    row = ablation_runs.start(checkout, name, earlier, tags)
    write_json(about, {"mlflow_run_id": row, "tracking_uri": uri(checkout)})
    _write(folder(checkout, name) / "definition.yaml", canonical_yaml(definition.model_dump()))
    return row


def close(checkout: Path, row: str, status: str) -> None:
    """Closes the row of an ablation that was cut short."""
    from components import ablation_runs

    ablation_runs.finish(checkout, row, status, {}, {}, [])


def scored(checkout: Path, member: Member, do: Do, reasons: Mapping[str, str]) -> Scored:
    """A member with its row in MLflow; `reasons` says why those that ran failed, '' for none."""
    from components import parent_runs

    record = records.read(checkout, member.name)
    reason = reasons.get(member.name, "")
    if reason or record is None or record.status != "FINISHED":
        return Scored(member, "failed", reason or "it left no record of its end", None)
    try:
        row = parent_runs.pipeline_row(checkout, record.parent)
    except ValueError as error:  # deleted there, or away
        return Scored(member, "failed", f"it finished, but its scores cannot be read: {error}", None)
    return Scored(member, "taken" if do == "take" else "finished", "", row)


def leave(checkout: Path, name: str, definition: Sweep, scores: Sequence[Scored], row: str) -> str:
    """Writes, records and publishes everything; the report."""
    from components import ablation_runs

    place, metrics = folder(checkout, name), definition.metrics
    report = spread.markdown(name, scores, metrics)
    _write(place / REPORT, report)
    _write(place / "table.csv", spread.table_csv(scores, metrics))
    _write(place / "members.csv", spread.members_csv(scores, metrics))
    files = [place / REPORT, place / "table.csv", place / "members.csv", place / "definition.yaml"]
    if any(one.row for one in scores):
        files.append(draw(place / FIGURE, name, scores, metrics))
    else:
        (place / FIGURE).unlink(missing_ok=True)
    counts = {"members": len(scores), "members_failed": sum(one.row is None for one in scores)}
    rows = {one.member.name: one.row.run_id for one in scores if one.row}
    ablation_runs.finish(checkout, row, "FAILED" if counts["members_failed"] else "FINISHED", rows, counts, files)
    try:
        _publish(name, report, scores, metrics, row)
    except httpx.HTTPError as error:  # all of it is in files and in MLflow as well
        get_run_logger().warning("Prefect's server did not take the report of %s: %r", name, error)
    return f"{report}\nFigure and tables: {place}/\n"


def draw(path: Path, name: str, scores: Sequence[Scored], metrics: Sequence[str]) -> Path:
    """Draws the figure to `path`."""
    from components import ablation_figure  # imports matplotlib

    axis, drawings = panels(scores, metrics)
    drawn = ablation_figure.figure(name, axis, drawings)
    with atomic(path) as temporary:
        drawn.savefig(temporary, format="png")
    return path


def panels(scores: Sequence[Scored], metrics: Sequence[str]) -> tuple[str, list["Panel"]]:
    """The first axis of numbers becomes x and every combination of the others a line; without one, combinations stand side by side."""
    from components.ablation_figure import Panel

    found = spread.cells(scores)
    cells = {label: of[0].member.cell for label, of in found.items()}
    axis = next(
        (axis for axis in _axes(list(cells.values())) if _numeric([cell.shown.get(axis) for cell in cells.values()])),
        "",
    )
    differ = [
        key for key in _axes(list(cells.values())) if len({str(cell.shown.get(key)) for cell in cells.values()}) > 1
    ]
    drawings = []
    for column in spread.columns(scores, metrics):
        lines: dict[str, dict[float | str, list[float]]] = {}
        for label, cell in cells.items():
            others = {key: value for key, value in cell.shown.items() if key != axis and key in differ}
            legend = ", ".join(f"{key} {value}" for key, value in others.items()) if axis else ""
            place = cell.shown[axis] if axis else label
            lines.setdefault(legend, {})[place] = spread.over_seeds(found[label], column)
        ordered = {legend: dict(sorted(line.items())) if axis else line for legend, line in lines.items()}
        drawings.append(Panel(column.title, ordered))
    return axis, drawings


def _axes(cells: Sequence[Any]) -> list[str]:
    return list(dict.fromkeys(axis for cell in cells for axis in cell.shown))


def _numeric(values: Sequence[Any]) -> bool:
    return all(isinstance(value, int | float) for value in values) and len(set(values)) > 1


def _publish(name: str, report: str, scores: Sequence[Scored], metrics: Sequence[str], row: str) -> None:
    create_markdown_artifact(report, key=f"ablation-{artifacts.key(name)}", description=f"Ablation {name}")
    shown = spread.columns(scores, metrics)
    table = [
        {
            "member": one.member.name,
            "state": one.state,
            **{column.title: column.value(one) for column in shown},
            "reason": one.reason,
        }
        for one in scores
    ]
    create_table_artifact(table, key="members", description=f"Members of ablation {name}")
    ui = links.mlflow_ui()
    experiment = next((one.row.experiment for one in scores if one.row), "")
    if ui and row and experiment:
        create_link_artifact(links.run(ui, experiment, row), f"{name} in MLflow", key="mlflow-ablation")


def _write(path: Path, text: str) -> None:
    with atomic(path) as temporary:
        temporary.write_text(text, encoding="utf-8")
