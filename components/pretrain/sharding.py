"""Weights, gradients, moments and the target encoder split among the workers of one run (FSDP2), for models that no device holds.

Every parameter is a DTensor, cut along its first axis into a part for each worker as torch.chunk cuts; where it is short the last parts
are empty. A transformer layer is a unit: its parts are gathered before it computes and let go after, forward and backward, so that a
device holds one or two whole layers besides its share. Both encoders are cut alike, and the moving average needs no exchange.
"""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, distributed, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard, register_fsdp_forward_method
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer

from components.mim.encoder import VisionEncoder
from components.mim.model import MaskedImageModel
from components.pretrain.parallel import Replicated, Weights

ENTRIES = ("tokens", "layer_outputs")
"""Through which an encoder is called, besides `forward`: FSDP gathers parameters only around calls it knows of."""


class Sharded(Replicated):
    """Several workers with a part of everything each, in the process group that is there.

    Whatever computes with the model or the target encoder exchanges parts, so every worker must do it.
    """

    def __init__(self, device: torch.device) -> None:
        super().__init__(device)
        if device.type == "cuda":  # else the mesh takes the GPU of a number that it guesses
            torch.cuda.set_device(device)
            torch.cuda.init()  # type: ignore[no-untyped-call]
        self.mesh = init_device_mesh(device.type, (self.world,))

    def distribute(self, model: MaskedImageModel, target: VisionEncoder | None) -> nn.Module:
        """As above. Goes to the device layer by layer, so that the whole model is never there."""
        for layer in model.predictor.layer_modules():  # the innermost first: each unit takes what no other has
            fully_shard(layer, mesh=self.mesh)
        for encoder in [model.encoder, target] if target else [model.encoder]:
            for layer in encoder.layer_modules():
                fully_shard(layer, mesh=self.mesh)
            # Cut again after its forward pass even where it is the root of what computes, which else waits for a backward pass.
            fully_shard(encoder, mesh=self.mesh, reshard_after_forward=True)
            for name in ENTRIES:
                register_fsdp_forward_method(encoder, name)
        fully_shard(model, mesh=self.mesh)
        return model

    def exchanging(self, wrapped: nn.Module, last: bool) -> AbstractContextManager[Any]:
        """As above, but in each pass: to wait for the last would keep whole gradients, and shards are there to save memory."""
        return nullcontext()

    def gradient_norm(self, gradients: Sequence[Tensor]) -> Tensor:
        """As above."""
        square = nn.utils.get_total_norm([_part(gradient) for gradient in gradients]).square()
        distributed.all_reduce(square)
        return square.sqrt()

    def weights(self, model: MaskedImageModel, target: VisionEncoder | None, optimizer: Optimizer) -> Weights:
        """As above, on the CPU; on other ranks every tensor is empty. A device gathers them one at a time."""
        state = super().weights(model, target, optimizer)
        moments = {index: self._wholes(one) for index, one in state.optimizer["state"].items()}
        return Weights(
            self._wholes(state.model),
            None if state.target is None else self._wholes(state.target),
            {**state.optimizer, "state": moments},
        )

    def load(
        self, model: MaskedImageModel, target: VisionEncoder | None, optimizer: Optimizer, weights: Weights
    ) -> None:
        """As above. Each worker reads no more than its parts of a memory-mapped file."""
        model.load_state_dict(_parts(model.state_dict(), weights.model), strict=True)
        if target:
            assert weights.target is not None, "a state of an objective with a target encoder has one"
            target.load_state_dict(_parts(target.state_dict(), weights.target), strict=True)
        parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        whole = weights.optimizer
        moments = {
            index: {name: _cut(value, parameters[index]) if value.ndim else value for name, value in one.items()}
            for index, one in whole["state"].items()  # a step is a plain number, the same everywhere
        }
        optimizer.load_state_dict({**whole, "state": moments})

    def _wholes(self, parts: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return {name: self._whole(part) for name, part in parts.items()}

    def _whole(self, part: Tensor) -> Tensor:
        whole = part.full_tensor() if isinstance(part, DTensor) else part
        return whole.detach().cpu() if self.rank == 0 else torch.empty(0)


def _part(tensor: Tensor) -> Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def _parts(likes: Mapping[str, Tensor], wholes: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """This worker's part of each; what has another name is left as it is, for load_state_dict to say so."""
    return {name: _cut(whole, likes[name]) if name in likes else whole for name, whole in wholes.items()}


def _cut(whole: Tensor, like: Tensor) -> Tensor:
    """The part of `whole` that this worker has of `like`, as a DTensor; a copy, with nothing else read."""
    if not isinstance(like, DTensor):
        return whole
    mesh, length = like.device_mesh, len(whole)
    size = -(-length // mesh.size())
    start = min(mesh.get_local_rank() * size, length)
    part = whole[start : start + size].to(like.device, copy=True)
    return DTensor.from_local(part, mesh, like.placements, run_check=False, shape=whole.shape, stride=whole.stride())
