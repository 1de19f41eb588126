"""Addresses that a person's browser can open: pages of MLflow's UI."""

import json
import os
from collections.abc import Sequence
from urllib.parse import quote

TRAINING = "workflowType=machine_learning"  # else MLflow's pages open on traces of language models


def mlflow_ui() -> str:
    """Where MLflow's UI is, from MLFLOW_UI_URL or, where clients and browsers use one address, MLFLOW_TRACKING_URI; else ''."""
    tracking = os.environ.get("MLFLOW_TRACKING_URI", "")
    return os.environ.get("MLFLOW_UI_URL", tracking if tracking.startswith("http") else "").rstrip("/")


def run(ui: str, experiment: str, run_id: str) -> str:
    """The page of one run."""
    return f"{ui}/#/experiments/{experiment}/runs/{run_id}?{TRAINING}"


def comparison(ui: str, experiment: str, runs: Sequence[str]) -> str:
    """The page that sets runs side by side."""
    chosen = f"runs={quote(json.dumps(list(runs)))}&experiments={quote(json.dumps([experiment]))}"
    return f"{ui}/#/compare-runs?{chosen}&{TRAINING}"


def experiment(ui: str, number: str) -> str:
    """The table of all runs."""
    return f"{ui}/#/experiments/{number}/runs?{TRAINING}"
