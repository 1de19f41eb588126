"""The one place where first weights are drawn. `pretrain.init.path` names this file when a run starts from scratch."""

import math
from typing import Literal

import torch
from torch import Tensor, nn

from components.mim import keys

WeightInit = Literal["fixed", "fan_in", "xavier"]


def initialise(module: nn.Module, seed: int, weight_init: WeightInit, prefix: str = "") -> None:
    """Draws every weight of `module`; nothing else assigns any. A tensor's draw depends on `prefix`, its name and the seed.

    | tensor                       | `fixed` (I-JEPA, StoP) | `fan_in`                               | `xavier` (MAE)          |
    |------------------------------|------------------------|----------------------------------------|-------------------------|
    | Linear weight                | normal, std 0.02       | std 0.55/√fan_in: as ViT-B's 768       | uniform, Glorot & Bengio |
    | patch projection             | normal, std 0.02       | std 1/√fan_in: as loud as positions    | the same, as a matrix   |
    | A, an untied noise matrix    | normal, std 0.02       | std 1/√fan_in                          | uniform, Glorot & Bengio |
    | m̃, class token, positions    | normal, std 0.02       | normal, std 0.02                       | normal, std 0.02        |
    | biases                       | 0                      | 0                                      | 0                       |
    | LayerNorm                    | weight 1, bias 0       | weight 1, bias 0                       | weight 1, bias 0        |

    Normals are cut at ±2. `fixed` starves narrow models: at width 192 a layer passes on half of what it does at 768, and
    A·n is a tenth of ψ where the paper has a fifth, so that targets turn into positions.
    """
    for name, parameter in module.named_parameters():
        generator = torch.Generator().manual_seed(keys.key(seed, "init", prefix + name))
        with torch.no_grad():
            if parameter.ndim == 1:
                parameter.fill_(1.0 if "norm" in name and name.endswith("weight") else 0.0)
            elif name.endswith(("_token", "positions")):
                parameter.copy_(_truncated_normal(parameter.shape, 0.02, generator))
            elif weight_init == "xavier":
                parameter.copy_(_glorot(parameter.shape, generator))
            else:
                std = 0.02 if weight_init == "fixed" else _fan_in_std(name, parameter)
                parameter.copy_(_truncated_normal(parameter.shape, std, generator))


def _fan_in_std(name: str, parameter: Tensor) -> float:
    beside_positions = name.endswith(("patch_embed.proj.weight", "embed.weight"))
    return (1.0 if beside_positions else 0.55) / math.sqrt(parameter[0].numel())


def _truncated_normal(shape: torch.Size, std: float, generator: torch.Generator) -> Tensor:
    return nn.init.trunc_normal_(torch.empty(shape), std=std, a=-2.0, b=2.0, generator=generator)


def _glorot(shape: torch.Size, generator: torch.Generator) -> Tensor:
    matrix = torch.empty(shape[0], math.prod(shape[1:]))
    return nn.init.xavier_uniform_(matrix, generator=generator).view(shape)
