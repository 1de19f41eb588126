"""The ablation flow: a sweep whose members are experiments, each a run of the pipeline in a workspace and on a page of its own."""

import contextvars
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from prefect import flow, task
from prefect.cache_policies import NO_CACHE
from prefect.client.schemas import State
from prefect.runtime import flow_run
from prefect.states import Completed, Failed

from flows import garbage, killed, orphan
from flows.ablations import agenda, members, results, standing, sweep
from flows.ablations.agenda import Agenda
from flows.ablations.members import Member
from flows.ablations.spread import Scored
from flows.ablations.standing import Do, OtherCode
from flows.command import Lifeline
from flows.pipeline import Request, StageFailedError, run_in, say


class MemberFailedError(RuntimeError):
    """At least one member failed; the others have finished, and the table says which."""


@dataclass(frozen=True)
class Order:
    """What all members of one ablation share."""

    checkout: Path
    ablation: str
    stages: Sequence[str]
    parallel: int
    code: Mapping[str, str]
    """As `standing.code` of the start; a member that would run other code fails."""
    row: str
    """The ablation's row in MLflow."""
    lifelines: list[Lifeline] = field(default_factory=list)
    """Of the members that have started."""
    cancelled: threading.Event = field(default_factory=threading.Event)

    def cancel(self) -> None:
        """Ends the stages of all members, those that start later included."""
        self.cancelled.set()
        for lifeline in self.lifelines:
            lifeline.release()

    def enlist(self, lifeline: Lifeline) -> Lifeline:
        """Makes `lifeline` one that `cancel` releases."""
        self.lifelines.append(lifeline)
        if self.cancelled.is_set():
            lifeline.release()
        return lifeline


@flow(
    name="ablation",
    flow_run_name="{ablation}",
    persist_result=False,
    validate_parameters=False,
    on_crashed=[killed.on_crashed],
)
@sweep.parameters
def ablation(ablation: str, other_code: OtherCode = "refuse", **definition: Any) -> State[str]:
    """Runs what is missing of a sweep and ends in a figure and a table of mean and spread over seeds.

    Works for the current folder. Raises ValueError for bad input of any member before the first starts, and
    MemberFailedError when a member failed, after the others have finished.

    Args:
        ablation: Names the members, the folder of results and the row in MLflow; another name is another ablation.
        other_code: Of members that other code finished. refuse tells them and starts nothing; take takes them as they are; renew runs
            them again.
    """
    orphan.watch()
    try:
        return Completed(data=run_ablation(Path.cwd(), ablation, definition, other_code))
    except (ValueError, MemberFailedError) as error:  # said in full already; Prefect would print a traceback of ours
        return Failed(message=str(error), data=error)


def run_ablation(checkout: Path, name: str, definition: Mapping[str, Any], other_code: OtherCode) -> str:
    """The report of the ablation `name` of the project in the folder `checkout`, inside any flow. Raises as `ablation` does."""
    checked: State[Any] = check(checkout, name, definition, other_code, return_state=True)
    due: Agenda = checked.result()  # or raises what was wrong
    stages, parallel = due.definition.stages, due.definition.parallel
    row = results.start(checkout, name, due.definition, str(flow_run.get_flow_run_ui_url() or ""))
    say(f"Ablation {name}: {due.outline()}; at most {due.definition.members_at_a_time} run at a time")
    scored = None
    try:
        reasons = _run(Order(checkout, name, stages, parallel, standing.code(checkout, stages), row), due)
        scored = [results.scored(checkout, one, due.todo[one.name], reasons) for one in due.members]
    finally:
        if scored is None:
            results.close(checkout, row, "KILLED")
    text = results.leave(checkout, name, due.definition, scored, row)
    say(text)
    if any(one.row is None for one in scored):
        raise MemberFailedError(failure(scored))
    return text


@task(name="check", task_run_name="check", cache_policy=NO_CACHE, persist_result=False)
def check(checkout: Path, name: str, definition: Mapping[str, Any], other_code: OtherCode) -> State[Any]:
    """Completed with the agenda; Failed with every fault of every member."""
    try:
        due = agenda.read(checkout, name, definition, other_code)
        members.check_raw(checkout, due.waiting)
    except ValueError as error:
        return Failed(message=str(error), data=error)
    return Completed(message=due.outline(), data=due)


def failure(scored: Sequence[Scored]) -> str:
    """One message for the flow's failed state."""
    failed = [one for one in scored if one.row is None]
    lines = [f"{one.member.name}: {one.reason}" for one in failed]
    return "\n".join(
        [f"{len(failed)} of {len(scored)} members have no result; run the ablation again for them alone", *lines]
    )


def _run(order: Order, due: Agenda) -> dict[str, str]:
    """Runs members, in this thread where one runs at a time; why each failed, '' for those that finished."""

    # What Prefect shows of a member are the flow's parameters; it would copy the lifelines of an order, which then never ended.
    @flow(name="ablation-member", flow_run_name="{name}", persist_result=False, validate_parameters=False)
    def member_page(name: str, values: Mapping[str, Any], seed: int) -> State[None]:
        """One member of an ablation: what it is by its axes, and its seed."""
        return run_member(order, by_name[name], due.todo[name])

    def one(member: Member) -> str:
        state: State[Any] = member_page(member.name, dict(member.cell.shown), member.seed, return_state=True)
        return "" if state.is_completed() else str(state.message or state.name)

    by_name = {member.name: member for member in due.waiting}
    if due.definition.members_at_a_time == 1:
        return {name: one(member) for name, member in by_name.items()}
    with ThreadPoolExecutor(due.definition.members_at_a_time) as pool:
        try:
            started = {member.name: pool.submit(contextvars.copy_context().run, one, member) for member in due.waiting}
            return {name: future.result() for name, future in started.items()}
        except BaseException:  # cancelled: only this thread is told
            pool.shutdown(wait=False, cancel_futures=True)
            order.cancel()
            raise


def run_member(order: Order, member: Member, do: Do) -> State[None]:
    """Runs one member inside a flow: Completed, or Failed with the reason."""
    name, before = member.name, ""
    try:
        if standing.code(order.checkout, order.stages) != order.code:
            raise ValueError(
                "the code changed while the ablation was running, so that its members would not compare; this one did not start: "
                "run the ablation again when the code stays as it is"
            )
        if do == "renew":
            say(f"{name} starts anew: the code has changed since its last run")
            before = standing.forget(order.checkout, name)
        stages = standing.note(order.checkout, member, order.stages)
        tags = {"ablation": order.ablation, "ablation.cell": member.cell.label, "ablation.seed": str(member.seed)}
        tags |= {"mlflow.parentRunId": order.row}
        asked = Request(
            standing.owner(order.ablation, name), stages, parallel=order.parallel, sections=member.sections, tags=tags
        )
        with Lifeline() as lifeline:
            record = run_in(order.checkout, name, replace(asked, lifeline=order.enlist(lifeline))).record
        if before and record.experiment not in ("", before):  # on another commit: DVC would know two by one name
            garbage.forget_experiments(order.checkout, [before])
    except (ValueError, StageFailedError) as error:
        return Failed(message=str(error), data=error)
    return Completed(message="finished")
