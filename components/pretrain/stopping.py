"""SIGINT and SIGTERM while training: the step in hand is finished and saved first, as a preempted job has time for."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from components import progress

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Stop:
    """Whether a signal asked training to stop, and which."""

    def __init__(self) -> None:
        self.signal: int | None = None
        self._tell: Callable[[], None] = lambda: None
        self._hear: Callable[[int, FrameType | None], None] | None = None

    @property
    def asked(self) -> bool:
        """Whether training should end after a checkpoint."""
        return self.signal is not None

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Takes the first signal as the wish; the second ends the process as it always does. Only the main thread can listen."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.getsignal(number) for number in SIGNALS}

        def hear(number: int, frame: FrameType | None) -> None:
            for each, handler in before.items():
                signal.signal(each, handler)
            self.signal = number
            self._tell()
            progress.show("stopping: saving a checkpoint after this step; another signal ends it at once")

        self._hear = hear
        self._listen()
        try:
            yield
        finally:
            self._hear = None
            for number, handler in before.items():
                signal.signal(number, handler)

    def _listen(self) -> None:
        for number in SIGNALS:
            signal.signal(number, self._hear)

    @contextmanager
    def calling(self, tell: Callable[[], None]) -> Iterator[None]:
        """Calls `tell` at the signal, inside the block, which a library may have been started before that took SIGTERM for itself."""
        self._tell = tell
        if self.asked:
            tell()
        elif self._hear:
            self._listen()
        try:
            yield
        finally:
            self._tell = lambda: None

    def end(self) -> None:
        """Ends as the signal would have: KeyboardInterrupt for SIGINT, SystemExit for SIGTERM."""
        if self.signal == signal.SIGINT:
            raise KeyboardInterrupt
        raise SystemExit(128 + (self.signal or 0))
