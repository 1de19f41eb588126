"""timm's Beit (BEiT, data2vec vision) on any patch grid and any visible patches: attention with relative position biases.

One learned table per layer, or one that all layers share, holds a bias for each offset between two patches and three more:
class token to patch, patch to class token, class token to itself. R rows are (2h-1)(2w-1) + 3 of them. C is 1.
"""

from collections.abc import Iterator
from functools import lru_cache, partial
from typing import Any

import torch
from timm.layers import resample_abs_pos_embed, resize_rel_pos_bias_table
from timm.models.beit import gen_relative_position_index
from torch import Tensor
from torch.nn import functional

from components.mim.encoder import Layer

Grid = tuple[int, int]


def embed(model: Any, images_BCHW: Tensor, grid: Grid) -> Tensor:
    """Class token and patch projections, with absolute positions where the model has them: [B, 1+N, D]."""
    patches = model.patch_embed.norm(model.patch_embed.proj(images_BCHW).flatten(2).transpose(1, 2))
    tokens = torch.cat([model.cls_token.expand(len(patches), -1, -1).to(patches.dtype), patches], dim=1)
    if model.pos_embed is not None:
        native = list(model.patch_embed.grid_size)
        tokens = tokens + resample_abs_pos_embed(model.pos_embed, list(grid), old_size=native, num_prefix_tokens=1)
    dropped: Tensor = model.pos_drop(tokens)
    return dropped


def layers(model: Any, grid: Grid, indices_BK: Tensor | None) -> Iterator[Layer]:
    """Each layer as a function of its tokens [B, 1+N, D], or [B, 1+K, D] when only `indices_BK` are visible."""
    native: Grid = model.patch_embed.grid_size
    offsets = _offsets(grid, indices_BK)
    shared = _bias(model.rel_pos_bias, native, grid, offsets)
    for block in model.blocks:
        yield partial(_layer, block, native, grid, offsets, shared)


def _layer(block: Any, native: Grid, grid: Grid, offsets_Bnn: Tensor, shared: Tensor | None, tokens: Tensor) -> Tensor:
    own = _bias(block.attn, native, grid, offsets_Bnn)
    bias = own + shared if own is not None and shared is not None else own if own is not None else shared
    attended = _attention(block.attn, block.norm1(tokens), bias)
    if block.gamma_1 is not None:
        attended = block.gamma_1 * attended
    tokens = tokens + block.drop_path1(attended)
    fed = block.mlp(block.norm2(tokens))
    if block.gamma_2 is not None:
        fed = block.gamma_2 * fed
    return tokens + block.drop_path2(fed)  # type: ignore[no-any-return]


def _attention(attention: Any, tokens_BnD: Tensor, bias_Bhnn: Tensor | None) -> Tensor:
    """timm's attention, which takes only its own table, with a bias from outside."""
    parts = None
    if attention.q_bias is not None:
        parts = torch.cat([attention.q_bias, torch.zeros_like(attention.v_bias), attention.v_bias])
    qkv = functional.linear(tokens_BnD, attention.qkv.weight, parts)
    q, k, v = qkv.view(*qkv.shape[:2], 3, attention.num_heads, -1).permute(2, 0, 3, 1, 4)
    mask = None if bias_Bhnn is None else bias_Bhnn.to(q.dtype)
    dropout = attention.attn_drop.p if attention.training else 0.0
    mixed = functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=dropout)
    projected: Tensor = attention.proj_drop(attention.proj(mixed.transpose(1, 2).flatten(2)))
    return projected


def _offsets(grid: Grid, indices_BK: Tensor | None) -> Tensor:
    """The table row for each pair of visible tokens: [1, 1+N, 1+N] or [B, 1+K, 1+K]."""
    rows = _rows(grid)
    if indices_BK is None:
        return rows[None]
    rows = rows.to(indices_BK.device)
    seen = torch.cat([torch.zeros_like(indices_BK[:, :1]), indices_BK + 1], dim=1)
    return rows[seen[:, :, None], seen[:, None, :]]


def _bias(holder: Any, native: Grid, grid: Grid, offsets_Bnn: Tensor) -> Tensor | None:
    """The bias [B, heads, n, n] from the table of `holder`; None where it has none."""
    table = None if holder is None else holder.relative_position_bias_table
    if table is None:
        return None
    resized = table if grid == native else _resized(table, native, grid)
    return resized[offsets_Bnn.to(table.device)].permute(0, 3, 1, 2).contiguous()


def _resized(table_Rh: Tensor, native: Grid, grid: Grid) -> Tensor:
    """The table for another grid, by timm's rule written as two matrices, so that it runs on any device with gradients."""
    (height, width), heads = native, table_Rh.shape[1]
    vertical, horizontal = (_axis(*sides).to(table_Rh) for sides in zip(native, grid, strict=True))
    old = table_Rh[:-3].view(2 * height - 1, 2 * width - 1, heads)
    new = torch.einsum("ya,xb,abh->yxh", vertical, horizontal, old)
    return torch.cat([new.flatten(0, 1), table_Rh[-3:]])


@lru_cache(maxsize=64)
@torch.inference_mode(False)  # kept for training, too, whoever asks first
def _axis(old: int, new: int) -> Tensor:
    """timm's interpolation of offsets along one side, [2·new-1, 2·old-1]: what it makes of each unit vector."""
    span, other = 2 * old - 1, old + 1  # another size across, since timm leaves a table of equal size untouched
    units = torch.eye(span)[:, None, :].expand(-1, span, -1).flatten(0, 1)
    shape = ((2 * new - 1) * (2 * other - 1) + 3, span)
    table = torch.cat([units, torch.zeros(3, span)])
    resized: Tensor = resize_rel_pos_bias_table(table, (new, other), shape, old_window_size=(old, old))
    return resized[:-3].view(2 * new - 1, 2 * other - 1, span)[:, 0]


@lru_cache(maxsize=32)
@torch.inference_mode(False)
def _rows(grid: Grid) -> Tensor:
    rows: Tensor = gen_relative_position_index(grid)
    return rows
