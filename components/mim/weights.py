"""Weights: the one initialisation, and files that describe themselves."""

import json
import math
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from components.mim import keys
from components.mim.encoder import Encoder, EncoderConfig
from components.mim.model import MaskedImageModel
from components.mim.predictor import Predictor, PredictorConfig

WeightInit = Literal["fixed", "fan_in"]


def initialise(module: nn.Module, seed: int, weight_init: WeightInit) -> None:
    """Draws every weight of `module`; nothing else assigns any.

    | tensor                    | `fixed` (the references) | `fan_in`                                              |
    |---------------------------|--------------------------|-------------------------------------------------------|
    | Linear weight             | normal, std 0.02         | normal, std 0.55/√fan_in: the same at ViT-B's 768     |
    | patch projection, A       | normal, std 0.02         | normal, std 1/√fan_in: content as loud as positions   |
    | m̃                         | normal, std 0.02         | normal, std 0.02                                      |
    | biases                    | 0                        | 0                                                     |
    | LayerNorm                 | weight 1, bias 0         | weight 1, bias 0                                      |

    Normals are cut at ±2. `fixed` starves narrow models: at width 192 a layer passes on half of what it does at 768, and
    A·n is a tenth of ψ where the paper has a fifth, so that targets turn into positions.
    """
    for name, parameter in module.named_parameters():
        generator = torch.Generator().manual_seed(keys.key(seed, "init", name))
        with torch.no_grad():
            if parameter.ndim == 1:
                parameter.fill_(1.0 if "norm" in name and name.endswith("weight") else 0.0)
            else:
                std = 0.02 if weight_init == "fixed" else _fan_in_std(name, parameter)
                parameter.copy_(_truncated_normal(parameter.shape, std, generator))


def _fan_in_std(name: str, parameter: Tensor) -> float:
    if name.endswith("mask_token"):
        return 0.02
    into_the_sum_with_positions = name.endswith(("patch_embed.proj.weight", "predictor.embed.weight"))
    return (1.0 if into_the_sum_with_positions else 0.55) / math.sqrt(parameter[0].numel())


def _truncated_normal(shape: torch.Size, std: float, generator: torch.Generator) -> Tensor:
    return nn.init.trunc_normal_(torch.empty(shape), std=std, a=-2.0, b=2.0, generator=generator)


def build(encoder: EncoderConfig, predictor: PredictorConfig, seed: int, weight_init: WeightInit) -> MaskedImageModel:
    """A freshly initialised model."""
    model = MaskedImageModel(Encoder(encoder), Predictor(predictor))
    initialise(model, seed, weight_init)
    return model


def save(path: Path, module: Encoder | Predictor, about: dict[str, Any]) -> None:
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


def load_encoder(path: Path) -> Encoder:
    """The encoder in `path`, frozen and in eval mode. Every tensor must fit."""
    encoder = Encoder(EncoderConfig(**read_about(path)[0]))
    encoder.load_state_dict(_tensors(path), strict=True)
    return encoder.eval().requires_grad_(False)


def load_predictor(path: Path) -> Predictor:
    """The predictor in `path`, frozen and in eval mode. Every tensor must fit."""
    predictor = Predictor(PredictorConfig(**read_about(path)[0]))
    predictor.load_state_dict(_tensors(path), strict=True)
    return predictor.eval().requires_grad_(False)


def untrained_encoder(path: Path) -> Encoder:
    """The encoder in `path` as it was before its first step, drawn again from the seed it records."""
    config, about = read_about(path)
    predictor = PredictorConfig(
        encoder_width=config["width"], width=4, layers=1, heads=1, mask_token=False, bias_on_noise=False
    )
    model = build(EncoderConfig(**config), predictor, about["seed"], about["weight_init"])
    return model.encoder.eval().requires_grad_(False)


def _tensors(path: Path) -> dict[str, Tensor]:
    with safe_open(path, "pt") as file:
        return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a dict
