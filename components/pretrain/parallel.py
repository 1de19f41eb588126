"""How the workers of one run train one model: each alone with it, or all with a replica (DDP). Shards: `sharding`."""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor, distributed, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from components.mim.encoder import VisionEncoder
from components.mim.model import MaskedImageModel


class Weights(NamedTuple):
    """State dicts of whole tensors, whatever the number of workers and the sharding."""

    model: dict[str, Tensor]
    target: dict[str, Tensor] | None
    optimizer: dict[str, Any]


class Alone:
    """One worker with the whole model: no process group."""

    rank, world = 0, 1

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def distribute(self, model: MaskedImageModel, target: VisionEncoder | None) -> nn.Module:
        """Moves both to the device, each worker's part of them; what is called for the loss. The optimiser is made afterwards."""
        model.to(self.device)
        if target:
            target.to(self.device)
        return model

    def gather(self, tensor: Tensor) -> Tensor:
        """Equal tensors of all workers joined along the first axis in rank order, so that diagnostics describe the global batch."""
        return tensor

    def exchanging(self, wrapped: nn.Module, last: bool) -> AbstractContextManager[Any]:
        """Around a backward pass: whether gradients go round, as they need to in the `last` of a step only."""
        return nullcontext()

    def gradient_norm(self, gradients: Sequence[Tensor]) -> Tensor:
        """The 2-norm of all gradients of the model together, the same on every worker."""
        return nn.utils.get_total_norm(gradients)

    def weights(self, model: MaskedImageModel, target: VisionEncoder | None, optimizer: Optimizer) -> Weights:
        """All three as whole tensors on any device; only rank 0's are complete.

        Every worker must call it.
        """
        return Weights(model.state_dict(), target.state_dict() if target else None, optimizer.state_dict())

    def load(
        self, model: MaskedImageModel, target: VisionEncoder | None, optimizer: Optimizer, weights: Weights
    ) -> None:
        """Puts in what `weights` gave, whole tensors on the CPU, on every worker. Raises RuntimeError where one does not fit."""
        model.load_state_dict(weights.model, strict=True)
        if target:
            assert weights.target is not None, "a state of an objective with a target encoder has one"
            target.load_state_dict(weights.target, strict=True)
        optimizer.load_state_dict(weights.optimizer)
        # torch keeps what is on its device already: a file's pages, with the file behind them
        for moments in optimizer.state.values():
            moments.update({name: tensor.clone() for name, tensor in moments.items() if tensor.device.type == "cpu"})


class Replicated(Alone):
    """Several workers, each with a replica, in the process group that is there; gradients are averaged (DDP)."""

    def __init__(self, device: torch.device) -> None:
        super().__init__(device)
        self.rank, self.world = distributed.get_rank(), distributed.get_world_size()

    def distribute(self, model: MaskedImageModel, target: VisionEncoder | None) -> nn.Module:
        """As above, under DDP."""
        super().distribute(model, target)
        devices = [self.device] if self.device.type == "cuda" else None
        # Gradients lie in the buffers that go round; copies of them would take memory, and time in each step.
        return DistributedDataParallel(model, device_ids=devices, gradient_as_bucket_view=True)

    def gather(self, tensor: Tensor) -> Tensor:
        """As above."""
        parts = [torch.empty_like(tensor) for _ in range(self.world)]
        distributed.all_gather(parts, tensor.contiguous())
        return torch.cat(parts)

    def exchanging(self, wrapped: nn.Module, last: bool) -> AbstractContextManager[Any]:
        """As above."""
        assert isinstance(wrapped, DistributedDataParallel)
        return nullcontext() if last else wrapped.no_sync()
