"""GPUs as slots of one of Prefect's global concurrency limits: a stage with `meta: {gpu: n}` holds n of them while it runs.

The limit counts over all runs of a Prefect server, whichever door they came through. People see and change it under
*Concurrency* in the UI, or with `prefect gcl update gpu --limit 4`.
"""

import select
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

from flows.command import Lifeline
from flows.graph import Node

LIMIT = "gpu"
LEASE_S = 90  # a killed holder's slots come back after at most this and a round of 15 s; Prefect takes no less than 60
ASK_S = 2.0


class ReleasedError(RuntimeError):
    """The run was cancelled while a stage waited for its turn."""


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
    """How many slots the limit has. Where there is none yet, it gets one for each GPU of this machine, and at least one."""
    with get_client(sync_client=True) as client:
        try:
            return client.read_global_concurrency_limit_by_name(LIMIT).limit
        except ObjectNotFound:
            with suppress(ObjectAlreadyExists):  # where another run was quicker
                client.create_global_concurrency_limit(GlobalConcurrencyLimitCreate(name=LIMIT, limit=max(1, gpus())))
            return client.read_global_concurrency_limit_by_name(LIMIT).limit


def gpus() -> int:
    """The NVIDIA GPUs of this machine; 0 where there is no driver."""
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return 0
    try:
        return int(pynvml.nvmlDeviceGetCount())
    finally:
        pynvml.nvmlShutdown()


@contextmanager
def held(count: int, lifeline: Lifeline, spare: Callable[[], bool]) -> Iterator[None]:
    """Waits until `count` slots are free and holds them, inside a task. Raises ReleasedError when the run ends meanwhile.

    `spare` is asked once when they are not free: a stage that needs no GPU after all goes on without. A server that is away
    for long costs the slots, not the stage: it goes on, and Prefect's log warns.
    """
    with ExitStack() as stack:
        waits = False
        while count and not _tried(stack, count):
            if not waits:
                if spare():
                    break
                get_run_logger().info("waits for %s of the slots %r, which other stages hold", count, LIMIT)
            waits = True
            # Prefect's own waiting would outlast a cancelled run, of which only the main thread is told.
            if select.select([lifeline], [], [], ASK_S)[0]:
                raise ReleasedError(f"stopped while it waited for {count} of the slots {LIMIT!r}")
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
