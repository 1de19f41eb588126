"""MLflow, as the stages see it: a run around each stage, with its curves and figures.

Tracking never stops a stage: when MLflow refuses something, one warning says so and the work goes on; every number is in the
stage's own files as well. The rows of whole pipeline runs: components/parent_runs.py. No other file of the project imports MLflow.
"""

from components.tracking.database import EXPERIMENT, PARENT, create_run, project_root, uri
from components.tracking.run import Run, numbers_and_tags, tolerant
from components.tracking.stage_run import StageRecord, log_figure, log_metrics, log_plot, log_tags, stage_run

__all__ = [
    "EXPERIMENT",
    "PARENT",
    "Run",
    "StageRecord",
    "create_run",
    "log_figure",
    "log_metrics",
    "log_plot",
    "log_tags",
    "numbers_and_tags",
    "project_root",
    "stage_run",
    "tolerant",
    "uri",
]
