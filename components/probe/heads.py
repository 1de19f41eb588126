"""Many linear heads on frozen features in one pass.

Heads that read the same feature set share one matrix product: batch norm before a linear layer folds into the layer's
weights, and its statistics depend on the features alone, not on the head. Gradients are written out, as the features
need none.
"""

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import groupby
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from components import progress
from components.mim import keys, schedules
from components.probe.params import HeadParams

MOMENTUM = 0.9
FINAL_RATE = 0.01  # the cosine ends at this share of the learning rate, as in VISSL's CLEVR recipe: 0.01 to 0.0001
BATCH_NORM_EPS, BATCH_NORM_MOMENTUM = 1e-5, 0.1
ROWS_AT_ONCE = 1024
SECONDS_BETWEEN_LINES = 5.0
# Below this many multiplications in an update one thread is as fast, and beside other busy processes, where two threads
# mostly wait for each other, ten times faster.
SMALL_UPDATE = 2e8


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


def batches(rows: int, batch_size: int, epochs: int, seed: int) -> Iterator[tuple[int, Tensor]]:
    """(epoch, row indices) of each update. An epoch is split evenly, so that no row is dropped and no batch is tiny."""
    for epoch in range(epochs):
        order = keys.uniform(keys.key(seed, "probe order", epoch), torch.arange(rows), 1)[:, 0].argsort(stable=True)
        for batch in order.tensor_split(math.ceil(rows / batch_size)):
            yield epoch, batch


class Group:
    """G heads of one feature set, with or without batch norm: weight [G,C,D], bias [G,C], scale and shift [G,D]."""

    def __init__(self, heads: Sequence[Head], classes: int, width: int, batch_size: int) -> None:
        self.features, self.batch_norm = heads[0].features, heads[0].batch_norm
        self.rate = torch.tensor([head.learning_rate * batch_size / 256 for head in heads])
        self.decay = torch.tensor([head.weight_decay for head in heads])
        # Zero: softmax regression is convex, so no head owes its score to a lucky draw.
        self.weight, self.bias = torch.zeros(len(heads), classes, width), torch.zeros(len(heads), classes)
        self.scale, self.shift = torch.ones(len(heads), width), torch.zeros(len(heads), width)
        self.mean, self.variance = torch.zeros(width), torch.ones(width)
        self._velocity = [torch.zeros_like(x) for x in (self.weight, self.bias, self.scale, self.shift)]

    def logits(self, x: Tensor) -> Tensor:
        """[B,D] → [B,G,C], with the running statistics where there is batch norm."""
        if not self.batch_norm:
            return self._affine(x)
        return self._affine((x - self.mean) * torch.rsqrt(self.variance + BATCH_NORM_EPS))

    def step(self, x: Tensor, labels: Tensor, factor: float) -> None:
        """One SGD update of every head on the batch `x` [B,D], `labels` [B], at `factor` times the learning rate."""
        if self.batch_norm:
            mean = x.mean(0)
            x = x - mean
            variance = x.square().mean(0)  # torch.var over the rows is ten times slower
            self.mean.lerp_(mean, BATCH_NORM_MOMENTUM)
            self.variance.lerp_(variance * (len(x) / (len(x) - 1)), BATCH_NORM_MOMENTUM)  # unbiased, as torch keeps it
            x *= torch.rsqrt(variance + BATCH_NORM_EPS)
        error = torch.softmax(self._affine(x), dim=-1)
        error[torch.arange(len(x)), :, labels] -= 1
        error /= len(x)
        bias_slope = error.sum(0)
        slope = (error.flatten(1).T @ x).view_as(self.weight)
        if self.batch_norm:
            scale_slope = (slope * self.weight).sum(1)
            shift_slope = torch.einsum("gc,gcd->gd", bias_slope, self.weight)
            slope.mul_(self.scale[:, None]).addcmul_(bias_slope[:, :, None], self.shift[:, None])
            self._descend(2, self.scale, scale_slope, factor, decayed=False)
            self._descend(3, self.shift, shift_slope, factor, decayed=False)
        self._descend(0, self.weight, slope, factor, decayed=True)
        self._descend(1, self.bias, bias_slope, factor, decayed=True)

    def _affine(self, x: Tensor) -> Tensor:
        weight, bias = self.weight, self.bias
        if self.batch_norm:
            weight, bias = weight * self.scale[:, None], bias + torch.einsum("gcd,gd->gc", weight, self.shift)
        return torch.addmm(bias.flatten(), x, weight.flatten(0, 1).T).view(len(x), *bias.shape)

    def _descend(self, slot: int, value: Tensor, slope: Tensor, factor: float, decayed: bool) -> None:
        shape = (-1,) + (1,) * (value.dim() - 1)
        if decayed:
            slope.addcmul_(value, self.decay.view(shape))
        velocity = self._velocity[slot].mul_(MOMENTUM).add_(slope)
        value.addcmul_(slope.add_(velocity, alpha=MOMENTUM), self.rate.view(shape), value=-factor)  # Nesterov


class Heads(NamedTuple):
    """A trained grid; `groups` hold the weights of `heads` in their order, for classes 0..C-1."""

    heads: list[Head]
    groups: list[Group]

    def predict(self, features: Mapping[str, np.ndarray]) -> np.ndarray:
        """The class of each row for each head, -1 where a head has diverged: feature sets [n,D] → int64 [heads, n]."""
        return np.concatenate([_predict(group, features[group.features]) for group in self.groups])


def _predict(group: Group, features: np.ndarray) -> np.ndarray:
    rows = torch.split(torch.from_numpy(features), ROWS_AT_ONCE)
    logits = (group.logits(x) for x in rows)
    # argmax would answer class 0 for a head that is no longer a number, and be right now and then.
    return torch.cat([x.argmax(-1).where(x.isfinite().all(-1), -1) for x in logits]).T.numpy()


@contextmanager
def _threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def fit(
    params: HeadParams, epochs: int, features: Mapping[str, np.ndarray], labels: np.ndarray, classes: int, where: str
) -> Heads:
    """Trains the grid on feature sets [n,D] float32 with `labels` [n] in 0..classes-1; equal input gives equal heads.

    `where` starts progress lines and errors. Raises ValueError for fewer than 2 rows or features that are not finite.
    """
    if len(labels) < 2:
        raise ValueError(f"{where}: {len(labels)} training images; heads need 2 or more: raise the train limit")
    for name, values in features.items():
        if not np.isfinite(values).all():
            raise ValueError(
                f"{where}: feature set {name!r} is not finite; the encoder has diverged: pretrain with a lower rate"
            )
    heads = grid(params, list(features))
    groups = [
        Group(list(part), classes, features[key[0]].shape[1], params.batch_size)
        for key, part in groupby(heads, key=lambda head: (head.features, head.batch_norm))
    ]
    tensors = {name: torch.from_numpy(values) for name, values in features.items()}
    targets = torch.from_numpy(labels).long()
    steps = epochs * math.ceil(len(labels) / params.batch_size)
    work = min(params.batch_size, len(labels)) * sum(group.weight.numel() for group in groups)
    spoken = time.monotonic()
    with _threads(1 if work < SMALL_UPDATE else torch.get_num_threads()):
        for step, (epoch, rows) in enumerate(batches(len(labels), params.batch_size, epochs, params.seed)):
            batch = {name: values[rows] for name, values in tensors.items()}
            factor = schedules.learning_rate(step, steps=steps, warmup_steps=0, start=1.0, peak=1.0, final=FINAL_RATE)
            for group in groups:
                group.step(batch[group.features], targets[rows], factor)
            if time.monotonic() - spoken > SECONDS_BETWEEN_LINES:
                spoken = time.monotonic()
                progress.show(f"{where}: {len(heads)} heads, epoch {epoch + 1}/{epochs}")
    return Heads(heads, groups)
