"""GPUs as slots of one of Prefect's global concurrency limits: a stage with `meta: {gpu: n}` holds n of them while it runs.

The limit counts over all runs of a Prefect server, whichever door they came through. People see and change it under
*Concurrency* in the UI, or with `prefect gcl update gpu --limit 4`. Which GPUs a stage gets is `flows.devices`' part.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from http import HTTPStatus
from uuid import UUID

from httpx import HTTPError, HTTPStatusError
from prefect import get_run_logger
from prefect.client.orchestration import get_client
from prefect.client.schemas.actions import GlobalConcurrencyLimitCreate
from prefect.client.schemas.objects import ConcurrencyLeaseHolder
from prefect.concurrency.asyncio import ConcurrencySlotAcquisitionError
from prefect.concurrency.sync import concurrency
from prefect.exceptions import ObjectAlreadyExists, ObjectNotFound
from prefect.runtime import task_run

from flows import devices
from flows.command import Lifeline
from flows.graph import Node

LIMIT = "gpu"
LEASE_S = 90  # a killed holder's slots come back after at most this and a round of 15 s; Prefect takes no less than 60


def check(nodes: Sequence[Node]) -> None:
    """Makes the limit where a stage needs it and nobody has. Raises ValueError for stages that would wait for ever."""
    wanted = [node for node in nodes if node.gpus]
    if not wanted:
        return
    slots = ensure()
    faults = [
        f"stage {node.name!r} takes {node.gpus} GPUs, but the concurrency limit {LIMIT!r} of this Prefect server has {slots} "
        f"{'slot' if slots == 1 else 'slots'}"
        for node in wanted
        if node.gpus > slots
    ]
    if faults:
        raise ValueError(
            "\n".join(faults)
            + "\nLower its `workers` (`scale.workers` of pretrain, or `meta: {gpu: …}` in dvc.yaml), or, where there are more GPUs, raise "
            f"the limit: `prefect gcl update {LIMIT} --limit {max(node.gpus for node in wanted)}`"
        )


def ensure() -> int:
    """How many slots the limit has. Where there is none yet, it gets one for each GPU that is to be seen here, and at least one."""
    with get_client(sync_client=True) as client:
        try:
            return client.read_global_concurrency_limit_by_name(LIMIT).limit
        except ObjectNotFound:
            with suppress(ObjectAlreadyExists):  # where another run was quicker
                limit = max(1, len(devices.present(os.environ)))
                client.create_global_concurrency_limit(GlobalConcurrencyLimitCreate(name=LIMIT, limit=limit))
            return client.read_global_concurrency_limit_by_name(LIMIT).limit


@contextmanager
def held(count: int, lifeline: Lifeline, spare: Callable[[], bool]) -> Iterator[None]:
    """Waits as `devices.turn` until `count` slots are free and holds them, inside a task.

    A server that is away for long costs the slots, not the stage: it goes on, and Prefect's log warns.
    """
    with ExitStack() as stack:
        if count:
            devices.turn(lambda: _tried(stack, count), spare, lifeline, f"{count} of the slots {LIMIT!r}")
        yield


def _tried(stack: ExitStack, count: int) -> bool:
    """As `_entered`; a server that does not answer, which the client has asked several times by then, costs the slots."""
    try:
        return _entered(stack, count)
    except HTTPError as error:
        get_run_logger().warning(
            "goes on without slots of %r, since Prefect's server does not answer: %r", LIMIT, error
        )
        return True


def _entered(stack: ExitStack, count: int) -> bool:
    """Takes the slots until the end of the `stack`; False where too many are taken."""
    ensure()  # a person may have deleted it meanwhile
    with get_client(sync_client=True) as client:
        limit = client.read_global_concurrency_limit_by_name(LIMIT)
    if limit.active and limit.limit - limit.active_slots < count:
        return False  # asked first, because Prefect logs an error for each refusal
    holder = ConcurrencyLeaseHolder(type="task_run", id=UUID(str(task_run.get_id())))
    slots = concurrency(
        LIMIT,
        count,
        max_retries=0,
        lease_duration=LEASE_S,
        strict=True,
        holder=holder,
        raise_on_lease_renewal_failure=False,
    )
    try:
        stack.enter_context(slots)
    except ConcurrencySlotAcquisitionError as error:
        refused = error.__cause__
        if isinstance(refused, HTTPStatusError) and refused.response.status_code == HTTPStatus.LOCKED:
            return False  # another stage was quicker
        raise
    return True
