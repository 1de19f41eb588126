"""The rows of whole pipeline runs in MLflow: every parameter and headline metric, complete even if every stage was cached.

The runs of the stages hang below them: components/tracking/.

`writing` (a row begins, goes on and ends) · `headlines` (what it shows of the stages) · `dead` (rows whose process is gone) ·
`rows` (reading them again) · `access` (whether MLflow can be written at all).
"""

from components.parent_runs.access import check
from components.parent_runs.dead import close_dead, close_killed
from components.parent_runs.headlines import headline_metrics, headline_tags
from components.parent_runs.rows import Row, beside_previous, pipeline_row, pipeline_rows
from components.parent_runs.writing import (
    attach,
    begin_row,
    finish_pipeline,
    open_row,
    record_pipeline,
    stage_environment,
    start_pipeline,
)

__all__ = [
    "Row",
    "attach",
    "begin_row",
    "beside_previous",
    "check",
    "close_dead",
    "close_killed",
    "finish_pipeline",
    "headline_metrics",
    "headline_tags",
    "open_row",
    "pipeline_row",
    "pipeline_rows",
    "record_pipeline",
    "stage_environment",
    "start_pipeline",
]
