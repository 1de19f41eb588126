"""The end-to-end flow: one Prefect task per stage of dvc.yaml, in the order dvc.yaml states."""

import concurrent.futures
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from prefect import flow, get_run_logger
from prefect.client.schemas import State
from prefect.futures import PrefectConcurrentFuture
from prefect.runtime import flow_run
from prefect.states import Completed, Failed

from flows import artifacts, experiment, form, graph, preflight, summary
from flows.check import check
from flows.command import Lifeline
from flows.stage import Run, run_stage, terminal


class StageFailedError(RuntimeError):
    """At least one stage failed; the run has been recorded and reported."""


def legal_name() -> str:
    """Prefect's name of this run, made legal: it names the MLflow run, the DVC experiment and the folder of logs as well."""
    return preflight.legal_name(str(flow_run.get_name()))


# Parameters are validated by the task `check`, which tells every fault in the words of the contracts.
@flow(name="end-to-end", flow_run_name=legal_name, persist_result=False, validate_parameters=False)
@form.parameters
def pipeline(stages: Sequence[str] = (), force: bool = False, parallel: int = 2, **sections: Any) -> State[str]:
    """Prepares data, pretrains an encoder and judges it; ends in a report.

    Works in the current folder. Raises ValueError for bad input before any stage starts, and StageFailedError when a stage failed,
    after the others have finished.

    Args:
        stages: Stages to run; what they need runs before them where it isn't done yet. None means all.
        force: Runs the chosen stages, or all, even where DVC has their results already. What they need is not forced.
        parallel: Most stages that run at a time.
    """
    try:
        return Completed(data=run_in(Path.cwd(), str(flow_run.get_name()), stages, force, parallel, sections))
    except (ValueError, StageFailedError) as error:  # said in full already; Prefect would print a traceback of ours
        return Failed(message=str(error), data=error)


def run_in(
    root: Path, name: str, targets: Sequence[str], force: bool, parallel: int, sections: Mapping[str, Any]
) -> str:
    """One run in the folder `root`, whichever folder that is."""
    with preflight.alone(root, name):
        checked: State[Any] = check(root, name, targets, parallel, sections, return_state=True)
        nodes: Any = checked.result()  # or raises what was wrong
        forced = {node.name for node in nodes if force and (not targets or {node.name, node.word} & set(targets))}
        return _run(root, name, nodes, forced, parallel)


def _run(root: Path, name: str, nodes: list[graph.Node], forced: set[str], parallel: int) -> str:
    from components import parent_runs, tracking  # imports mlflow: only once the input is known to be good

    origin = {"prefect.flow_run": str(flow_run.get_name()), "prefect.flow_run_id": str(flow_run.get_id())}
    origin |= {"prefect.url": url} if (url := flow_run.get_flow_run_ui_url()) else {}
    parent = parent_runs.start_pipeline(root, name, "prefect", origin)
    environment = {"PIPELINE_PARENT_RUN_ID": parent, "MLFLOW_TRACKING_URI": tracking.uri(root)}
    say(f"Run {name}: {len(nodes)} stages, at most {parallel} at a time; every line is kept in logs/{name}/")
    status, finished = "KILLED", []
    try:
        with Lifeline() as lifeline:
            rows = run_stages(nodes, Run(root, name, forced, environment, lifeline), parallel)
        finished = [row["stage"] for row in rows if row["state"] in summary.DONE]
        status = "FINISHED" if len(finished) == len(nodes) else "FAILED"
    except Exception:
        status = "FAILED"
        raise
    finally:
        parent_runs.finish_pipeline(root, parent, status, finished)

    unsaved = experiment.save(root, name, finished)
    compared = parent_runs.beside_previous(root, parent)
    report = summary.report(root, nodes, rows, compared)
    text = "\n".join(
        [summary.brief(report), summary.whereabouts(root, name, nodes, tracking.uri(root), compared, unsaved)]
    )
    say(text)
    artifacts.publish(name, report, rows, compared)
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
