"""Floating-point operations of one image: two for each multiplication with addition in a matrix product, nothing for the rest.

The convention of PaLM (Chowdhery et al. 2022, appendix B) and of `torch.utils.flop_counter`: model FLOPs, in which what
activation checkpointing computes twice counts once. Flash attention's second look at the scores is not counted either.
"""

from typing import NamedTuple

from components.preflight.lengths import Lengths, noisy_tokens
from components.preflight.parameters import outputs, pixels
from components.pretrain.contract import PretrainParams


class Flops(NamedTuple):
    """Of one image. `again` is what activation checkpointing adds; it is work, but brings the model no further."""

    encoder_forward: float
    encoder_backward: float
    predictor_forward: float
    predictor_backward: float
    target: float
    again: float

    @property
    def forward(self) -> float:
        """Of the encoder, the predictor and the target encoder."""
        return self.encoder_forward + self.predictor_forward + self.target

    @property
    def backward(self) -> float:
        """Of the encoder and the predictor."""
        return self.encoder_backward + self.predictor_backward

    @property
    def model(self) -> float:
        """All that a step needs of one image."""
        return self.forward + self.backward

    @property
    def executed(self) -> float:
        """The same with what is computed a second time."""
        return self.model + self.again


def flops(params: PretrainParams, tokens: Lengths) -> Flops:
    """FLOPs of one image with `tokens`. A matrix costs twice its forward pass in the backward one, half of that where its input needs
    no gradient: pixels and noise."""
    encoder = params.encoder
    embedding = product(
        tokens.patches, pixels(params), encoder.width
    )  # all patches, before those of the context are taken
    seen, whole = tokens.prefix + tokens.context, tokens.prefix + tokens.patches
    context_layers = encoder.layers * layer(seen, seen, encoder.width)
    target = embedding + encoder.layers * layer(whole, whole, encoder.width)
    tower, rest, noise = _predictor(params, tokens)
    return Flops(
        encoder_forward=embedding + context_layers,
        encoder_backward=embedding + 2 * context_layers,
        predictor_forward=tower + rest + noise,
        predictor_backward=2 * (tower + rest) + noise,
        target=0.0 if params.objective.name == "mae" else target,
        again=_again(params, tokens) if params.scale.activation_checkpointing else 0.0,
    )


def _predictor(params: PretrainParams, tokens: Lengths) -> tuple[float, float, float]:
    """Forward FLOPs of its layers, of A on the context and the heads, and of A on the noise."""
    predictor, width = params.predictor, params.encoder.width
    tower = 0.0
    for seen, predicted in tokens.passes(predictor.passes == "joint"):
        tower += (predictor.layers - 1) * layer(seen, seen, predictor.width)
        tower += layer(seen, predicted, predictor.width)  # nothing reads the context after the last layer
    masked = tokens.blocks * tokens.target
    heads = 1 + (params.objective.low_resolution != "none")
    rest = product(tokens.prefix + tokens.context, width, predictor.width)
    rest += heads * product(masked, predictor.width, outputs(params))
    return tower, rest, product(noisy_tokens(params, tokens), width, predictor.width)


def _again(params: PretrainParams, tokens: Lengths) -> float:
    """Forward FLOPs of all layers up to GELU: torch stops computing a layer again when it has what the backward pass needs."""
    encoder, predictor, seen = params.encoder, params.predictor, tokens.prefix + tokens.context
    again = encoder.layers * (layer(seen, seen, encoder.width) - product(seen, 4 * encoder.width, encoder.width))
    for each, predicted in tokens.passes(predictor.passes == "joint"):
        for computed, count in ((each, predictor.layers - 1), (predicted, 1)):
            last = product(computed, 4 * predictor.width, predictor.width)
            again += count * (layer(each, computed, predictor.width) - last)
    return again


def layer(seen: float, computed: float, width: int) -> float:
    """Forward FLOPs of a transformer layer at `computed` of the tokens it has `seen`; usually all of them."""
    query_proj_mlp, key_value = product(computed, width, 10 * width), product(seen, width, 2 * width)
    return query_proj_mlp + key_value + 2 * product(computed, seen, width)


def product(rows: float, inner: float, columns: float) -> float:
    """FLOPs of a matrix product."""
    return 2 * rows * inner * columns
