"""Runs a command whose whole process tree ends with it, and when the caller cancels or dies, even by SIGKILL."""

import subprocess
import sys
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing import Pipe
from pathlib import Path
from types import TracebackType
from typing import Self

from flows import supervisor

GRACE_S = 6.0  # after SIGINT, in which pretraining saves a checkpoint; a whole tree ends within 10 s of its event
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

    @property
    def released(self) -> bool:
        """Whether its commands have been told to end."""
        return self._writer.closed

    def __enter__(self) -> Self:
        """Commands can be run on it from here on, in any thread."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()

    def release(self) -> None:
        """Lets go of all commands that still run; their supervisors end them."""
        self._writer.close()


@dataclass(frozen=True)
class Ended:
    """How a command ended: supervisor.TIMED_OUT, CANCELLED or its own exit status, and the last lines it wrote."""

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
    keep: Collection[int] = (),
) -> Ended:
    """Runs `command` in `folder`; blocks until it and everything it started have ended.

    Every line of stdout and stderr is appended to `log` and handed to `on_line`. After `timeout_s` seconds (0: no
    limit) the tree gets SIGINT, SIGTERM after another `grace_s`, then SIGKILL. The descriptors in `keep` stay
    open as long as the command runs, even if this process dies.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    options = ["--log", str(log), "--timeout-s", str(timeout_s), "--grace-s", str(grace_s), "--", *command]
    tail: deque[str] = deque(maxlen=TAIL)
    with subprocess.Popen(
        [sys.executable, "-P", supervisor.__file__, *options],
        stdin=lifeline.fileno(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        cwd=folder,
        env=dict(environment),
        pass_fds=tuple(keep),
        start_new_session=True,  # Ctrl-C in a terminal reaches the caller only, which then lets go of the lifeline
        text=True,
        encoding="utf-8",
        errors="replace",
    ) as process:
        assert process.stdout
        try:
            for raw in process.stdout:
                tail.append(raw.rstrip())
                on_line(tail[-1])
        except BaseException:
            process.terminate()  # it ends the command's tree, too
            raise
    return Ended(process.returncode, list(tail))
