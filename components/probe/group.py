"""Many linear heads that read the same features, trained side by side.

They share one matrix product: batch norm before a linear layer folds into the layer's weights, and its statistics depend on the
features alone, not on the head. Gradients are written out, as the features need none.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from components.mim import keys
from components.probe.grid import Head
from components.probe.params import HeadParams

MOMENTUM = 0.9
TRUST = 0.001  # LARS: the share of a matrix' norm by which an update may change it
START = 0.01  # standard deviation of a head's first weights for LARS
BATCH_NORM_EPS, BATCH_NORM_MOMENTUM = 1e-5, 0.1


def start(seed: int, features: str, classes: int, width: int) -> Tensor:
    """First weights [C,D] for LARS, whose updates are shares of a weight's norm; the same for all heads of a feature set.

    SGD starts at zero: softmax regression is convex, so that no head owes its score to a lucky draw.
    """
    return START * keys.normal(keys.key(seed, "probe head", features), torch.arange(classes), width)


class Group:
    """G heads of one feature set, with or without batch norm: weight [G,C,D], bias [G,C], scale and shift [G,D]."""

    def __init__(
        self, heads: Sequence[Head], classes: int, width: int, params: HeadParams, seed: int, device: torch.device
    ) -> None:
        self.features, self.batch_norm = heads[0].features, heads[0].batch_norm
        self._lars = params.optimiser == "lars"
        with device:
            self.rate = torch.tensor([head.learning_rate * params.batch_size / 256 for head in heads])
            self.decay = torch.tensor([head.weight_decay for head in heads])
            self.weight, self.bias = torch.zeros(len(heads), classes, width), torch.zeros(len(heads), classes)
            self.scale, self.shift = torch.ones(len(heads), width), torch.zeros(len(heads), width)
            self.mean, self.variance = torch.zeros(width), torch.ones(width)
        if self._lars:
            self.weight += start(seed, self.features, classes, width).to(device)
        self._velocity = [torch.zeros_like(x) for x in (self.weight, self.bias, self.scale, self.shift)]

    def state(self) -> list[Tensor]:
        """All that training changes, the tensors themselves: to save, or to copy a saved state into."""
        return [self.weight, self.bias, self.scale, self.shift, self.mean, self.variance, *self._velocity]

    def logits(self, x: Tensor) -> Tensor:
        """[B,D] → [B,G,C], with the running statistics where there is batch norm."""
        if not self.batch_norm:
            return self._affine(x)
        return self._affine((x - self.mean) * torch.rsqrt(self.variance + BATCH_NORM_EPS))

    def step(self, x: Tensor, labels: Tensor, factor: float) -> None:
        """One update of every head on the batch `x` [B,D], `labels` [B], at `factor` times the learning rate."""
        if self.batch_norm:
            mean = x.mean(0)
            x = x - mean
            variance = x.square().mean(0)  # torch.var over the rows is ten times slower
            self.mean.lerp_(mean, BATCH_NORM_MOMENTUM)
            self.variance.lerp_(variance * (len(x) / (len(x) - 1)), BATCH_NORM_MOMENTUM)  # unbiased, as torch keeps it
            x *= torch.rsqrt(variance + BATCH_NORM_EPS)
        error = torch.softmax(self._affine(x), dim=-1)
        error[torch.arange(len(x), device=x.device), :, labels] -= 1
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
        if self._lars and value.dim() == 3:  # a head's matrix; its vectors keep their own pace
            norm, pull = value.flatten(1).norm(dim=1), slope.flatten(1).norm(dim=1)
            slope.mul_(torch.where((norm > 0) & (pull > 0), TRUST * norm / pull, 1.0).view(shape))
        velocity = self._velocity[slot].mul_(MOMENTUM).add_(slope)
        ahead = velocity if self._lars else slope.add_(velocity, alpha=MOMENTUM)  # SGD's is Nesterov's
        value.addcmul_(ahead, self.rate.view(shape), value=-factor)
