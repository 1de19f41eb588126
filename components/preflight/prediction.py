"""Seconds, hours and what fits, from FLOPs, bytes and a device.

A step takes its matrix products at the device's rate, and then the optimiser's and the moving average's pass over all weights at the
memory's bandwidth. Data loading and the exchange of gradients are taken to hide behind the computation.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

from components.preflight.devices import Device
from components.preflight.flops import Flops, flops
from components.preflight.lengths import Lengths, at_once, lengths
from components.preflight.memory import CONTEXT, FRAGMENTS, Memory, exchange, memory
from components.preflight.parameters import Parameters, parameters
from components.pretrain.contract import PretrainParams

ADAMW = 7 * 4
"""Bytes moved for each trained number: weight, gradient and both moments read, all but the gradient written."""
AVERAGE = 3 * 4
"""Bytes moved for each number of the target encoder: both encoders read, one written."""

NARROW = 384
"""Encoder width below which the time to start operations counts, which is not in the model; ViT-S is 384 wide."""


class Costs(NamedTuple):
    """What does not depend on the device."""

    params: PretrainParams
    size: Parameters
    tokens: Lengths
    flops: Flops
    memory: Memory
    images: int
    """Images of a worker in one step."""
    at_once: int
    """Images of a worker in one forward pass, for which `memory` is."""


class Prediction(NamedTuple):
    """What training costs on one kind of device."""

    device: Device
    step_s: float
    images_per_s: float
    """Over all workers, which is what the loaders must deliver."""
    needed: float
    largest: int
    """Most images that a worker can take at once; negative where not even the weights fit."""

    @property
    def fits(self) -> bool:
        """Whether the memory is enough."""
        return self.needed <= self.device.memory

    def hours(self, images: float) -> float:
        """For so many images, on all workers."""
        return images / self.images_per_s / 3600


def costs(params: PretrainParams) -> Costs:
    """Everything that the params alone tell."""
    size, tokens = parameters(params), lengths(params)
    images, together = params.optimisation.global_batch_size // params.scale.workers, at_once(params)
    return Costs(params, size, tokens, flops(params, tokens), memory(params, size, tokens, together), images, together)


def predict(cost: Costs, device: Device, utilisation: float | None = None) -> Prediction:
    """On `device`. `utilisation`, the share of its peak that training gets, replaces what is usual."""
    scale, held = cost.params.scale, cost.memory
    computing = cost.images * cost.flops.executed / device.rate(scale.precision, utilisation)
    updating = (ADAMW * cost.size.trained + AVERAGE * cost.size.target) / device.bandwidth
    step = computing + updating
    gpu = device.kind == "gpu"
    whole, part = _at_once(cost, device, several=False), _at_once(cost, device, several=True)
    return Prediction(
        device=device,
        step_s=step,
        images_per_s=cost.params.optimisation.global_batch_size / step,
        needed=held.needed if gpu else held.tensors,
        largest=whole if whole >= cost.images else part,
    )


def _at_once(cost: Costs, device: Device, several: bool) -> int:
    """Images for which the device has memory, in `several` passes a step, which may hold more besides, or in one."""
    room = (device.memory - CONTEXT) / FRAGMENTS if device.kind == "gpu" else device.memory
    each = (cost.memory.activations + cost.memory.working) / cost.at_once
    lasting = cost.memory.tensors - cost.memory.exchange - each * cost.at_once
    return int((room - lasting - exchange(cost.params, cost.size, several)) // each)


def warnings(cost: Costs, predictions: Sequence[Prediction]) -> list[str]:
    """What a person should know before starting, each with the way out."""
    scale, width = cost.params.scale, cost.params.encoder.width
    gpus = [each.device for each in predictions if each.device.kind == "gpu"]
    told = [_too_large(cost, each) for each in predictions if not each.fits]
    if scale.precision == "bf16" and (without := [each.name for each in gpus if not each.bf16]):
        told.append(f"{_list(without)} has no units for bf16, its hours are those of fp32: take another device")
    if scale.precision == "fp32" and (able := [each for each in gpus if each.bf16]):
        gain = able[0].rate("bf16") / able[0].rate("fp32")
        told.append(
            f"in bf16 {_list([each.name for each in able])} would be about {gain:.0f} times as fast: set scale.precision to bf16"
        )
    if predictions and width < NARROW:
        told.append(
            f"encoder.width is {width}; below {NARROW} much time goes into starting operations, on a CPU as well: take the hours for a "
            f"lower bound"
        )
    return told


def _list(names: Sequence[str]) -> str:
    return ", ".join(names)


def _too_large(cost: Costs, prediction: Prediction) -> str:
    device, scale, batch = prediction.device, cost.params.scale, cost.params.optimisation.global_batch_size
    ways = [f"scale.images_at_once {prediction.largest}"] if prediction.largest >= 1 else []
    ways += [
        f"scale.workers {workers} ({batch // workers} images each)"
        for workers in range(scale.workers + 1, batch // 2 + 1)
        if batch % workers == 0 and batch // workers <= _at_once(cost, device, several=False)
    ][:1]
    if scale.sharding == "ddp" and scale.workers > 1:
        ways += _instead(cost, device, "scale.sharding fsdp", sharding="fsdp")
    if not scale.activation_checkpointing:
        ways += _instead(cost, device, "scale.activation_checkpointing true", activation_checkpointing=True)
    ways = ways or ["a device with more memory, or a smaller encoder"]
    return (
        f"does not fit: {cost.at_once} images at once on a device need {prediction.needed / 2**30:.1f} GiB and {device.name} has "
        f"{device.memory / 2**30:.1f}. Ways out: {'; '.join(ways)}"
    )


def _instead(cost: Costs, device: Device, name: str, **changes: Any) -> list[str]:
    """The way out called `name`, if with these changes of `scale` it fits, at least with fewer images at once."""
    scale = cost.params.scale.model_copy(update=changes)
    other = predict(costs(cost.params.model_copy(update={"scale": scale})), device)
    if other.fits:
        return [f"{name} (then {other.needed / 2**30:.1f} GiB)"]
    return [f"{name} with scale.images_at_once {other.largest}"] if other.largest >= 1 else []
