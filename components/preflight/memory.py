"""Bytes on one device while it trains, and on the disk."""

from typing import NamedTuple

from components.preflight.dataset import Dataset
from components.preflight.lengths import Lengths, noisy_tokens
from components.preflight.parameters import Parameters, layers, outputs
from components.pretrain.contract import PretrainParams

FP32 = 4
CONTEXT = 2**30
"""What a GPU holds besides tensors: CUDA's context, its libraries and their workspaces. An assumption."""
FRAGMENTS = 1.1
"""What torch's allocator reserves beside what tensors need: a tenth more. An assumption."""
GATHERED = 5
"""Layers' worth of whole numbers on a device that has parts only, in the backward pass: the weights of the layer at work, those of the
next one twice, as they come and in place, and the gradients of the layer twice, as they are and as they go."""


class Memory(NamedTuple):
    """Bytes on each device. `exchange` is the layers that FSDP has whole, or with several passes a step DDP's buffers, in which the
    gradients of the last one lie; `activations` is what the forward pass saves for the backward one, `working` what comes and goes."""

    parameters: float
    gradients: float
    exchange: float
    optimiser: float
    target: float
    casts: float
    activations: float
    working: float

    @property
    def tensors(self) -> float:
        """All that torch holds at the end of a forward pass, when the last step's gradients are still there."""
        return sum(self)

    @property
    def needed(self) -> float:
        """What a GPU must have for it."""
        return CONTEXT + FRAGMENTS * self.tensors


class Disk(NamedTuple):
    """Bytes. `outputs` are the final state, the target encoder and the predictor; `checkpoints` are `kept` of them at most, with the
    one being written, None of either where nobody knows the steps that are kept for good."""

    checkpoint: float
    kept: int | None
    checkpoints: float | None
    outputs: float
    dataset: float | None


def memory(params: PretrainParams, size: Parameters, tokens: Lengths, images: int) -> Memory:
    """For `images` on a device at a time."""
    scale = params.scale
    parts = scale.workers if scale.sharding == "fsdp" else 1
    return Memory(
        parameters=FP32 * size.trained / parts,
        gradients=FP32 * size.trained / parts,
        exchange=exchange(params, size, images * scale.workers < params.optimisation.global_batch_size),
        optimiser=2 * FP32 * size.trained / parts + FP32 * size.tensors,  # both moments, and each tensor's step
        target=FP32 * size.target / parts,
        # autocast keeps bf16 weights until the forward pass ends, and the backward pass needs them: whole ones, sharded or not
        casts=2 * size.trained if scale.precision == "bf16" else 0.0,
        activations=images * activations(params, tokens),
        working=images * _working(params, tokens),
    )


def exchange(params: PretrainParams, size: Parameters, several: bool) -> float:
    """Bytes on each device besides its share, `several` passes a step or one."""
    if params.scale.workers == 1:
        return 0.0
    if params.scale.sharding == "ddp":
        return FP32 * size.trained * several
    encoder, predictor = params.encoder, params.predictor
    layer = max(layers(encoder.width, 1), layers(predictor.width, 1))
    # The rest of the predictor is whole from the forward pass on, with its gradients.
    rest = size.predictor - layers(predictor.width, predictor.layers)
    return FP32 * (GATHERED * layer + 2 * rest)


def disk(params: PretrainParams, size: Parameters, dataset: Dataset) -> Disk:
    """With the encoded images of the prepared dataset, None where nobody knows them yet."""
    checkpoint = FP32 * (size.trained + size.target + 2 * size.trained + size.tensors)
    kept = _checkpoints(params, dataset.images)
    return Disk(
        checkpoint,
        kept,
        None if kept is None else kept * checkpoint,
        checkpoint + FP32 * size.trained,
        dataset.bytes,
    )


def _checkpoints(params: PretrainParams, images: int | None) -> int | None:
    """The newest ones, the one being written and those at multiples of `keep_every`."""
    if not params.keep_every:
        return params.keep_last + 1
    if images is None:
        return None
    steps = params.optimisation.epochs * images // params.optimisation.global_batch_size
    return params.keep_last + 1 + steps // params.keep_every


def shared(params: PretrainParams, images: int) -> int:
    """Bytes in a worker's /dev/shm: two of its batches of 8-bit pixels for each process that loads them."""
    return params.scale.loaders * 2 * images * 3 * params.encoder.image_size**2


def activations(params: PretrainParams, tokens: Lengths) -> float:
    """Bytes that autograd saves of one image, parameters and their casts left out."""
    encoder, predictor, half = params.encoder, params.predictor, _half(params)
    seen, passes = tokens.prefix + tokens.context, tokens.passes(predictor.passes == "joint")
    saved = float(half * 3 * encoder.image_size**2)  # the patch projection's input
    saved += FP32 * tokens.patches * encoder.width + 8 * tokens.context  # all patches and which of them are the context
    saved += _between(params, tokens)
    if params.scale.activation_checkpointing:  # what goes into each layer
        saved += FP32 * encoder.layers * seen * encoder.width
        return saved + FP32 * predictor.layers * sum(each for each, _ in passes) * predictor.width
    saved += encoder.layers * layer(seen, seen, encoder.width, encoder.heads, half)
    for each, predicted in passes:
        saved += (predictor.layers - 1) * layer(each, each, predictor.width, predictor.heads, half)
        saved += layer(each, predicted, predictor.width, predictor.heads, half)
    return saved


def _between(params: PretrainParams, tokens: Lengths) -> float:
    """What the final norms, A, the heads and the loss save of one image."""
    half, width, narrow = _half(params), params.encoder.width, params.predictor.width
    seen, masked = tokens.prefix + tokens.context, tokens.blocks * tokens.target
    heads = 1 + (params.objective.low_resolution != "none")
    saved = (FP32 + half) * (seen * width + masked * narrow)  # both final norms' inputs, and A's and the heads'
    saved += 2 * FP32 * (seen + masked)  # both norms' means and deviations
    saved += heads * 2 * FP32 * masked * outputs(params)  # predictions and targets
    return saved + half * noisy_tokens(params, tokens) * width


def layer(seen: float, computed: float, width: int, heads: int, half: int) -> float:
    """Bytes that a transformer layer saves of one image, at `computed` of the tokens it has `seen`.

    In fp32: both norms' inputs and means and deviations, and in `half` (4 bytes, or 2 under bf16): the normed tokens, queries, keys,
    values, attention's output, both sides of GELU. Attention by blocks saves no matrix of scores, but a number for each row and head.
    """
    whole = FP32 * seen + half * 3 * seen  # x and the normed x, keys, values
    part = FP32 * computed + half * (1 + 1 + 1 + 8) * computed  # x + attention; queries, output, its norm, GELU
    if computed != seen:
        part += half * computed  # the normed tokens that are asked for, copied
    return width * (whole + part) + FP32 * (2 * seen + 2 * computed + heads * computed)


def _working(params: PretrainParams, tokens: Lengths) -> float:
    """Bytes of one image at the widest point of the backward pass: the gradients on both sides of GELU in the larger layer, what is
    computed again there, and the images and targets, which last as long as the step."""
    encoder, predictor, half = params.encoder, params.predictor, _half(params)
    seen, passes = tokens.prefix + tokens.context, tokens.passes(params.predictor.passes == "joint")
    wide = (8 * half + FP32) * seen * encoder.width
    narrow = sum((8 * half + FP32) * each * predictor.width for each, _ in passes)
    if params.scale.activation_checkpointing:
        wide += layer(seen, seen, encoder.width, encoder.heads, half)
        narrow += sum(layer(each, each, predictor.width, predictor.heads, half) for each, _ in passes)
    return max(wide, narrow) + FP32 * (tokens.patches * outputs(params) + 3 * encoder.image_size**2)


def _half(params: PretrainParams) -> int:
    return 2 if params.scale.precision == "bf16" else FP32
