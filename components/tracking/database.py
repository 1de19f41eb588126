"""Where MLflow stores, and the clients that reach it."""

import fcntl
import os
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from mlflow import MlflowClient

# Before mlflow is imported, which reads its environment then. A server that is away must not hold a stage up for minutes.
os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "10")
os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")

EXPERIMENT = "stop"
PARENT = "PIPELINE_PARENT_RUN_ID"
"""Environment variable that names the parent run for the stages. MLFLOW_RUN_ID would override every stage's own run."""
JOURNALS = "PIPELINE_JOURNALS"
"""Environment variable with the folder of the journals, for a database that is no file and so has no folder of its own."""


class Database(NamedTuple):
    """A database of MLflow's, and the folder of what is written down before it is sent there."""

    uri: str
    journals: Path

    @property
    def file(self) -> Path | None:
        """The sqlite file; None for a server or another database."""
        return Path(self.uri.removeprefix("sqlite:///")) if self.uri.startswith("sqlite:///") else None

    def client(self) -> "MlflowClient":
        """A client. The first use of a fresh sqlite file migrates it, which two processes must not do at once."""
        from mlflow import MlflowClient

        if self.file is None:
            return MlflowClient(self.uri)
        with Path(f"{self.file}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            return MlflowClient(self.uri)

    def experiment(self, client: "MlflowClient") -> str:
        """The experiment's id. It is made once, with an absolute folder of artefacts beside a sqlite file."""
        known = client.get_experiment_by_name(EXPERIMENT)
        if known:
            return str(known.experiment_id)
        artifacts = f"file://{self.file.parent / 'mlartifacts'}" if self.file else None
        kind = {"mlflow.experimentKind": "custom_model_development"}  # its page opens on runs, not on traces
        from mlflow.exceptions import MlflowException

        try:
            return str(client.create_experiment(EXPERIMENT, artifacts, kind))
        except MlflowException:
            if made := client.get_experiment_by_name(EXPERIMENT):  # by another process in this moment
                return str(made.experiment_id)
            raise


def project_root() -> Path:
    """The folder that holds dvc.yaml: DVC tells its stages; elsewhere the working directory."""
    return Path(os.environ.get("DVC_ROOT") or os.getcwd()).resolve()


def uri(root: Path) -> str:
    """Where MLflow stores: MLFLOW_TRACKING_URI, else a sqlite file at an absolute path in the project.

    Raises ValueError for a relative path there: the flow and the stages work in different folders and would each have a file of their own.
    """
    where = os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{root.absolute() / 'mlflow.db'}"
    if (file := Database(where, root).file) and not file.is_absolute():
        raise ValueError(
            f"MLFLOW_TRACKING_URI is {where!r}, a sqlite file at a relative path; it must be absolute, as in "
            f"sqlite:///{root.absolute() / file}, or unset it for mlflow.db in the project"
        )
    return where


def existing(root: Path) -> str:
    """The same, to ask and not to write. Raises ValueError for a database file that is not there, which MLflow would make."""
    where = uri(root)
    if (file := Database(where, root).file) and not file.is_file():
        raise ValueError(f"there is no MLflow database {where}; name the folder of a project in which a pipeline ran")
    return where


def database(root: Path) -> Database:
    """The database for work in `root`. Its journals lie beside a sqlite file, else where PIPELINE_JOURNALS says, else in `root`."""
    where = uri(root)
    beside = Database(where, root).file
    folder = os.environ.get(JOURNALS) if beside is None else None
    return Database(where, Path(folder) if folder else (beside.parent if beside else root) / "logs" / "tracking")
