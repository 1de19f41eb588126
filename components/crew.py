"""Work in parts that do not depend on each other, shared by Ray workers: who is free takes the next one, who is lost costs what it had."""

import signal
import threading
from collections import Counter, deque
from collections.abc import Callable, Hashable, Iterable
from typing import Any, Generic, Protocol, TypeVar

import ray
from ray.exceptions import OutOfMemoryError, RayActorError, RayTaskError

from components import progress
from components.cluster import Asked, code, connected

LOSSES = 3
"""So often a part may lose its worker: once is a machine's fault, three times is the part's, or memory's."""
PATIENCE_S = 300.0
"""How long to wait while no worker is there at all: importing torch takes long on a busy disk, and a node may be replaced."""

Job = TypeVar("Job")
Part = TypeVar("Part", bound=Hashable)
Taken = TypeVar("Taken", contravariant=True)


class Worker(Protocol[Taken]):
    """What works in a process of its own. It is made of a job, and raises in the two calls rather than when it is made."""

    def begin(self) -> None:
        """What comes before the first part."""

    def do(self, part: Taken) -> None:
        """Does one part; what comes of it lies in files."""


class Crew(Generic[Job, Part]):
    """Workers of one class on the cluster that it connects to for `work`.

    `label` names the work in lines for a person, `unit` a part; `relief` is what to do in the params where memory is short.
    """

    def __init__(
        self,
        worker: Callable[[Job], Worker[Part]],
        job: Job,
        asked: Asked,
        label: str,
        unit: Callable[[Part], str],
        relief: str,
    ) -> None:
        self._class, self._job, self._asked = worker, job, asked
        self._label, self._unit, self._relief = label, unit, relief
        self._calls: dict[Any, tuple[Any, Part | None]] = {}
        self._losses = Counter[Part | None]()

    def work(self, parts: Iterable[Part], done: Callable[[Part], None]) -> None:
        """Has all parts done and tells `done` of each. A ValueError of a worker comes out as itself, without Ray's envelope.

        Raises ValueError when the cluster is too small, RuntimeError when the same part loses its worker again and again.
        """
        waiting = deque(parts)
        mine = signal.getsignal(signal.SIGTERM)
        with connected(self._asked):
            # `ray.init` has taken SIGTERM for good, and would end the stage with a status of its own.
            if threading.current_thread() is threading.main_thread():
                signal.signal(signal.SIGTERM, mine)
            for _ in range(min(self._asked.workers, len(waiting))):
                self._hire()
            while waiting or self._busy():
                for call in self._finished():
                    worker, part = self._calls.pop(call)
                    if not self._went_well(call, part):
                        if part is not None:
                            waiting.appendleft(part)
                        self._hire()
                        continue
                    if part is not None:
                        done(part)
                    if waiting:
                        following = waiting.popleft()
                        self._calls[worker.do.remote(following)] = (worker, following)
            self._calls.clear()

    def _hire(self) -> None:
        how = {"num_cpus": self._asked.cpus, "num_gpus": self._asked.gpus, "runtime_env": code()}
        worker = ray.remote(self._class).options(**how).remote(self._job)
        self._calls[worker.begin.remote()] = (worker, None)

    def _busy(self) -> bool:
        return any(part is not None for _, part in self._calls.values())

    def _finished(self) -> list[Any]:
        """Waits for the calls that end next. Whoever is hired may have to wait for a node; the others go on meanwhile."""
        finished, _ = ray.wait(list(self._calls), timeout=None if self._busy() else PATIENCE_S)
        if not finished:
            raise RuntimeError(
                f"{self._label}: no worker could start in {PATIENCE_S:.0f} s; see what else uses the Ray cluster (`ray status`), then "
                "start again: what is done stays"
            )
        return list(finished)

    def _went_well(self, call: Any, part: Part | None) -> bool:
        """False where the worker was lost."""
        try:
            ray.get(call)
        except (RayActorError, OutOfMemoryError) as error:
            self._losses[part] += 1
            where = "before its first part" if part is None else f"at {self._unit(part)}"
            if self._losses[part] == LOSSES:
                raise RuntimeError(
                    f"{self._label}: {LOSSES} workers were lost {where}; most often memory ran out: {self._relief}, then start again: "
                    "what is done stays"
                ) from error
            progress.show(f"{self._label}: a worker was lost {where}; another one takes over")
            return False
        except RayTaskError as error:
            if isinstance(error.cause, ValueError):
                raise ValueError(str(error.cause)) from error
            raise
        return True
