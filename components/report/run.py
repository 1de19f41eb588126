"""The report: which scores pretraining moved, and what pretraining looked like at its end."""

import json
from typing import Any

from components import tracking
from components.report.contract import ReportInputs, ReportMetrics, ReportOutputs, ReportParams
from components.stage import atomic, current_names, write_json

UNTRAINED, GAIN = "_untrained", "_gain"


def run(params: ReportParams, inputs: ReportInputs, outputs: ReportOutputs) -> ReportMetrics:
    """Writes the report, the table of its numbers and nothing else."""
    values = {
        name: json.loads((inputs.metrics / f"{name}.json").read_text(encoding="utf-8"))
        for name in sorted(current_names(inputs.values) - {"report"})
    }
    rows = comparisons(values)
    write_json(outputs.table, rows)
    with atomic(outputs.report) as path:
        path.write_text(_markdown(rows, values, params.decimals), encoding="utf-8")
    tracking.log_figure(outputs.report)
    return ReportMetrics(compared=len(rows), improved=sum(row["difference"] > 0 for row in rows))


def comparisons(values: dict[str, dict[str, Any]]) -> list[dict[str, Any]]:
    """One row for every metric that has an untrained twin, by stage and member, with MLflow's name for it."""
    return [
        {
            "metric": f"{stage}/{name}",
            "pretrained": metrics[name],
            "untrained": metrics[name + UNTRAINED],
            "difference": metrics[name + GAIN],
        }
        for stage, metrics in values.items()
        for name in metrics
        if name + UNTRAINED in metrics and name + GAIN in metrics
    ]


def _markdown(rows: list[dict[str, Any]], values: dict[str, dict[str, Any]], decimals: int) -> str:
    lines = [
        "# Report",
        "",
        "Percent; *untrained* is the same encoder before its first step, with the same heads, grid, selection and seeds.",
        "",
        "| metric | pretrained | untrained | difference |",
        "|---|---:|---:|---:|",
    ]
    for row in rows:
        numbers = (
            f"{row['pretrained']:.{decimals}f} | {row['untrained']:.{decimals}f} | {row['difference']:+.{decimals}f}"
        )
        lines.append(f"| {row['metric']} | {numbers} |")
    lines += ["", "Pretraining at its end:", "", "| value | |", "|---|---:|"]
    lines += [f"| pretrain/{name} | {value:.4g} |" for name, value in values.get("pretrain", {}).items()]
    lines += [
        "",
        "The loss says nothing about quality, since its targets move; effective rank and feature std warn of collapse.",
    ]
    return "\n".join(lines) + "\n"
