"""Trains a grid of linear heads on frozen features in one pass."""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from itertools import groupby, tee
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from components import progress
from components.probe.extraction import Features
from components.probe.grid import Head, Step, grid, plan
from components.probe.group import Group
from components.probe.memory import tensor
from components.probe.params import HeadParams
from components.stage import atomic, digest
from components.work import alone

ROWS_AT_ONCE = 1024
SECONDS_BETWEEN_SAVES = 60.0
# Below this many multiplications in an update one thread is as fast, and beside other busy processes, where two threads
# mostly wait for each other, ten times faster.
SMALL_UPDATE = 2e8


class Task(NamedTuple):
    """What heads learn: `name` starts progress lines and errors ("clevr count"), `classes` names labels 0, 1, …"""

    name: str
    classes: Sequence[str]
    epochs: int


class Source(Protocol):
    """Where heads get the features of a step: from a file, or from images that are encoded now."""

    widths: Mapping[str, int]
    """The feature sets by name, and how wide each is."""
    labels: np.ndarray
    """The class of each row [n]."""
    mark: str
    """Names what the features depend on, for sources whose training is kept between runs; else ''."""

    def features(self, steps: Iterator[Step]) -> Iterator[Mapping[str, Tensor]]:
        """The feature sets [B, D] of each step's rows, on the device that the heads are on."""


class Heads(NamedTuple):
    """A trained grid; `groups` hold the weights of `heads` in their order, for classes 0..C-1."""

    heads: list[Head]
    groups: list[Group]

    def predict(self, features: Features) -> np.ndarray:
        """The class of each of n rows for each head, -1 where a head has diverged: int64 [heads, n]."""
        return np.concatenate([_predict(group, features.of(group.features)) for group in self.groups])


def _predict(group: Group, features: np.ndarray) -> np.ndarray:
    rows = torch.split(tensor(features), ROWS_AT_ONCE)
    logits = (group.logits(x.to(group.weight.device)) for x in rows)
    # argmax would answer class 0 for a head that is no longer a number, and be right now and then.
    return torch.cat([x.argmax(-1).where(x.isfinite().all(-1), -1) for x in logits]).T.cpu().numpy()


@contextmanager
def _threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def fit(
    params: HeadParams, task: Task, source: Source, seed: int, device: torch.device, work: Path | None = None
) -> Heads:
    """Trains the grid on the rows of `source`, whose labels are in 0..C-1; equal input gives equal heads.

    With a folder `work` for a source that has a mark, heads are kept at the ends of epochs and an interrupted training goes on
    from there. Raises ValueError for fewer than 2 rows.
    """
    labels = torch.from_numpy(source.labels).long()
    if len(labels) < 2:
        raise ValueError(f"{task.name}: {len(labels)} training images; heads need 2 or more: raise the train limit")
    heads = grid(params, list(source.widths))
    groups = [
        Group(list(part), len(task.classes), source.widths[key[0]], params, seed, device)
        for key, part in groupby(heads, key=lambda head: (head.features, head.batch_norm))
    ]
    kept = None if work is None or not source.mark else _Kept(work, params, task, source, seed)
    per_update = min(params.batch_size, len(labels)) * sum(group.weight.numel() for group in groups)
    small = not source.mark and per_update < SMALL_UPDATE
    with kept.alone(task) if kept else nullcontext(), _threads(1 if small else torch.get_num_threads()):
        first = kept.resume(groups, task) if kept else 0
        steps, ahead = tee(plan(params, len(labels), task.epochs, seed, first))
        meter = progress.Meter(f"{task.name}: {len(heads)} heads", (task.epochs - first) * len(labels), "images")
        epoch, targets = first, labels.to(device)
        for step, batch in zip(steps, source.features(ahead), strict=True):
            if kept and step.epoch > epoch:
                kept.save(groups, step.epoch)
            epoch = step.epoch
            for group in groups:
                group.step(batch[group.features], targets[step.rows.to(device)], step.factor)
            meter.advance(len(step.rows))
        if kept:
            kept.save(groups, task.epochs, last=True)
    return Heads(heads, groups)


class _Kept:
    """The state of a training at the end of an epoch, in a folder named by all that it depends on."""

    def __init__(self, work: Path, params: HeadParams, task: Task, source: Source, seed: int) -> None:
        values = [source.mark, params.model_dump(), list(task.classes), task.epochs, seed]
        self._folder, self._saved = work / f"heads-{digest(values)}", time.monotonic()
        self._path = self._folder / "state.pt"

    def alone(self, task: Task) -> AbstractContextManager[None]:
        """One process at a time trains these heads; another waits and goes on from where it ended."""
        busy = f"{task.name}: another process trains the same heads; waiting to use them"
        return alone(self._folder, busy)

    def resume(self, groups: Sequence[Group], task: Task) -> int:
        """Brings `groups` to where they were; the epoch to go on with."""
        if not self._path.is_file():
            return 0
        state = torch.load(self._path, map_location="cpu", weights_only=True)
        for group, tensors in zip(groups, state["groups"], strict=True):
            for value, saved in zip(group.state(), tensors, strict=True):
                value.copy_(saved)
        progress.show(f"{task.name}: goes on after {state['epoch']} of {task.epochs} epochs, from {self._folder.name}")
        return int(state["epoch"])

    def save(self, groups: Sequence[Group], epoch: int, last: bool = False) -> None:
        """Writes the state after `epoch` epochs, at most once a minute but for the last."""
        if last or time.monotonic() - self._saved > SECONDS_BETWEEN_SAVES:
            self._saved = time.monotonic()
            with atomic(self._path) as temporary:
                torch.save({"epoch": epoch, "groups": [group.state() for group in groups]}, temporary)
