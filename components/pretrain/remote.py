"""Training in Ray Train's worker processes, which are started again from the newest checkpoint when some are lost."""

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Thread
from typing import Any

from ray.exceptions import OutOfMemoryError, RayError
from ray.train import FailureConfig, Result, RunConfig, WorkerGroupError
from ray.train.torch import TorchTrainer
from ray.train.v2._internal.exceptions import WorkerHealthCheckFailedError
from ray.train.v2.api.exceptions import ControllerError, TrainingFailedError

from components import progress
from components.cluster import code, wait_for
from components.pretrain import checkpoints
from components.pretrain.callback import HistoryWriter
from components.pretrain.cluster import asked, cluster, scaling
from components.pretrain.history import HISTORY
from components.pretrain.session import Job, smaller
from components.pretrain.stopping import Stop
from components.pretrain.storage import check_storage
from components.pretrain.worker import STOP, train_worker
from components.stage import remove

RESTARTS = 3
"""On end without a new checkpoint; then something is wrong that another try does not mend."""
REPLACEMENT_S = 600.0
"""How long a node that was lost may take to be replaced."""
OURS = (TypeError, AttributeError, LookupError, AssertionError, NotImplementedError, ImportError)
"""Faults of a program, which come again."""
NONE_BY_RAY = FailureConfig(max_failures=0, controller_failure_limit=0, max_preemption_failures=0)
"""Ray starts nothing again: by itself it would without end where a node is drained or workers find no place, and each time from the
checkpoint that the first of them was given."""


def train(job: Job, stop: Stop) -> bool:
    """Trains to the end; False when `stop` was set and a checkpoint was saved before it, if there was a step.

    Raises a worker's ValueError as itself, and Ray's own error after `RESTARTS` without progress. ValueError also where workers were
    ended each time because a node's memory ran out; where the cluster is too small, at the start at once, later after `REPLACEMENT_S`;
    or where its nodes do not see the same files.
    """
    mark, failures, reached = job.folder / STOP, 0, _reached(job)
    remove(mark)
    with cluster(job.params.scale, lambda: stop.asked), stop.calling(mark.touch):
        while not stop.asked:
            try:
                _same_files(job)
                return _attempt(job)
            except (TrainingFailedError, RayError) as error:
                cause = _cause(error)
                if isinstance(cause, (ValueError, *OURS)):
                    raise cause from error
                if stop.asked:
                    raise
                job = job._replace(checkpoint=checkpoints.newest(job.folder))
                failures, reached = 1 if _reached(job) > reached else failures + 1, _reached(job)
                told = f"a worker was lost: {_said(cause)}"
                if failures > RESTARTS:
                    progress.show(f"{told}; {RESTARTS} restarts came no further than step {reached}: giving up")
                    if isinstance(cause, OutOfMemoryError):
                        raise ValueError(smaller(job.params, _said(cause))) from error
                    raise
                progress.show(f"WARNING: {told}; starting the workers again from step {reached}")
                wait_for(asked(job.params.scale), REPLACEMENT_S, lambda: stop.asked)
        return False


def _same_files(job: Job) -> None:
    """Also nodes that came in the place of lost ones must see what the others do."""
    cards = [path / "card.json" for path in (job.dataset, job.quality) if path]
    check_storage(job.folder, [*cards, job.init])


def _reached(job: Job) -> int:
    return checkpoints.step_of(job.checkpoint) if job.checkpoint else 0


def _attempt(job: Job) -> bool:
    """One group of workers, from its start to its end."""
    with _scratch(job.folder) as storage:
        trainer = TorchTrainer(
            train_worker,
            train_loop_config={
                "params": job.params.model_dump(),
                **{name: str(value) for name, value in job._asdict().items() if name not in ("params", "checkpoint")},
                "checkpoint": str(job.checkpoint) if job.checkpoint else "",
            },
            scaling_config=scaling(job.params.scale),
            run_config=RunConfig(
                name=storage.name,
                storage_path=str(storage.parent),
                failure_config=NONE_BY_RAY,
                callbacks=[HistoryWriter(job.folder / HISTORY)],
                worker_runtime_env=code(),
            ),
        )
        return bool(_fitted(trainer).return_value)


def _fitted(trainer: TorchTrainer) -> Result:
    """`fit` in a thread: in the main one Ray takes SIGINT for itself and ends workers before they can save."""
    found = list[Result | BaseException]()

    def fit() -> None:
        try:
            found.append(trainer.fit())
        except BaseException as error:  # raised below, in the thread that waits
            found.append(error)

    thread = Thread(target=fit, daemon=True)
    thread.start()
    while thread.is_alive():
        thread.join(0.2)  # wakes up for signals
    (result,) = found
    if isinstance(result, BaseException):
        raise result
    return result


@contextmanager
def _scratch(folder: Path) -> Iterator[Path]:
    """A folder for Ray's own record of one try; a name that it knows would bring back the try before."""
    path = folder / "ray" / uuid.uuid4().hex[:12]
    remove(path.parent)
    path.parent.mkdir()
    try:
        yield path
    finally:
        remove(path.parent)


def _cause(error: BaseException) -> BaseException:
    """What a worker raised, a verdict first: where one has, others may have lost their connection to it."""
    causes: list[Any] = list(error.worker_failures.values()) if isinstance(error, WorkerGroupError) else []
    causes += [error.controller_failure] if isinstance(error, ControllerError) else []
    # What ended a process comes wrapped: its controller learns of it when it asks for the worker's health.
    causes = [each.health_check_failure if isinstance(each, WorkerHealthCheckFailedError) else each for each in causes]
    for kind in ((ValueError, *OURS), OutOfMemoryError, BaseException):
        for cause in causes:
            if isinstance(cause, kind):
                return cause if not isinstance(cause, ValueError) else ValueError(str(cause))
    return error


def _said(cause: BaseException) -> str:
    lines = [line.strip() for line in str(cause).splitlines() if line.strip()]
    return f"{type(cause).__name__}: {' '.join(lines[:2])}"[:400]
