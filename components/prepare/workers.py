"""Tasks done by processes or threads, their results in the tasks' order; a process that is killed is an error and not a hang.

The standard library's pools share one pipe for the results of all processes: one that is killed while it writes leaves half a message
there, and the pool waits for the rest for ever (CPython 3.11). Here each has a pipe of its own, which its death closes.
"""

import multiprocessing
import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from queue import SimpleQueue
from typing import Any, TypeVar

Task = TypeVar("Task")
Result = TypeVar("Result")
AHEAD = 3
"""Tasks that each has under way, so that memory stays flat and none waits for the others."""


class KilledError(RuntimeError):
    """A process was killed before it had done its task."""


def by_threads(work: Callable[[Task], Result], tasks: Iterator[Task], threads: int) -> Iterator[Result]:
    """`work` of each task. An exception of a task comes out in its place."""
    pool = ThreadPoolExecutor(threads)
    try:
        under_way = deque(pool.submit(work, task) for task in islice(tasks, AHEAD * threads))
        while under_way:
            result = under_way.popleft().result()
            under_way.extend(pool.submit(work, task) for task in islice(tasks, 1))
            yield result
    finally:  # the consumer may stop early, at a fault
        pool.shutdown(cancel_futures=True)


def by_processes(work: Callable[[Task], Result], tasks: Iterator[Task], count: int) -> Iterator[Result]:
    """The same by `count` fresh processes, to which `work`, tasks and results are pickled.

    Raises KilledError when one of them is killed.
    """
    started: list[tuple[BaseProcess, Connection]] = []
    try:
        started += [_started(work) for _ in range(count)]
        waiting: deque[Connection] = deque()
        turns = (pipe for _ in iter(int, 1) for _, pipe in started)
        for task, pipe in zip(islice(tasks, AHEAD * count), turns, strict=False):
            _send(pipe, task)
            waiting.append(pipe)
        while waiting:
            pipe = waiting.popleft()
            result = _received(pipe)
            for task in islice(tasks, 1):
                _send(pipe, task)
                waiting.append(pipe)
            yield result
    finally:
        for process, pipe in started:
            pipe.close()  # which ends it
            process.terminate()
        for process, _ in started:
            process.join()


def _started(work: Callable[[Any], Any]) -> tuple[BaseProcess, Connection]:
    context = multiprocessing.get_context("spawn")  # a copy of this one, with its threads, could hang
    ours, theirs = context.Pipe()
    process = context.Process(target=_serve, args=(work, theirs), daemon=True)
    process.start()
    theirs.close()  # only the process has it now, so its death is seen
    return process, ours


def _serve(work: Callable[[Any], Any], pipe: Connection) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the stage's: when it ends, the pipe does
    tasks: SimpleQueue[Any] = SimpleQueue()
    threading.Thread(target=_take, args=(pipe, tasks), daemon=True).start()
    while True:
        task = tasks.get()
        try:
            done: tuple[bool, Any] = True, work(task)
        except Exception as error:
            done = False, error
        pipe.send(done)


def _take(pipe: Connection, tasks: "SimpleQueue[Any]") -> None:
    """Tasks are taken as they come, so that the stage never waits to send one while this process waits to send it a result."""
    try:
        while True:
            tasks.put(pipe.recv())
    except (EOFError, OSError):
        os._exit(0)


def _send(pipe: Connection, task: Any) -> None:
    try:
        pipe.send(task)
    except OSError as error:
        raise _killed() from error


def _received(pipe: Connection) -> Any:
    try:
        right, result = pipe.recv()
    except (EOFError, OSError) as error:
        raise _killed() from error
    if not right:
        raise result
    return result


def _killed() -> KilledError:
    return KilledError("a process that checks images was killed, by the system for want of memory as a rule")
