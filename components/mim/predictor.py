"""The predictor: from context tokens and stochastic positions to the target's features (Algorithm 1, lines 9–13)."""

from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from components.mim.encoder import gather, layer_norm, transformer_layers
from components.mim.positions import sincos


@dataclass(frozen=True, kw_only=True)
class PredictorConfig:
    """Architecture of a predictor and the form of its masked tokens.

    `mask_token` adds the learned m̃ (the paper); `bias_on_noise` sends the noise through A *and* b (the released code, which
    has no live m̃).
    """

    encoder_width: int
    width: int
    layers: int
    heads: int
    mask_token: bool
    bias_on_noise: bool

    def as_dict(self) -> dict[str, Any]:
        """The fields by name."""
        return asdict(self)


class Predictor(nn.Module):
    """A narrow ViT over context and masked tokens. `embed` is A and b: context features and noise pass through the same A."""

    def __init__(self, config: PredictorConfig) -> None:
        super().__init__()
        self.config = config
        self.embed = nn.Linear(config.encoder_width, config.width)
        if config.mask_token:
            self.mask_token = nn.Parameter(torch.empty(1, 1, config.width))
        self.blocks = transformer_layers(config.width, config.heads, config.layers)
        self.norm = layer_norm(config.width)
        self.head = nn.Linear(config.width, config.encoder_width)

    def masked_tokens(self, positions_BTP: Tensor, noise_BTD: Tensor | None) -> Tensor:
        """m = ψ + A·n + m̃ [B, T, P]. Without noise the prediction is deterministic: m = ψ + m̃."""
        tokens = positions_BTP
        if noise_BTD is not None:
            tokens = tokens + functional.linear(noise_BTD, self.embed.weight)
        if self.config.bias_on_noise:
            tokens = tokens + self.embed.bias
        if self.config.mask_token:
            tokens = tokens + self.mask_token
        return tokens

    def forward(
        self,
        context_BKD: Tensor,
        context_BK: Tensor,
        target_BT: Tensor,
        grid: tuple[int, int],
        noise_BTD: Tensor | None,
    ) -> Tensor:
        """Predicted features [B, T, D] of the patches `target_BT`, from the context tokens at `context_BK`."""
        positions = sincos(*grid, self.config.width).to(context_BKD).expand(len(context_BKD), -1, -1)
        context = self.embed(context_BKD) + gather(positions, context_BK)
        masked = self.masked_tokens(gather(positions, target_BT), noise_BTD)
        tokens = torch.cat([context, masked.to(context.dtype)], dim=1)
        for layer in self.blocks:
            tokens = layer(tokens)
        return self.head(self.norm(tokens[:, context.shape[1] :]))  # type: ignore[no-any-return]
