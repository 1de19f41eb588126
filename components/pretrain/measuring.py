"""What the curves show of one step: features and masks of the global batch, and how each worker spends its time."""

import resource
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from components.mim import diagnostics
from components.mim.blocks import Masks
from components.mim.objectives import Targets
from components.pretrain.parallel import Alone

if TYPE_CHECKING:
    from components.pretrain.loop import Trainer

Row = dict[str, float]


class Part(NamedTuple):
    """Of the images that went through the model together."""

    images: int
    pooled_BD: Tensor
    """Average-pooled, layer-normed features."""
    mean_D: Tensor
    square_D: Tensor
    """Of the targets over images and patches."""
    used_N: Tensor
    context: int


@torch.no_grad()
def part(trainer: "Trainer", images: Tensor, masks: Masks, targets: Targets) -> Part:
    """Measures what a forward pass has left."""
    full = targets.full_BND.float()
    if trainer.target:
        pooled = full.mean(dim=1)
    else:
        with trainer.precision():
            tokens = trainer.model.encoder(images).float()
        pooled = functional.layer_norm(tokens, tokens.shape[-1:]).mean(dim=1)
    used = diagnostics.used_patches(masks, trainer.grid.h * trainer.grid.w)
    mean, square = full.mean(dim=(0, 1)), full.square().mean(dim=(0, 1))
    return Part(len(images), pooled, mean, square, used, masks.context_BK.shape[1])


def batch(parts: Sequence[Part], parallel: Alone) -> Row:
    """Curves over the global batch, the same on every worker."""
    shares = [each.images / sum(part.images for part in parts) for each in parts]
    moments = [torch.stack([each.mean_D, each.square_D]) * share for each, share in zip(parts, shares, strict=True)]
    mean, square = parallel.gather(torch.stack(moments).sum(dim=0)[None]).mean(dim=0)
    used = parallel.gather(torch.stack([each.used_N for each in parts]).amax(dim=0)[None])
    return {
        **diagnostics.spread(parallel.gather(torch.cat([each.pooled_BD for each in parts]))),
        "target_std": (square - mean.square()).clamp_min(0).sqrt().mean().item(),
        "context_length": parts[-1].context,
        "mask_coverage": used.amax(dim=0).mean().item(),
    }


class Pace:
    """How one worker spends its time between two logged steps, those between them included."""

    def __init__(self, share: int, device: torch.device) -> None:
        """`share` is its images in a step."""
        self._share, self._device = share, device
        self._since, self._waited, self._steps = time.monotonic(), 0.0, 0

    def step(self, waited: float) -> None:
        """Counts a step that stood still for `waited` seconds until its images were there."""
        self._steps += 1
        self._waited += waited

    def row(self, gradient_norm: float) -> Row:
        """This worker's own numbers since the last row; what logging and checkpoints take counts into the next one."""
        now = time.monotonic()
        seconds, steps = max(now - self._since, 1e-9), self._steps
        own = {
            "seconds": seconds,
            "seconds_per_step": seconds / steps,
            "images_per_second": steps * self._share / seconds,
            "data_wait": self._waited / seconds,
            "memory_gib": _memory(self._device) / 2**30,
            "gradient_norm": gradient_norm,
        }
        self._since, self._waited, self._steps = now, 0.0, 0
        return own


def together(own: Row, parallel: Alone) -> Row:
    """All workers' own numbers as one, the same on every worker: their images, the slowest's time, the longest wait, the most memory."""
    names = ("seconds", "seconds_per_step", "images_per_second", "data_wait", "memory_gib")
    numbers = torch.tensor([[own[name] for name in names]], dtype=torch.float32, device=parallel.device)
    seconds, per_step, images, wait, memory = parallel.gather(numbers).T
    return {
        "seconds": seconds.max().item(),
        "seconds_per_step": per_step.max().item(),
        "images_per_second": images.sum().item(),
        "data_wait": wait.max().item(),
        "memory_gib": memory.max().item(),
    }


def _memory(device: torch.device) -> float:
    """Most bytes so far: of tensors on a GPU, else of this process."""
    if device.type == "cuda":
        return float(torch.cuda.max_memory_allocated(device))
    return float(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss) * 1024
