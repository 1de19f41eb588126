"""What a killed run could not say itself: its record and its rows in MLflow end as KILLED."""

from pathlib import Path
from typing import Any

from flows import records


def close(checkout: Path) -> None:
    """Closes the runs of this machine whose process is gone although their records say RUNNING."""
    killed = records.settle_killed(checkout)
    if killed:
        from components import parent_runs  # imports mlflow: only where there is something to write

        for record in killed:
            parent_runs.close_killed(checkout, record.parent)


def on_crashed(flow: Any, flow_run: Any, state: Any) -> None:
    """Prefect's hook: the process that started a run calls it, in the checkout, when the run's own process has died."""
    close(Path.cwd())
