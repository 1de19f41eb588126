"""How busy the machine is while a stage runs: MLflow's own monitor of CPU, memory, disk, network and GPUs."""

import logging
import os
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from components.tracking.delivery import away
from components.tracking.run import Run

SWITCH = "MLFLOW_ENABLE_SYSTEM_METRICS_LOGGING"
"""MLflow's own environment variable; `false` turns the monitor off."""
FIRST_S, LONGEST_S, GROWTH = 2.0, 60.0, 1.25
"""Seconds between two points: few at first, so that short stages have some; a minute in the end, so that a week has 10,000."""


@contextmanager
def system_metrics(run: Run) -> Iterator[None]:
    """Metrics `system/<host>/…` of the open run, each attempt's after the one before. A failure is a warning only."""
    monitor = None
    if run.stored and os.environ.get(SWITCH, "").lower() not in ("false", "0"):
        try:
            monitor = _monitor(run)
            monitor.start()
        except Exception as error:  # whatever a driver or a server does, the stage goes on
            print(f"warning: no system metrics: {error}", file=sys.stderr)
    try:
        yield
    finally:
        if monitor:
            monitor.finish()  # catches and logs what goes wrong


def _monitor(run: Run) -> Any:
    from mlflow.system_metrics.system_metrics_monitor import SystemMetricsMonitor

    logging.getLogger(SystemMetricsMonitor.__module__).setLevel(logging.WARNING)  # not that it started and ended
    host = socket.gethostname()
    with away():
        monitor = SystemMetricsMonitor(
            run.run_id, FIRST_S, resume_logging=True, node_id=host, tracking_uri=run.database.uri
        )
    publish = monitor.publish_metrics

    def slower(metrics: Any) -> None:
        publish(metrics)
        monitor.sampling_interval = min(LONGEST_S, monitor.sampling_interval * GROWTH)

    monitor.publish_metrics = slower
    return monitor
