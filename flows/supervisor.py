"""The process between a caller and its command: it ends the command's whole tree when the caller cancels or dies.

It holds the reading end of a pipe that nobody writes to; the writing end is in the caller, so the pipe's end of file means
that the caller is gone. `flows.command` runs this file by its path; it imports nothing of the project, so that it starts
in a few hundredths of a second.
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
from pathlib import Path
from typing import IO

import psutil

TIMED_OUT, CANCELLED = 124, 130  # exit statuses, as `timeout` and shells use them
TOO_LONG = "stopped: it ran longer than its limit of"
TERM_S = 1.5  # from SIGTERM to SIGKILL
POLL_S = 0.1


def _supervise(command: list[str], log: Path, timeout_s: float, grace_s: float) -> int:
    """The supervisor process: starts the command in a session of its own and returns the exit status to report."""
    stopping = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: stopping.set())
    _adopt_orphans()
    with log.open("ab") as file:
        started = time.monotonic()
        child = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            close_fds=False,  # what the caller wants kept stays open even if this process alone is killed
            start_new_session=True,
        )
        assert child.stdout
        pump = threading.Thread(target=_pump, args=(child.stdout, file), daemon=True)
        pump.start()
        status = 0
        while child.poll() is None and not status:
            if select.select([0], [], [], POLL_S)[0] or stopping.is_set():
                status, reason = CANCELLED, "stopped: the run that started it was cancelled or has ended"
            elif timeout_s and time.monotonic() - started > timeout_s:
                status, reason = TIMED_OUT, f"{TOO_LONG} {timeout_s:g} s"
        if status:
            _interrupt(child, grace_s)
        _end_descendants(child)
        # Elsewhere than on Linux a lost orphan may keep the pipe open for ever.
        pump.join(None if sys.platform == "linux" else TERM_S)
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
