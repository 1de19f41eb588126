"""The Vision Transformer encoder (context and target): patches in, one token per patch out, no class token."""

from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

from timm.layers import PatchEmbed
from timm.models.vision_transformer import Block
from torch import Tensor, nn

from components.mim.positions import sincos


@dataclass(frozen=True, kw_only=True)
class EncoderConfig:
    """Architecture of an encoder, stored in its file. `image_size` is what it was pretrained at; it accepts any multiple of
    the patch size."""

    image_size: int
    patch_size: int
    width: int
    layers: int
    heads: int

    def as_dict(self) -> dict[str, Any]:
        """The fields by name."""
        return asdict(self)


def layer_norm(width: int) -> nn.LayerNorm:
    """LayerNorm with the reference's eps."""
    return nn.LayerNorm(width, eps=1e-6)


def transformer_layers(width: int, heads: int, layers: int) -> nn.ModuleList:
    """`layers` pre-norm layers: qkv bias, GELU, MLP ratio 4."""
    return nn.ModuleList(
        Block(width, heads, mlp_ratio=4.0, qkv_bias=True, norm_layer=partial(nn.LayerNorm, eps=1e-6))
        for _ in range(layers)
    )


def gather(tokens_BND: Tensor, indices_BK: Tensor) -> Tensor:
    """The tokens [B, K, D] at `indices_BK`."""
    return tokens_BND.gather(1, indices_BK.unsqueeze(-1).expand(-1, -1, tokens_BND.shape[-1]))


class Encoder(nn.Module):
    """ViT on images [B, C, H, W] with sin-cos positions in closed form for any grid."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.config = config
        self.patch_embed = PatchEmbed(
            img_size=None, patch_size=config.patch_size, in_chans=3, embed_dim=config.width, strict_img_size=False
        )
        self.blocks = transformer_layers(config.width, config.heads, config.layers)
        self.norm = layer_norm(config.width)

    def grid(self, height: int, width: int) -> tuple[int, int]:
        """The patch grid (h, w) of an image. Raises ValueError unless the patch size divides both sides."""
        size = self.config.patch_size
        if height % size or width % size:
            raise ValueError(f"image is {height}×{width} pixels; both sides must be multiples of the patch size {size}")
        return height // size, width // size

    def embed(self, images_BCHW: Tensor, indices_BK: Tensor | None = None) -> Tensor:
        """Patch projection plus position: [B, N, D], or [B, K, D] at `indices_BK`."""
        h, w = self.grid(*images_BCHW.shape[-2:])
        tokens: Tensor = self.patch_embed(images_BCHW)
        tokens = tokens + sincos(h, w, self.config.width).to(tokens)
        return tokens if indices_BK is None else gather(tokens, indices_BK)

    def forward(self, images_BCHW: Tensor, indices_BK: Tensor | None = None) -> Tensor:
        """Normed tokens of all patches [B, N, D], or of the visible ones only [B, K, D]."""
        tokens = self.embed(images_BCHW, indices_BK)
        for layer in self.blocks:
            tokens = layer(tokens)
        return self.norm(tokens)  # type: ignore[no-any-return]

    def layer_tokens(self, images_BCHW: Tensor, last: int) -> list[Tensor]:
        """Outputs of the `last` layers, earliest first, the final norm applied to each: `last` times [B, N, D]."""
        if not 1 <= last <= len(self.blocks):
            raise ValueError(f"last is {last}; this encoder has {len(self.blocks)} layers")
        tokens, outputs = self.embed(images_BCHW), []
        for layer in self.blocks:
            tokens = layer(tokens)
            outputs.append(tokens)
        return [self.norm(output) for output in outputs[-last:]]
