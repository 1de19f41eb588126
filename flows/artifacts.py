"""What a run leaves on its page in Prefect's UI besides its logs: its cost, progress, report, table of stages, links to MLflow and Ray."""

import re
import time
from collections.abc import Sequence
from typing import Any
from uuid import UUID

import httpx
from prefect import get_run_logger
from prefect.artifacts import (
    create_link_artifact,
    create_markdown_artifact,
    create_progress_artifact,
    create_table_artifact,
    update_progress_artifact,
)

from components.parent_runs import Row
from flows import links, summary

EVERY_S = 10.0
DONE = re.compile(r"\b(\d+)/(\d+)\b.*\bleft$")
"""A stage's line of progress, such as `step 40/108, epoch 0.4, loss 0.4310, 350 images/s, 2 min 3 s left`."""

DASHBOARD = re.compile(r"^Ray's dashboard: (https?://\S+)$")
"""A stage's line that says where its Ray cluster is watched (components/cluster/connection.py)."""


def key(stage: str) -> str:
    """The stage's name as an artefact's key, which Prefect allows lower-case letters, digits and dashes."""
    return re.sub("[^a-z0-9]+", "-", stage.lower()).strip("-")


class Progress:
    """A stage's progress artefact, brought up to date by the lines it prints, at most every ten seconds and at its end."""

    def __init__(self, stage: str) -> None:
        self._stage, self._sent = stage, -EVERY_S
        self._artifact: UUID | None = None
        self._unsent: tuple[float, str] | None = None

    def line(self, text: str) -> None:
        """Reads one line of the stage; one without progress is passed over."""
        found = DONE.search(text)
        if not found or not int(found[2]):
            return
        self._unsent = min(100.0, 100 * int(found[1]) / int(found[2])), text
        if time.monotonic() - self._sent >= EVERY_S:
            self._send()

    def end(self) -> None:
        """Sends what came last."""
        if self._unsent:
            self._send()

    def _send(self) -> None:
        assert self._unsent
        share, text = self._unsent
        self._sent, self._unsent = time.monotonic(), None
        try:
            if self._artifact is None:
                created = create_progress_artifact(share, key=f"progress-{key(self._stage)}", description=text)
                assert isinstance(created, UUID)
                self._artifact = created
            else:
                update_progress_artifact(self._artifact, share, description=text)
        except httpx.HTTPError as error:  # a server that is away for a minute must not end a week of training
            get_run_logger().warning("Prefect's server did not take the progress of %s: %r", self._stage, error)


def dashboard(stage: str, line: str) -> None:
    """The link to the dashboard of the Ray cluster that `stage` works on, if `line` says where it is."""
    found = DASHBOARD.search(line)
    if not found:
        return
    try:
        create_link_artifact(found[1], f"Ray's dashboard of {stage}", key=f"ray-{key(stage)}")
    except httpx.HTTPError as error:  # the line stands in the log as well
        get_run_logger().warning("Prefect's server did not take the link to %s: %r", found[1], error)


def page(key: str, text: str, description: str) -> None:
    """A page of Markdown on its own."""
    try:
        create_markdown_artifact(text, key=key, description=description)
    except httpx.HTTPError as error:  # a run does not depend on it
        get_run_logger().warning("Prefect's server did not take the page %s: %r", key, error)


def publish(name: str, report: str, rows: Sequence[dict[str, Any]], compared: Sequence[Row]) -> None:
    """The end of run `name`: its report, its stages, and MLflow's pages about it and about it beside the previous run."""
    try:
        _publish(name, report, rows, compared)
    except httpx.HTTPError as error:  # all of it is in files and in MLflow as well
        get_run_logger().warning("Prefect's server did not take the report of %s: %r", name, error)


def _publish(name: str, report: str, rows: Sequence[dict[str, Any]], compared: Sequence[Row]) -> None:
    create_markdown_artifact(report, key="report", description=f"Report of {name}")
    create_table_artifact(
        [{column: row[column] for column in summary.COLUMNS} for row in rows], key="stages", description=name
    )
    ui = links.mlflow_ui()
    if not ui or not compared:
        return
    current = compared[0]
    create_link_artifact(links.run(ui, current.experiment, current.run_id), f"{name} in MLflow", key="mlflow-run")
    if len(compared) > 1:
        page = links.comparison(ui, current.experiment, [row.run_id for row in compared])
        create_link_artifact(page, f"{name} beside {compared[1].name} in MLflow", key="mlflow-comparison")
