"""The predictor: from context tokens and stochastic positions to the target (Algorithm 1, lines 9–13)."""

from dataclasses import asdict, dataclass
from functools import partial
from itertools import chain
from typing import Any, Literal

import torch
from timm.models.vision_transformer import Block
from torch import Tensor, nn
from torch.nn import functional

from components.mim.encoder import LayerStack, layer_norm, transformer_layers
from components.mim.positions import Covariance, learned_positions, sincos


@dataclass(frozen=True, kw_only=True)
class PredictorConfig:
    """Architecture of a predictor and the form of its tokens.

    `mask_token` adds the learned m̃ (the paper); `bias_on_noise` sends the noise through A *and* b (the released code, which
    has no live m̃). `grid_side` is the side of the grid that learned positions are a table for. `output_width` is that of
    one target: D for features, p·p·3 for pixels.
    """

    encoder_width: int
    output_width: int
    width: int
    layers: int
    heads: int
    mask_token: bool
    bias_on_noise: bool
    covariance: Covariance = "learned"
    positions: Literal["sincos", "learned"] = "sincos"
    grid_side: int = 0
    passes: Literal["block", "joint"] = "block"
    low_resolution: bool = False

    def as_dict(self) -> dict[str, Any]:
        """The fields by name."""
        return asdict(self)


class LastLayer(Block):  # type: ignore[misc]
    """A layer that is asked for some of its tokens. A module of its own, so that shards are gathered and code compiled around it."""

    def forward(self, tokens_BNP: Tensor, start: int = 0) -> Tensor:
        """As `queried`."""
        return queried(self, start, tokens_BNP)


class Predictor(LayerStack):
    """A narrow ViT over context and masked tokens. `embed` is A and b: context features and noise pass through the same A."""

    def __init__(self, config: PredictorConfig) -> None:
        super().__init__()
        self.config = config
        self.embed = nn.Linear(config.encoder_width, config.width)
        if config.covariance == "untied":
            self.noise_embed = nn.Linear(config.encoder_width, config.width, bias=False)
        if config.mask_token:
            self.mask_token = nn.Parameter(torch.zeros(1, 1, config.width))
        if config.positions == "learned":
            self.positions = nn.Parameter(torch.zeros(1, config.grid_side**2, config.width))
        self.blocks = transformer_layers(config.width, config.heads, config.layers, last=LastLayer)
        self.norm = layer_norm(config.width)
        self.head = nn.Linear(config.width, config.output_width)
        if config.low_resolution:
            self.low_head = nn.Linear(config.width, config.output_width)

    def layer_modules(self) -> list[nn.Module]:
        """All layers."""
        return list(self.blocks)

    def position_table(self, grid: tuple[int, int]) -> Tensor:
        """ψ of every patch: [N, P]."""
        if self.config.positions == "learned":
            return learned_positions(self.positions, *grid)[0]
        return sincos(*grid, self.config.width, self.embed.weight.device)

    def stray(self, noise: Tensor) -> Tensor:
        """What noise moves a token by [B, T, P]: A·n; N·n when untied; n itself when the covariance is fixed."""
        if self.config.covariance == "fixed":
            return noise
        return functional.linear(noise, (self.noise_embed if self.config.covariance == "untied" else self.embed).weight)

    def masked_tokens(self, positions_BTP: Tensor, noise: Tensor | None) -> Tensor:
        """m = ψ + A·n + m̃ [B, T, P]. Without noise the prediction is deterministic: m = ψ + m̃."""
        tokens = positions_BTP
        if noise is not None:
            tokens = tokens + self.stray(noise)
        if self.config.bias_on_noise:
            tokens = tokens + self.embed.bias
        if self.config.mask_token:
            tokens = tokens + self.mask_token
        return tokens

    def context_tokens(self, encoded: Tensor, positions_BKP: Tensor) -> Tensor:
        """c = ψ + A·s + b [B, C+K, P]; the C prefix tokens of the encoder have no position."""
        prefix = encoded.shape[1] - positions_BKP.shape[1]
        return self.embed(encoded) + functional.pad(positions_BKP, (0, 0, prefix, 0))  # type: ignore[no-any-return]

    def forward(self, context: Tensor, masked_BTP: Tensor) -> Tensor:
        """The normed states [B, T, P] of the masked tokens, which `head` turns into predictions."""
        tokens, start = torch.cat([context, masked_BTP.to(context.dtype)], dim=1), context.shape[1]
        # Nothing reads the context after the last layer, so it is not computed there: half of that layer's work.
        last = partial(self.blocks[-1], start=start)
        return self.norm(self.through(chain(self.blocks[:-1], [last]), tokens))  # type: ignore[no-any-return]


def queried(layer: Block, start: int, tokens_BNP: Tensor) -> Tensor:
    """`layer` at the tokens from `start` on, [B, N-start, P]; the ones before are keys and values only."""
    attention, normed, wanted = layer.attn, layer.norm1(tokens_BNP), tokens_BNP[:, start:]
    width, qkv = tokens_BNP.shape[-1], attention.qkv

    def heads(tokens: Tensor, rows: slice) -> Tensor:
        projected = functional.linear(tokens, qkv.weight[rows], qkv.bias[rows])
        split = projected.view(*projected.shape[:2], -1, attention.num_heads, attention.head_dim)
        return split.permute(2, 0, 3, 1, 4)

    (query,), (key, value) = heads(normed[:, start:], slice(width)), heads(normed, slice(width, None))
    seen = functional.scaled_dot_product_attention(query, key, value)
    wanted = wanted + attention.proj(seen.transpose(1, 2).flatten(2))
    return wanted + layer.mlp(layer.norm2(wanted))  # type: ignore[no-any-return]
