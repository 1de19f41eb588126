"""Encoders from the tensors of published files. Every tensor must fit, or the file is refused."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from timm.models import beit, vision_transformer
from timm.models.beit import Beit
from torch import Tensor

from components.mim import fitting
from components.mim.checkpoint_file import CheckpointFile
from components.mim.encoder import Encoder, EncoderConfig, VisionEncoder
from components.mim.fitting import Wanted
from components.mim.layouts import Weights
from components.mim.timm_encoder import TimmConfig, TimmEncoder, timm_config, untrained


class Converted(NamedTuple):
    """An encoder, the names of the file's tensors in it, and of those left aside."""

    encoder: VisionEncoder
    matched: list[str]
    ignored: list[str]


def plain(file: CheckpointFile, weights: Weights, wanted: Wanted) -> Converted:
    """Our own encoder from a plain ViT's `weights`; a class token's row of positions is added to the token.

    Positions that are our closed form need no table; others, such as MoCo v3's, which count rows first, are kept as learned.
    """
    tensors = weights.tensors
    width, layers = fitting.width_and_layers(file, tensors, wanted, needed=("patch_embed.proj.weight", "pos_embed"))
    table, prefix = tensors["pos_embed"], int("cls_token" in tensors)
    side = fitting.grid_side(file, table.shape[1] - prefix if table.ndim == 3 else 0, wanted)
    closed = fitting.is_closed_form(table[0, prefix:])
    config = EncoderConfig(
        **wanted._asdict(), width=width, layers=layers, class_token=bool(prefix), positions="sincos" if closed else "learned"
    )  # fmt: skip
    with torch.device("meta"):
        encoder = Encoder(config)
        expected = {
            name: tensor for name, tensor in encoder.state_dict().items() if name not in ("class_token", "positions")
        }
        expected["pos_embed"] = torch.empty(1, side * side + prefix, width)
        if prefix:
            expected["cls_token"] = torch.empty(1, 1, width)
    fitting.check(file, tensors, expected)
    ours = {name: _owned(tensor) for name, tensor in tensors.items() if name not in ("cls_token", "pos_embed")}
    if prefix:
        ours["class_token"] = _owned(tensors["cls_token"]) + _owned(table[:, :1])
    if not closed:
        ours["positions"] = _owned(table[:, prefix:])
    encoder.load_state_dict(ours, strict=True, assign=True)
    return Converted(encoder, list(tensors), weights.ignored)


def beit_like(file: CheckpointFile, weights: Weights, wanted: Wanted) -> Converted:
    """timm's Beit from `weights` of BEiT or data2vec vision, with a bias table per layer or a shared one."""
    tensors = dict(weights.tensors)
    width, layers = fitting.width_and_layers(
        file, tensors, wanted, needed=("patch_embed.proj.weight", "blocks.0.mlp.fc1.weight")
    )
    tables = [name for name in tensors if name.endswith("relative_position_bias_table")]
    for name in tables:
        heads = tensors[name].shape[-1]
        if heads != wanted.heads:
            raise ValueError(
                f"{str(file.path)!r} has {heads} heads, you asked for {wanted.heads}; set pretrain.encoder.heads to {heads}"
            )
        fitting.grid_side(file, fitting.patches_of_table(len(tensors[name])), wanted)
    if "norm.weight" not in tensors:  # after fine-tuning the last norm follows the pooling, under another name
        tensors = {name.replace("fc_norm.", "norm."): tensor for name, tensor in tensors.items()}
    arguments = {
        "img_size": wanted.image_size,
        "patch_size": wanted.patch_size,
        "embed_dim": width,
        "depth": layers,
        "num_heads": wanted.heads,
        "mlp_ratio": len(tensors["blocks.0.mlp.fc1.weight"]) / width,
        "qkv_bias": "blocks.0.attn.q_bias" in tensors,
        "init_values": (0.1 if layers <= 12 else 1e-5) if "blocks.0.gamma_1" in tensors else 0.0,  # BEiT's for B and L
        "use_abs_pos_emb": "pos_embed" in tensors,
        "use_rel_pos_bias": any(name.startswith("blocks.") for name in tables),
        "use_shared_rel_pos_bias": any(name.startswith("rel_pos_bias.") for name in tables),
    }
    config = timm_config("beit_base_patch16_224", arguments)
    return Converted(_filled(file, config, tensors, _blank(config)), list(weights.tensors), weights.ignored)


def of_timm(file: CheckpointFile, weights: Weights, image_size: int, model: str) -> Converted:
    """timm's `model` for `image_size` from a file of weights for it; timm's own filter renames what needs it."""
    config = timm_config(model, {"img_size": image_size})
    blank = _blank(config)
    _check_sizes(file, weights.tensors, blank)
    filtered = _filtered(file, weights.tensors, blank.model)
    norm, other = ("norm.", "fc_norm.") if "norm.weight" in blank.model.state_dict() else ("fc_norm.", "norm.")
    if f"{norm}weight" not in filtered:
        filtered = {
            norm + name.removeprefix(other) if name.startswith(other) else name: filtered[name] for name in filtered
        }
    heads = ("head.", "head_dist.", "attn_pool.", other)
    kept = {name: tensor for name, tensor in filtered.items() if not name.startswith(heads)}
    ignored = [name for name in filtered if name not in kept]
    return Converted(_filled(file, config, kept, blank), list(kept), ignored + weights.ignored)


def _check_sizes(file: CheckpointFile, tensors: Mapping[str, Tensor], blank: TimmEncoder) -> None:
    """Refuses what timm's filter would resample without a word: positions of another image size, patches of another size."""
    config, prefix = blank.config, blank.prefix
    wanted = Wanted(config.image_size, config.patch_size, config.heads)
    projection = tensors.get("patch_embed.proj.weight")
    if projection is not None and projection.ndim == 4:
        fitting.check_patch_size(file, projection, config.patch_size)
    for name, tensor in tensors.items():
        if name.endswith("relative_position_bias_table"):
            fitting.grid_side(file, fitting.patches_of_table(len(tensor)), wanted)
        elif name == "pos_embed" and tensor.ndim == 3:
            # The class and register tokens may have rows of their own, or not.
            counts = [tensor.shape[1] - rows for rows in (0, 1, prefix)]
            if (config.image_size // config.patch_size) ** 2 not in counts:
                fitting.grid_side(file, next((count for count in counts if _square(count)), counts[0]), wanted)


def _filtered(file: CheckpointFile, tensors: Mapping[str, Tensor], model: Any) -> dict[str, Tensor]:
    try:
        if isinstance(model, Beit):
            return beit.checkpoint_filter_fn(dict(tensors), model)  # type: ignore[no-any-return]
        # DeiT III's files name the layer scale differently.
        return vision_transformer.checkpoint_filter_fn(dict(tensors), model, adapt_layer_scale=True)  # type: ignore[no-any-return]
    except (AttributeError, IndexError, KeyError, RuntimeError, TypeError, ValueError) as error:
        raise ValueError(
            f"{str(file.path)!r} holds no weights that timm can read into its {type(model).__name__} ({error}); "
            "set pretrain.init.model to the name of the model that the file is of"
        ) from error


def _blank(config: TimmConfig) -> TimmEncoder:
    """The architecture without memory for its weights."""
    with torch.device("meta"):
        return TimmEncoder(config)


def _filled(file: CheckpointFile, config: TimmConfig, tensors: Mapping[str, Tensor], blank: TimmEncoder) -> TimmEncoder:
    fitting.check(file, tensors, blank.model.state_dict())
    encoder = untrained(config, seed=0)
    encoder.model.load_state_dict({name: _owned(tensor) for name, tensor in tensors.items()}, strict=True)
    return encoder


def _owned(tensor: Tensor) -> Tensor:
    """A float32 copy that outlives the mapped file."""
    return tensor.detach().to(torch.float32, copy=True).contiguous()


def _square(count: int) -> bool:
    return count > 0 and int(count**0.5) ** 2 == count
