"""MLflow, as the stages see it: a run around each stage, with its curves and figures.

Tracking never stops a stage: each operation is written to a journal first and sent to MLflow when that can be had; every number is in
the stage's own files as well. The rows of whole pipeline runs: components/parent_runs.py; the model registry: components/registry/.
No other file of the project imports MLflow.

`journal` (on disk) · `delivery` (from there to MLflow) · `run` (one run) · `resumption` (the run that a stage goes on in) ·
`origin` (tags and datasets) · `system` (how busy the machine is) · `stage_runs` (what stages call) · `sync` (what is still to be sent).
"""

from components.tracking.database import EXPERIMENT, PARENT, Database, database, project_root, uri
from components.tracking.run import Run
from components.tracking.stage_runs import (
    StageRecord,
    log_figure,
    log_metrics,
    log_plot,
    log_points,
    log_tags,
    stage_run,
)

__all__ = [
    "EXPERIMENT",
    "PARENT",
    "Database",
    "Run",
    "StageRecord",
    "database",
    "log_figure",
    "log_metrics",
    "log_plot",
    "log_points",
    "log_tags",
    "project_root",
    "stage_run",
    "uri",
]
