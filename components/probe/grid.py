"""Which heads there are, and in which order and at which rate they learn."""

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from components.mim import keys, schedules
from components.probe.params import HeadParams

FINAL_RATE = 0.01  # the cosine ends at this share of the learning rate, as in VISSL's CLEVR recipe: 0.01 to 0.0001
DECAY = 0.1  # what a milestone leaves of the learning rate


class Head(NamedTuple):
    """One head of the grid. `features` names a feature set; the learning rate is per 256 images."""

    features: str
    batch_norm: bool
    learning_rate: float
    weight_decay: float


def grid(params: HeadParams, features: Sequence[str]) -> list[Head]:
    """Every head of the grid; heads of equal `features` and `batch_norm` stand side by side."""
    kinds = {"both": (False, True), "no": (False,), "yes": (True,)}[params.batch_norm]
    return [
        Head(name, kind, rate, decay)
        for name in features
        for kind in kinds
        for rate in params.learning_rates
        for decay in params.weight_decays
    ]


class Step(NamedTuple):
    """One update: its epoch, the row indices [B] it learns from, and the factor at its learning rate."""

    epoch: int
    rows: Tensor
    factor: float


def plan(params: HeadParams, rows: int, epochs: int, seed: int, first: int = 0) -> Iterator[Step]:
    """The updates from epoch `first` on. An epoch is split evenly, so that no row is dropped and no batch is tiny."""
    per_epoch = math.ceil(rows / params.batch_size)
    for epoch in range(first, epochs):
        order = keys.uniform(keys.key(seed, "probe order", epoch), torch.arange(rows), 1)[:, 0].argsort(stable=True)
        for i, batch in enumerate(order.tensor_split(per_epoch)):
            yield Step(epoch, batch, _factor(params, epoch, epoch * per_epoch + i, epochs * per_epoch))


def _factor(params: HeadParams, epoch: int, step: int, steps: int) -> float:
    if params.schedule == "step":
        return float(DECAY ** sum(epoch >= milestone for milestone in params.milestones))
    return schedules.learning_rate(step, steps=steps, warmup_steps=0, start=1.0, peak=1.0, final=FINAL_RATE)
