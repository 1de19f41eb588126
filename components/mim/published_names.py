"""An encoder under the names that other programs read."""

import copy
from typing import Any

from timm.models.beit import Beit
from torch import Tensor

from components.mim.encoder import Encoder
from components.mim.positions import learned_positions, sincos
from components.mim.timm_encoder import TimmEncoder

Described = tuple[str, dict[str, Any], dict[str, Tensor]]
"""For timm: an entry point, its arguments, and all tensors."""


def published(encoder: Encoder) -> dict[str, Tensor]:
    """Our tensors but positions under the names of I-JEPA, MAE and timm, which differ in the class token only."""
    named = {name: tensor for name, tensor in encoder.state_dict().items() if name not in ("positions", "class_token")}
    return named | ({"cls_token": encoder.class_token} if encoder.prefix else {})


def table(encoder: Encoder, h: int, w: int) -> Tensor:
    """Positions [1, h·w, D] of the patches, computed for exactly that grid, not resampled, where they are our closed form."""
    if encoder.config.positions == "learned":
        return learned_positions(encoder.positions, h, w)
    return sincos(h, w, encoder.config.width)[None]


def in_transformers(name: str, tensor: Tensor) -> dict[str, Tensor]:
    """One of our tensors in transformers' I-JEPA, where query, key and value are three."""
    if not name.startswith("blocks."):
        renamed = name.replace("patch_embed.proj.", "embeddings.patch_embeddings.projection.")
        return {renamed.replace("norm.", "layernorm."): tensor}
    _, layer, *parts, kind = name.split(".")
    prefix, inner = f"encoder.layer.{layer}", ".".join(parts)
    if inner == "attn.qkv":
        names = [f"{prefix}.attention.attention.{part}.{kind}" for part in ("query", "key", "value")]
        return dict(zip(names, tensor.chunk(3), strict=True))
    theirs = {
        "norm1": "layernorm_before",
        "norm2": "layernorm_after",
        "attn.proj": "attention.output.dense",
        "mlp.fc1": "intermediate.dense",
        "mlp.fc2": "output.dense",
    }
    return {f"{prefix}.{theirs[inner]}.{kind}": tensor}


def as_timm(encoder: Encoder, grid: tuple[int, int]) -> Described:
    """Our encoder as a Vision Transformer of timm for a patch grid."""
    shape = encoder.config
    arguments = {
        "patch_size": shape.patch_size, "embed_dim": shape.width, "depth": shape.layers, "num_heads": shape.heads,
        "class_token": shape.class_token, "no_embed_class": True, "fc_norm": False,
    }  # fmt: skip
    return "vit_base_patch16_224", arguments, published(encoder) | {"pos_embed": table(encoder, *grid)}


def of_timm(encoder: TimmEncoder, height: int, width: int) -> Described:
    """timm's own model for another image size."""
    model = copy.deepcopy(encoder.model)
    model.set_input_size((height, width))  # timm resamples tables of positions as it does on the fly
    fc_norm = "use_fc_norm" if isinstance(model, Beit) else "fc_norm"
    tensors = {name.replace("fc_norm.", "norm."): tensor for name, tensor in model.state_dict().items()}
    return encoder.config.model.split(".")[0], dict(encoder.config.arguments) | {fc_norm: False}, tensors
