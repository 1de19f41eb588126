"""How many parameters the model has, in closed form."""

from typing import NamedTuple

from components.mim.grid import patch_grid
from components.pretrain.contract import PretrainParams


class Parameters(NamedTuple):
    """Trained numbers. `projection` (A, b and an untied N) and `mask_token` are part of the predictor's."""

    encoder: int
    predictor: int
    target: int
    projection: int
    mask_token: int
    tensors: int

    @property
    def trained(self) -> int:
        """What has a gradient and the optimiser's moments."""
        return self.encoder + self.predictor


def parameters(params: PretrainParams) -> Parameters:
    """Those of the encoder and the predictor, and of the target encoder, which MAE has none of."""
    encoder, predictor, stop = params.encoder, params.predictor, params.stop
    width, narrow = encoder.width, predictor.width
    patches = patch_grid(encoder.image_size, encoder.patch_size).h ** 2
    learned_encoder = encoder.positions == "learned"
    learned_predictor = predictor.positions == "learned"
    trunk = (
        linear(pixels(params), width)
        + encoder.class_token * width
        + learned_encoder * patches * width
        + layers(width, encoder.layers)
    )
    untied = stop.covariance == "untied"
    projection = linear(width, narrow) + untied * width * narrow
    token = stop.mask_token * narrow
    heads = 1 + (params.objective.low_resolution != "none")
    head = heads * linear(narrow, outputs(params))
    whole = projection + token + learned_predictor * patches * narrow + layers(narrow, predictor.layers) + head
    tensors = (
        12 * (encoder.layers + predictor.layers) + 2 * (2 + 2) + 2 * heads
    )  # in all: layers, norms, patch projection, A and b
    tensors += encoder.class_token + learned_encoder + learned_predictor + untied + stop.mask_token
    target = 0 if params.objective.name == "mae" else trunk
    return Parameters(trunk, whole, target, projection, token, tensors)


def pixels(params: PretrainParams) -> int:
    """Numbers in one patch of the image."""
    return 3 * params.encoder.patch_size**2


def outputs(params: PretrainParams) -> int:
    """Numbers predicted of one patch: pixels with MAE, else features."""
    return pixels(params) if params.objective.name == "mae" else params.encoder.width


def layers(width: int, count: int) -> int:
    """Transformer layers of MLP ratio 4 and the norm behind them."""
    layer = linear(width, 3 * width) + linear(width, width) + linear(width, 4 * width) + linear(4 * width, width)
    return count * (layer + 2 * 2 * width) + 2 * width


def linear(inputs: int, outputs: int) -> int:
    """A matrix and its bias."""
    return inputs * outputs + outputs
