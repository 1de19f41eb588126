"""The end-to-end flow: one Prefect task per stage of dvc.yaml, in the order dvc.yaml states."""

import concurrent.futures
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from prefect import flow, get_run_logger
from prefect.artifacts import create_markdown_artifact, create_table_artifact
from prefect.futures import PrefectConcurrentFuture
from prefect.runtime import flow_run

from flows import experiment, graph, preflight, summary
from flows.command import Lifeline
from flows.stage import Run, run_stage, terminal


class StageFailedError(RuntimeError):
    """At least one stage failed; the run has been recorded and reported."""


@flow(name="end-to-end", persist_result=False)
def pipeline(root: str, run_name: str, targets: list[str], force: bool, parallel: int = 2) -> str:
    """Runs the stages of `root`/dvc.yaml, or `targets` and what they need; returns the report.

    `run_name` names the MLflow run, the DVC experiment and the folder of logs. `force` runs stages that DVC would skip.
    At most `parallel` stages run at a time. Raises ValueError for bad input before any stage starts, and
    StageFailedError when a stage failed, after the others have finished.
    """
    return run_in(Path(root).absolute(), run_name, targets, force, parallel)


def run_in(root: Path, name: str, targets: Sequence[str], force: bool, parallel: int) -> str:
    """One run in the folder `root`, whichever folder that is."""
    preflight.check_name(name)
    preflight.check_parallel(parallel)
    nodes = preflight.check(root, targets)

    from components import tracking  # imports mlflow: only once the input is known to be good

    origin = {"prefect.flow_run": str(flow_run.get_name()), "prefect.flow_run_id": str(flow_run.get_id())}
    parent = tracking.start_pipeline(root, name, "prefect", origin)
    environment = {"PIPELINE_PARENT_RUN_ID": parent, "MLFLOW_TRACKING_URI": tracking.uri(root)}
    say(f"Run {name}: {len(nodes)} stages, at most {parallel} at a time; every line is kept in logs/{name}/")
    status, finished = "KILLED", []
    try:
        with Lifeline() as lifeline:
            rows = run_stages(nodes, Run(root, name, force, environment, lifeline), parallel)
        finished = [row["stage"] for row in rows if row["state"] in summary.DONE]
        status = "FINISHED" if len(finished) == len(nodes) else "FAILED"
    except Exception:
        status = "FAILED"
        raise
    finally:
        tracking.finish_pipeline(root, parent, status, finished)

    unsaved = experiment.save(root, name, finished)
    report = summary.report(root, nodes, rows)
    create_markdown_artifact(report, key="report", description=f"Report of {name}")
    create_table_artifact([{key: row[key] for key in summary.COLUMNS} for row in rows], key="stages", description=name)
    text = "\n".join([report, summary.whereabouts(root, name, nodes, tracking.uri(root), unsaved)])
    say(text)
    if status == "FAILED":
        raise StageFailedError(summary.failure(rows))
    return text


def say(text: str) -> None:
    """One message for a person, at the terminal and in Prefect's UI."""
    terminal.info("%s", text)
    get_run_logger().info("%s", text)


def run_stages(nodes: Sequence[graph.Node], run: Run, parallel: int) -> list[dict[str, Any]]:
    """Submits each stage when its upstreams have ended, so that a waiting one takes no slot; one row per stage.

    Prefect itself refuses a stage whose upstream didn't complete (its state is `NotReady`) and leaves siblings alone.
    """
    futures: dict[str, PrefectConcurrentFuture[Any]] = {}
    running: set[concurrent.futures.Future[Any]] = set()
    waiting = list(nodes)
    while waiting or running:
        ended = {name for name, future in futures.items() if future.wrapped_future not in running}
        for node in [node for node in waiting if ended.issuperset(node.upstreams)][: parallel - len(running)]:
            task = run_stage.with_options(name=node.word, task_run_name=node.name, retries=node.retries)
            upstreams = [futures[name] for name in node.upstreams]
            future = task.submit(node.name, node.timeout_s, run, wait_for=upstreams, return_state=False)
            assert isinstance(future, PrefectConcurrentFuture)
            futures[node.name] = future
            running.add(future.wrapped_future)
            waiting.remove(node)
        running = concurrent.futures.wait(running, return_when=concurrent.futures.FIRST_COMPLETED).not_done
    for future in futures.values():
        future.wait()  # at once; it fetches the final state with its data
    return [summary.row(node.name, futures[node.name].state) for node in nodes]
