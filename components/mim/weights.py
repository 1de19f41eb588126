"""Weights: a fresh model, and files that describe themselves."""

import json
from pathlib import Path
from typing import Any

from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from components.mim.encoder import Encoder, EncoderConfig, VisionEncoder
from components.mim.initialise import WeightInit, initialise
from components.mim.model import MaskedImageModel, Penalty
from components.mim.objectives import Loss
from components.mim.predictor import Predictor, PredictorConfig
from components.mim.timm_encoder import TimmConfig, TimmEncoder, untrained


def build(
    encoder: EncoderConfig | VisionEncoder,
    predictor: PredictorConfig,
    seed: int,
    weight_init: WeightInit,
    loss: Loss = "smooth_l1",
    penalty: Penalty = Penalty("none", 0.0),  # noqa: B008 - immutable
) -> MaskedImageModel:
    """A freshly initialised model. An encoder that is one already keeps its weights, and learns from there."""
    if isinstance(encoder, EncoderConfig):
        fresh = Encoder(encoder)
        initialise(fresh, seed, weight_init, "encoder.")
        return build(fresh, predictor, seed, weight_init, loss, penalty)
    head = Predictor(predictor)
    initialise(head, seed, weight_init, "predictor.")
    return MaskedImageModel(encoder, head, loss, penalty)


def save(path: Path, module: VisionEncoder | Predictor, about: dict[str, Any]) -> None:
    """Writes `module` as safetensors that describe themselves: metadata `model` is JSON of its `config` and of `about`.

    One key, because safetensors writes several in random order, and equal weights should be equal files.
    """
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in module.state_dict().items()}
    metadata = {"model": json.dumps({"config": module.config.as_dict(), "about": about}, sort_keys=True)}
    save_file(tensors, path, metadata=metadata)


def read_about(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """(config, about) of a file written by `save`. Raises ValueError for any other file."""
    try:
        with safe_open(path, "pt") as file:
            metadata = file.metadata() or {}
    except Exception as error:  # safetensors raises its own and OS errors alike
        raise ValueError(
            f"{str(path)!r} is not a readable safetensors file ({error}); make it with `dvc repro pretrain`"
        ) from error
    if "model" not in metadata:
        raise ValueError(f"{str(path)!r} holds no 'model' metadata; it must come from the pretrain stage")
    model = json.loads(metadata["model"])
    return model["config"], model["about"]


def load_encoder(path: Path) -> VisionEncoder:
    """The encoder in `path`, frozen and in eval mode. Every tensor must fit."""
    encoder = _blank(path)
    encoder.load_state_dict(_tensors(path), strict=True)
    return encoder.eval().requires_grad_(False)


def load_predictor(path: Path) -> Predictor:
    """The predictor in `path`, frozen and in eval mode. Every tensor must fit."""
    predictor = Predictor(PredictorConfig(**read_about(path)[0]))
    predictor.load_state_dict(_tensors(path), strict=True)
    return predictor.eval().requires_grad_(False)


def untrained_encoder(path: Path) -> VisionEncoder:
    """The encoder in `path` as it was before its first step, drawn again from the seed it records.

    For an imported one, what its architecture starts from.
    """
    about, encoder = read_about(path)[1], _blank(path)
    if isinstance(encoder, TimmEncoder):
        encoder = untrained(encoder.config, about["seed"])
    else:
        # As part of the model, since a draw depends on the tensor's name there.
        initialise(encoder, about["seed"], about["weight_init"], "encoder.")
    return encoder.eval().requires_grad_(False)


def _blank(path: Path) -> VisionEncoder:
    """An encoder of the architecture in `path`, without its weights. Raises ValueError for a file of another kind."""
    config = read_about(path)[0]
    if "encoder_width" in config:
        raise ValueError(
            f"{str(path)!r} holds a predictor; an encoder is needed here, such as models/encoder.safetensors"
        )
    return blank(config)


def blank(config: dict[str, Any]) -> VisionEncoder:
    """An encoder of the architecture that `VisionEncoder.config.as_dict()` gave, without weights that mean anything."""
    return TimmEncoder(TimmConfig(**config)) if "model" in config else Encoder(EncoderConfig(**config))


def _tensors(path: Path) -> dict[str, Tensor]:
    with safe_open(path, "pt") as file:
        return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a dict
