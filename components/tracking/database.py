"""Where MLflow stores, and how a run begins there."""

import fcntl
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from components.tracking.run import Run

os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")  # before mlflow is imported: it reads its environment then

EXPERIMENT = "stop"
PARENT = "PIPELINE_PARENT_RUN_ID"
"""Environment variable that names the parent run for the stages. MLFLOW_RUN_ID would override every stage's own run."""


def project_root() -> Path:
    """The folder that holds dvc.yaml: DVC tells its stages; elsewhere the working directory."""
    return Path(os.environ.get("DVC_ROOT") or os.getcwd()).resolve()


def uri(root: Path) -> str:
    """Where MLflow stores: MLFLOW_TRACKING_URI, else a sqlite file at an absolute path in the project."""
    return os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{root / 'mlflow.db'}"


def existing(root: Path) -> str:
    """The same, to ask and not to write. Raises ValueError for a database file that is not there, which MLflow would make."""
    where = uri(root)
    if where.startswith("sqlite:///") and not Path(where.removeprefix("sqlite:///")).is_file():
        raise ValueError(f"there is no MLflow database {where}; name the folder of a project in which a pipeline ran")
    return where


def create_run(root: Path, name: str, parent: str, tags: Mapping[str, str]) -> Run:
    """A new run. The first use of a fresh sqlite file migrates it, which two processes must not do at once."""
    from mlflow import MlflowClient

    where = uri(root)
    with (root / "mlflow.db.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        client = MlflowClient(where)
        experiment = client.get_experiment_by_name(EXPERIMENT)
        artifacts = f"file://{root / 'mlartifacts'}" if where.startswith("sqlite") else None
        kind = {"mlflow.experimentKind": "custom_model_development"}  # its page opens on runs, not on traces
        number = experiment.experiment_id if experiment else client.create_experiment(EXPERIMENT, artifacts, kind)
    linked = {"mlflow.parentRunId": parent} if parent else {}
    source = {"mlflow.source.name": Path(sys.argv[0]).parent.name, "mlflow.user": os.environ.get("USER", "")}
    run = client.create_run(number, run_name=name, tags={**source, **tags, **linked})
    return Run(where, run.info.run_id)


def git_tags(root: Path) -> dict[str, str]:
    """The commit and whether the tree differs from it; empty without git."""

    def git(*arguments: str) -> str:
        return subprocess.run(
            ["git", "-C", str(root), *arguments], capture_output=True, text=True, check=True
        ).stdout.strip()

    try:
        return {
            "git.sha": git("rev-parse", "HEAD"),
            "git.dirty": str(bool(git("status", "--porcelain", "-uno"))).lower(),
        }
    except (OSError, subprocess.CalledProcessError):
        return {}
