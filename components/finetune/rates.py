"""A learning rate for each layer: layer-wise decay as BEiT and MAE have it.

With L blocks, layer 0 is all that makes tokens (patch projection, positions, class token, position biases that all blocks share), layers
1 … L are the blocks, and layer L+1 is the final norm and the head. Layer i learns with rate · decay^(L+1-i). The factor goes into the rate
of each AdamW group itself: MAE's key `lr_scale` is read by its own scheduler alone, and under any other it does nothing (timm PR 2532).
"""

import re
from typing import Any

import torch
from torch import nn

from components.finetune.classifier import Classifier
from components.mim.timm_encoder import TimmEncoder

FIRST = re.compile(r"^(cls_token|class_token|reg_token|pos_embed|positions|patch_embed\.|norm_pre\.|rel_pos_bias\.)")
BLOCK = re.compile(r"^blocks\.(\d+)\.")
LAST = re.compile(r"^(norm|fc_norm)\.")
SCALE = "scale"


def layer(name: str, layers: int) -> int:
    """The layer, 0 … L+1, of a parameter of `Classifier`. Raises ValueError for one that belongs to none."""
    if not name.startswith("encoder."):
        return layers + 1
    inner = name.removeprefix("encoder.").removeprefix("model.")  # timm's model lies one deeper
    if FIRST.match(inner):
        return 0
    if found := BLOCK.match(inner):
        return int(found[1]) + 1
    if LAST.match(inner):
        return layers + 1
    raise ValueError(
        f"the encoder's parameter {inner!r} belongs to no layer that layer_decay knows; report the encoder it is from"
    )


def optimizer(model: Classifier, weight_decay: float, layer_decay: float) -> torch.optim.AdamW:
    """AdamW over all that trains, a group for each layer with weight decay and one without; `set_rate` gives them their rates.

    Vectors have no weight decay, nor positions, class tokens and what else timm exempts in its models.
    """
    depth, exempt = model.encoder.config.layers, _exempt(model)
    groups: dict[tuple[int, bool], dict[str, Any]] = {}
    for name, parameter in model.trainable().items():
        number, decays = layer(name, depth), parameter.ndim > 1 and name not in exempt
        group = {
            "params": [],
            "weight_decay": weight_decay if decays else 0.0,
            SCALE: layer_decay ** (depth + 1 - number),
        }
        groups.setdefault((number, decays), group)["params"].append(parameter)
    return torch.optim.AdamW([groups[key] for key in sorted(groups)], lr=0.0, betas=(0.9, 0.999))


def set_rate(adamw: torch.optim.Optimizer, rate: float) -> None:
    """Sets the rate of every group for the next step; `rate` is the head's."""
    for group in adamw.param_groups:
        group["lr"] = rate * group[SCALE]


def _exempt(model: Classifier) -> set[str]:
    """Names of the matrices that no weight decay shrinks."""
    encoder = model.encoder
    if isinstance(encoder, TimmEncoder):
        return {f"encoder.model.{name}" for name in encoder.model.no_weight_decay()}
    return {f"encoder.{name}" for name, _ in nn.Module.named_parameters(encoder, recurse=False)}
