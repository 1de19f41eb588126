"""The end-to-end flow: one Prefect task per stage of dvc.yaml, in the order dvc.yaml states, in a workspace of the run's own."""

import concurrent.futures
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from prefect import flow, get_run_logger
from prefect.client.schemas import State
from prefect.client.schemas.objects import TaskRun
from prefect.futures import PrefectConcurrentFuture
from prefect.runtime import flow_run
from prefect.states import Completed, Failed

from flows import (
    artifacts,
    experiment,
    form,
    graph,
    hashes,
    killed,
    orphan,
    preflight,
    storage,
    summary,
    supervisor,
    workspace,
)
from flows.check import check
from flows.command import Lifeline
from flows.records import Record
from flows.stage import Run, run_stage, terminal
from flows.workspace import Uncommitted, Workspace


class StageFailedError(RuntimeError):
    """At least one stage failed; the run has been recorded and reported."""


@dataclass(frozen=True)
class Request:
    """What a run shall do."""

    owner: str
    """Who may continue it under its name, as in `records.Record`."""
    stages: Sequence[str] = ()
    force: bool = False
    parallel: int = 2
    sections: Mapping[str, Any] = field(default_factory=dict)
    """Params by stage word, as the form or the files have them; a stage without any keeps the values of its file."""
    uncommitted: Uncommitted = "carry"
    in_place: bool = False
    tags: Mapping[str, str] = field(default_factory=dict)
    """For the run's row in MLflow, beside its origin."""
    lifeline: Lifeline | None = None
    """For a run in a thread, which does not hear of cancelling: whoever hears of it releases this; it must outlive the run."""

    def wants(self, node: graph.Node) -> bool:
        """Whether the stage itself was asked for, not just needed by one that was."""
        return not self.stages or bool({node.name, node.word} & set(self.stages))


@dataclass(frozen=True)
class Outcome:
    """A run that has finished: what a person reads of it, and its record."""

    text: str
    record: Record


def legal_name() -> str:
    """Prefect's name of this run, made legal: it names the MLflow run, the DVC experiment and the folder of logs as well."""
    return preflight.legal_name(str(flow_run.get_name()))


# Parameters are validated by the task `check`, which tells every fault in the words of the contracts.
@flow(
    name="end-to-end",
    flow_run_name=legal_name,
    persist_result=False,
    validate_parameters=False,
    on_crashed=[killed.on_crashed],
)
@form.parameters
def pipeline(
    stages: Sequence[str] = (),
    force: bool = False,
    parallel: int = 2,
    uncommitted: Uncommitted = "carry",
    in_place: bool = False,
    **sections: Any,
) -> State[str]:
    """Prepares data, pretrains an encoder and judges it; ends in a report.

    Works in a clone of the current folder, workspaces/<run>/tree. Raises ValueError for bad input before any stage starts, and
    StageFailedError when a stage failed, after the others have finished.

    Args:
        stages: Stages to run; what they need runs before them where it isn't done yet. None means all.
        force: Runs the chosen stages, or all, even where DVC has their results already. What they need is not forced.
        parallel: Most stages that run at a time.
        uncommitted: carry takes uncommitted changes of the checkout along and records them; refuse stops where there are any.
        in_place: Works in the checkout itself, one run at a time, and writes the values into its params.
    """
    orphan.watch()
    owner = f"prefect:{flow_run.get_id()}"
    request = Request(owner, stages, force, parallel, sections, uncommitted, in_place)
    try:
        return Completed(data=run_in(Path.cwd(), str(flow_run.get_name()), request).text)
    except (ValueError, StageFailedError) as error:  # said in full already; Prefect would print a traceback of ours
        return Failed(message=str(error), data=error)


def run_in(checkout: Path, name: str, request: Request) -> Outcome:
    """One run of the project in the folder `checkout`, inside any flow. Raises as `pipeline` does."""
    preflight.check_name(name)
    preflight.check_project(checkout)
    storage.check(checkout)
    preflight.check_uncommitted(request.uncommitted)
    killed.close(checkout)
    space = workspace.open_workspace(checkout, name, request.owner, request.uncommitted, request.in_place)
    with ExitStack() as stack:
        try:
            if space.record.in_place:
                stack.enter_context(preflight.alone(checkout, name))
            checked: State[Any] = check(
                space.root, request.stages, request.parallel, request.sections, return_state=True
            )
            nodes: Any = checked.result()  # or raises what was wrong
            _check_mlflow(checkout)
        except BaseException:  # nothing has run
            space.discard()
            raise
        try:
            return _run(space, request, nodes)
        except BaseException as error:
            space.break_off("FAILED" if isinstance(error, Exception) else "KILLED")
            raise


def _check_mlflow(checkout: Path) -> None:
    from components import parent_runs  # imports mlflow: only once the rest of the input is known to be good

    parent_runs.check(checkout)


def _run(space: Workspace, request: Request, nodes: list[graph.Node]) -> Outcome:
    from components import parent_runs
    from components.tracking import uri

    checkout, root, name = space.checkout, space.root, space.record.name
    origin = _origin(space.record)
    parent = parent_runs.start_pipeline(checkout, root, name, origin | dict(request.tags), space.record.parent)
    space.know(parent=parent)
    if space.patch:
        parent_runs.attach(checkout, parent, space.patch)
    environment = parent_runs.stage_environment(checkout, parent, origin)
    forced = {node.name for node in nodes if request.force and request.wants(node)}
    say(f"Run {name}: {len(nodes)} stages, at most {request.parallel} at a time; every line is kept in logs/{name}/")
    status, finished = "KILLED", []
    try:
        with nullcontext(request.lifeline) if request.lifeline else Lifeline() as lifeline:
            run = Run(root, name, checkout, forced, environment, lifeline)
            rows = run_stages(nodes, run, request.parallel)
            cancelled = lifeline.released  # leaving releases it as well
        finished = [row["stage"] for row in rows if row["state"] in summary.DONE]
        status = "FINISHED" if len(finished) == len(nodes) else "KILLED" if cancelled else "FAILED"
        ref, unsaved = experiment.save(root, checkout, name, finished)  # first: whatever breaks now, it is there
        space.know(experiment=ref)
    except Exception:
        status = "FAILED"
        raise
    finally:
        parent_runs.finish_pipeline(checkout, root, parent, status, finished)

    record = space.end(status)
    hashes.share(root, checkout)
    compared = parent_runs.beside_previous(checkout, parent)
    report = summary.report(root, nodes, rows, compared)
    places = summary.whereabouts(space, nodes, uri(checkout), compared, unsaved)
    text = "\n".join([summary.brief(report), places])
    say(text)
    artifacts.publish(name, report, rows, compared)
    workspace.prune(checkout)
    if status != "FINISHED":
        raise StageFailedError(summary.failure(rows))
    return Outcome(text, record)


def _origin(record: Record) -> dict[str, str]:
    """MLflow's tags of where a run came from, which its stages' rows have as well."""
    tags = {"trigger": "prefect", "pipeline.run": record.name, "pipeline.owner": record.owner}
    tags |= {"prefect.flow_run": str(flow_run.get_name()), "prefect.flow_run_id": str(flow_run.get_id())}
    if record.commit:
        tags |= {"git.sha": record.commit, "git.dirty": str(record.dirty).lower()}
    return tags | ({"prefect.url": url} if (url := flow_run.get_flow_run_ui_url()) else {})


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
            task = run_stage.with_options(
                name=node.word, task_run_name=node.name, retries=node.retries, retry_condition_fn=worth_a_retry
            )
            upstreams = [futures[name] for name in node.upstreams]
            future = task.submit(node.name, node.timeout_s, node.gpus, run, wait_for=upstreams, return_state=False)
            assert isinstance(future, PrefectConcurrentFuture)
            futures[node.name] = future
            running.add(future.wrapped_future)
            waiting.remove(node)
        running = concurrent.futures.wait(running, return_when=concurrent.futures.FIRST_COMPLETED).not_done
    for future in futures.values():
        future.wait()  # at once; it fetches the final state with its data
    return [summary.row(node.name, futures[node.name].state) for node in nodes]


def worth_a_retry(task: Any, task_run: TaskRun, state: State[Any]) -> bool:
    """Not what a stage has refused with `error: …`, which it would again; but one that hung may go on from its checkpoint."""
    message = state.message or ""
    return not message.startswith("error: ") or message.startswith(f"error: {supervisor.TOO_LONG}")
