"""Runs a command so that its whole process tree ends with it, and when the caller cancels or dies, even by SIGKILL.

Between the caller and the command stands a process of this file. It holds the reading end of a pipe that nobody
writes to; the writing end is in the caller, so the pipe's end of file means that the caller is gone. The file is run by
its path and imports nothing of the project, so that it starts in a few hundredths of a second.
"""

import argparse
import ctypes
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing import Pipe
from pathlib import Path
from types import TracebackType
from typing import IO, Self

import psutil

TIMED_OUT, CANCELLED = 124, 130  # exit statuses, as `timeout` and shells use them
GRACE_S = 20.0  # after SIGINT, which Ray Train answers by saving its state
TERM_S = 3.0
POLL_S = 0.1
TAIL = 40  # lines kept for a failure's message


class Lifeline:
    """What ties commands to their caller: leaving the `with` block ends every command run on it."""

    def __init__(self) -> None:
        """Opens the pipe."""
        # Connections, because the reading end must stay open as long as a task refers to it (else a late retry would
        # hand a reused descriptor to its supervisor) and then close silently.
        self._reader, self._writer = Pipe(duplex=False)

    def fileno(self) -> int:
        """The reading end."""
        return self._reader.fileno()

    def __enter__(self) -> Self:
        """Commands can be run on it from here on, in any thread."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Lets go of all commands that still run; their supervisors end them."""
        self._writer.close()


@dataclass(frozen=True)
class Ended:
    """How a command ended: TIMED_OUT, CANCELLED or its own exit status, and the last lines it wrote."""

    status: int
    tail: list[str]


def run(
    command: Sequence[str],
    lifeline: Lifeline,
    folder: Path,
    environment: Mapping[str, str],
    log: Path,
    on_line: Callable[[str], None],
    timeout_s: float = 0,
    grace_s: float = GRACE_S,
) -> Ended:
    """Runs `command` in `folder`; blocks until it and everything it started have ended.

    Every line of stdout and stderr is appended to `log` and handed to `on_line`. After `timeout_s` seconds (0: no
    limit) the tree gets SIGINT, SIGTERM after another `grace_s`, then SIGKILL.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    options = ["--log", str(log), "--timeout-s", str(timeout_s), "--grace-s", str(grace_s), "--", *command]
    tail: deque[str] = deque(maxlen=TAIL)
    with subprocess.Popen(
        [sys.executable, "-P", __file__, *options],
        stdin=lifeline.fileno(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        cwd=folder,
        env=dict(environment),
        start_new_session=True,  # Ctrl-C in a terminal reaches the caller only, which then lets go of the lifeline
        text=True,
        encoding="utf-8",
        errors="replace",
    ) as supervisor:
        assert supervisor.stdout
        try:
            for raw in supervisor.stdout:
                tail.append(raw.rstrip())
                on_line(tail[-1])
        except BaseException:
            supervisor.terminate()  # it ends the command's tree, too
            raise
    return Ended(supervisor.returncode, list(tail))


def _supervise(command: list[str], log: Path, timeout_s: float, grace_s: float) -> int:
    """The supervisor process: starts the command in a session of its own and returns the exit status to report."""
    stopping = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: stopping.set())
    _adopt_orphans()
    with log.open("ab") as file:
        started = time.monotonic()
        child = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True
        )
        assert child.stdout
        pump = threading.Thread(target=_pump, args=(child.stdout, file))
        pump.start()
        status = 0
        while child.poll() is None and not status:
            if select.select([0], [], [], POLL_S)[0] or stopping.is_set():
                status, reason = CANCELLED, "stopped: the run that started it was cancelled or has ended"
            elif timeout_s and time.monotonic() - started > timeout_s:
                status, reason = TIMED_OUT, f"stopped: it ran longer than its limit of {timeout_s:g} s"
        if status:
            _interrupt(child, grace_s)
        _end_descendants(child)
        pump.join()
        if status:
            _pump_line(f"error: {reason}\n".encode(), file)
    return status or (child.returncode if child.returncode >= 0 else 128 - child.returncode)


def _adopt_orphans() -> None:
    """On Linux, grandchildren whose parent died become children of this process: it can find and end them."""
    if sys.platform == "linux":
        set_child_subreaper = 36  # <linux/prctl.h>
        ctypes.CDLL(None, use_errno=True).prctl(set_child_subreaper, 1, 0, 0, 0)


def _interrupt(child: subprocess.Popen[bytes], grace_s: float) -> None:
    """SIGINT to the command's group only, as a terminal would send it: time to save state and release locks."""
    try:
        os.killpg(child.pid, signal.SIGINT)
        child.wait(grace_s)
    except (subprocess.TimeoutExpired, ProcessLookupError):
        return


def _end_descendants(child: subprocess.Popen[bytes]) -> None:
    """SIGTERM, then SIGKILL, to whatever is left, in whichever session or group it hides."""
    deadline = time.monotonic() + TERM_S
    told: set[psutil.Process] = set()
    while alive := psutil.Process().children(recursive=True):
        kill = time.monotonic() > deadline
        for process in alive:
            if kill or process not in told:
                told.add(process)
                try:
                    process.send_signal(signal.SIGKILL if kill else signal.SIGTERM)
                except psutil.NoSuchProcess:
                    continue
        child.poll()  # before psutil reaps it, which would lose its exit status
        psutil.wait_procs([process for process in alive if process.pid != child.pid], timeout=POLL_S)


def _pump(stream: IO[bytes], log: IO[bytes]) -> None:
    for line in iter(stream.readline, b""):
        _pump_line(line.rstrip(b"\r\n").rpartition(b"\r")[2] + b"\n", log)  # of a bar redrawn in place, its last state


def _pump_line(line: bytes, log: IO[bytes]) -> None:
    log.write(line)
    log.flush()
    try:
        sys.stdout.buffer.write(line)
        sys.stdout.buffer.flush()
    except BrokenPipeError:  # the caller is dead; the command still gets to say its last words to the log
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


if __name__ == "__main__":
    _parser = argparse.ArgumentParser(description=__doc__)
    _parser.add_argument("--log", type=Path, required=True)
    _parser.add_argument("--timeout-s", type=float, required=True)
    _parser.add_argument("--grace-s", type=float, required=True)
    _parser.add_argument("command", nargs="+")
    _options = _parser.parse_args()
    sys.exit(_supervise(_options.command, _options.log, _options.timeout_s, _options.grace_s))
