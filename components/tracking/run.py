"""One run of MLflow, written through its client; what it refuses becomes a warning."""

import json
import math
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any


class Run:
    """One MLflow run, written through the client so that no thread-local state is involved."""

    def __init__(self, uri: str, run_id: str) -> None:
        from mlflow import MlflowClient

        self.uri, self.run_id, self._client = uri, run_id, MlflowClient(uri)
        self.curves: set[str] = set()

    def metrics(self, values: Mapping[str, float], step: int = 0) -> None:
        """Adds one point to each metric. Values that are no finite numbers are left out."""
        from mlflow.entities import Metric

        if step:
            self.curves |= values.keys()
        now = int(time.time() * 1000)
        points = [Metric(name, float(value), now, step) for name, value in values.items() if math.isfinite(value)]
        with tolerant("metrics"):
            for start in range(0, len(points), 1000):  # MLflow's limit for one batch
                self._client.log_batch(self.run_id, metrics=points[start : start + 1000])

    def params(self, values: Mapping[str, Any]) -> None:
        """Records parameters; a list or mapping as JSON."""
        from mlflow.entities import Param

        texts = {key: value if isinstance(value, str) else json.dumps(value) for key, value in values.items()}
        entries = [Param(key, text) for key, text in texts.items()]
        with tolerant("parameters"):
            for start in range(0, len(entries), 100):
                self._client.log_batch(self.run_id, params=entries[start : start + 100])

    def tags(self, values: Mapping[str, str]) -> None:
        """Sets tags."""
        with tolerant("tags"):
            for key, value in values.items():
                self._client.set_tag(self.run_id, key, value)

    def artifact(self, path: Path, folder: str | None = None) -> None:
        """Attaches a file."""
        with tolerant(f"artefact {path.name}"):
            self._client.log_artifact(self.run_id, str(path), folder)

    def adopt(self, child: str) -> None:
        """Makes `child` a child of this run unless it has a parent or is gone."""
        with tolerant(f"the link to run {child}"):
            if child and "mlflow.parentRunId" not in self._client.get_run(child).data.tags:
                self._client.set_tag(child, "mlflow.parentRunId", self.run_id)

    def end(self, status: str) -> None:
        """Closes the run as FINISHED, FAILED or KILLED."""
        with tolerant("the final status"):
            self._client.set_terminated(self.run_id, status)


def numbers_and_tags(named: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
    """Numbers by MLflow's name, and texts as tags: `davis/protocol` is the tag `protocol.davis`."""
    texts = {name: value for name, value in named.items() if isinstance(value, str)}
    tags = {".".join((name.rpartition("/")[2], *name.split("/")[:-1])): value for name, value in texts.items()}
    return {name: value for name, value in named.items() if name not in texts}, tags


@contextmanager
def tolerant(what: str) -> Iterator[None]:
    """Turns MLflow's failures into one warning line: a lost point must not cost a week of training."""
    from mlflow.exceptions import MlflowException
    from sqlalchemy.exc import SQLAlchemyError

    try:
        yield
    except (MlflowException, SQLAlchemyError, OSError) as error:
        print(
            f"warning: MLflow did not take {what}: {error}; the stage goes on, its files hold the numbers",
            file=sys.stderr,
        )
