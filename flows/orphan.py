"""A flow that Prefect's serve process or a process worker started ends itself when that process dies.

Prefect watches for a person's Cancel in that process: without it a run could not be cancelled any more, and nobody would
know of it. Killed by SIGKILL, the process cannot tell anyone, so its child has to notice.
"""

import logging
import multiprocessing
import os
import select
import signal
import threading
import time
from collections.abc import Callable

from prefect.runtime import flow_run

POLL_S = 0.25
END_S = 9.0  # from SIGTERM to SIGKILL: after its stages' end, time to tell MLflow and, if it answers, Prefect
NAME = "watch for the death of the process that started this run"
STDOUT, STDERR = 1, 2


def watch() -> None:
    """Call it first in a flow. Returns at once; for a run that a person's own process started it does nothing.

    When the process that started this one dies, this one gets SIGTERM, which Prefect's engine answers as when a run is
    cancelled: stages end, and what was recorded says KILLED. END_S later it gets SIGKILL if it still runs.
    """
    if NAME in {thread.name for thread in threading.enumerate()}:
        return  # a flow inside another one
    parent, pid = multiprocessing.parent_process(), os.getppid()
    if parent is not None:  # `serve` starts each run by multiprocessing
        _start(lambda: not parent.is_alive())
    elif os.environ.get("PREFECT__FLOW_RUN_ID") == str(flow_run.get_id()):
        # A worker reads its runs' lines. Their pipe also tells of one that died before this process could ask for its id.
        _start(lambda: os.getppid() != pid or _broken(STDOUT))


def _start(gone: Callable[[], bool]) -> None:
    threading.Thread(target=_wait_and_end, args=(gone,), name=NAME, daemon=True).start()


def _wait_and_end(gone: Callable[[], bool]) -> None:
    while not gone():
        time.sleep(POLL_S)
    with open(os.devnull, "wb") as nowhere:  # a line that nobody reads must not break off the end of the run
        for descriptor in filter(_broken, (STDOUT, STDERR)):
            os.dup2(nowhere.fileno(), descriptor)
    logging.getLogger("flows").warning("the process that started this run has died; the run ends, too")
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(END_S)
    os.kill(os.getpid(), signal.SIGKILL)


def _broken(descriptor: int) -> bool:
    """Whether it is a pipe that nobody reads any more."""
    poll = select.poll()
    poll.register(descriptor, 0)
    return any(event & (select.POLLERR | select.POLLHUP) for _, event in poll.poll(0))
