"""From the params to a model: fresh, or around an imported encoder."""

import os
import shutil
from pathlib import Path
from typing import Literal, NamedTuple

from components.mim import weights
from components.mim.checkpoints import Imported, Report, check_architecture, read_encoder
from components.mim.encoder import EncoderConfig
from components.mim.grid import patch_grid
from components.mim.model import MaskedImageModel, Penalty
from components.mim.predictor import PredictorConfig
from components.mim.timm_encoder import TimmEncoder
from components.pretrain.contract import PretrainParams


class Start(NamedTuple):
    """The model at its first step, and what was read from a file, if any."""

    model: MaskedImageModel
    report: Report | None


def build(params: PretrainParams, init: Path) -> Start:
    """The model at its first step; its encoder from the file `init` unless it starts from scratch.

    Raises ValueError for a file that is no encoder, or one of another architecture than the params say, and where it must be compiled
    and cannot be.
    """
    if params.scale.compile:
        _check_compiler(params.scale.device)
    imported = None if params.init.source == "scratch" else _imported(params, init)
    model = weights.build(
        imported.encoder if imported else encoder_config(params),
        predictor_config(params),
        params.seed,
        params.weight_init,
        params.objective.loss,
        Penalty(params.stop.penalty, params.stop.penalty_weight),
    )
    model.checkpointing(params.scale.activation_checkpointing)
    if params.scale.compile:
        model.compile_layers()
    return Start(model, imported.report if imported else None)


def encoder_config(params: PretrainParams) -> EncoderConfig:
    """The architecture that the params ask for."""
    return EncoderConfig(**params.encoder.model_dump())


def predictor_config(params: PretrainParams) -> PredictorConfig:
    """The predictor that the params ask for."""
    encoder, objective = params.encoder, params.objective
    return PredictorConfig(
        encoder_width=encoder.width,
        output_width=3 * encoder.patch_size**2 if objective.name == "mae" else encoder.width,
        mask_token=params.stop.mask_token,
        bias_on_noise=params.stop.bias_on_noise,
        covariance=params.stop.covariance,
        grid_side=patch_grid(encoder.image_size, encoder.patch_size).h,
        low_resolution=objective.low_resolution != "none",
        **params.predictor.model_dump(),
    )


def _check_compiler(device: Literal["cpu", "gpu"]) -> None:
    """torch.compile makes C++ for a CPU, and C around its kernels for a GPU; it would say so in the middle of the first step."""
    variable, usual = ("CXX", ["g++"]) if device == "cpu" else ("CC", ["gcc", "clang", "cc"])
    tried = [os.environ[variable]] if variable in os.environ else usual
    if not any(shutil.which(name) for name in tried):
        raise ValueError(
            f"scale.compile is true and this machine has no {' or '.join(tried)}, which torch.compile needs for a {device}; install one, "
            f"name another in the environment variable {variable}, or set scale.compile to false"
        )


def _imported(params: PretrainParams, init: Path) -> Imported:
    """The encoder in the file `init`, if it is what the params say."""
    expected = encoder_config(params)
    found = read_encoder(
        init, params.init.part, expected.image_size, expected.patch_size, expected.heads, params.init.model
    )
    check_architecture(found.encoder.config, expected)
    if isinstance(found.encoder, TimmEncoder):
        _check_tokens(found.encoder, expected)
    return found


def _check_tokens(encoder: TimmEncoder, expected: EncoderConfig) -> None:
    """The params are what is logged and compared, so they must tell the truth of a timm model as well."""
    class_token = encoder.prefix > 0
    if (expected.class_token, expected.positions) != (class_token, "learned"):
        raise ValueError(
            f"timm's {encoder.config.model!r} has {encoder.prefix or 'no'} prefix tokens and learned positions; set "
            f"pretrain.encoder.class_token to {str(class_token).lower()} and pretrain.encoder.positions to learned"
        )
