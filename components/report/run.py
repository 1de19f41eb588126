"""The report: which scores pretraining moved, how they stand to the paper's, and what it all looked like."""

from pathlib import Path

from components import tracking
from components.report import gather, markdown, page, pictures, sections
from components.report.contract import ReportInputs, ReportMetrics, ReportOutputs, ReportParams
from components.stage import atomic, current_names, write_json


def run(params: ReportParams, inputs: ReportInputs, outputs: ReportOutputs) -> ReportMetrics:
    """Writes the report in its two forms and the table of its numbers. Equal inputs make equal bytes.

    Raises ValueError, naming the file, for one that is missing, broken or of another run.
    """
    made = gather.encoder(inputs.values)
    found = gather.evaluations(inputs)
    rows = gather.comparisons(found)
    title, said = sections.headline(made), sections.write(made, found, rows, params.decimals)
    figures = pictures.collect(inputs.plots, current_names(inputs.values) - {"report"}, params.picture_pixels)
    write_json(outputs.table, rows)
    _write(outputs.report, markdown.write(title, said))
    _write(outputs.page, page.write(title, said, figures))
    for path in (outputs.report, outputs.page):
        tracking.log_figure(path)
    twins = [row for row in rows if row["difference"] is not None]
    return ReportMetrics(
        compared=len(twins),
        improved=sum(gather.better(row["metric"], row["difference"]) for row in twins),
        published=sum(bool(row["published"]) for row in rows),
    )


def _write(path: Path, text: str) -> None:
    with atomic(path) as temporary:
        temporary.write_text(text, encoding="utf-8")
