"""The Vision Transformer encoder (context and target): patches in, one token per patch out."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, Literal

import torch
from timm.layers import PatchEmbed
from timm.models.vision_transformer import Block
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from components.mim.positions import learned_positions, sincos

Layer = Callable[[Tensor], Tensor]


@dataclass(frozen=True, kw_only=True)
class EncoderConfig:
    """Architecture of an encoder, stored in its file. `image_size` is what it was pretrained at; it accepts any multiple of
    the patch size. Learned positions are a table for that size, resampled for other grids."""

    image_size: int
    patch_size: int
    width: int
    layers: int
    heads: int
    class_token: bool = False
    positions: Literal["sincos", "learned"] = "sincos"

    def as_dict(self) -> dict[str, Any]:
        """The fields by name."""
        return asdict(self)


def layer_norm(width: int) -> nn.LayerNorm:
    """LayerNorm with the reference's eps."""
    return nn.LayerNorm(width, eps=1e-6)


def transformer_layers(width: int, heads: int, layers: int, last: type[Block] = Block) -> nn.ModuleList:
    """`layers` pre-norm layers, the last one a `last`: qkv bias, GELU, MLP ratio 4, attention by `scaled_dot_product_attention`."""
    return nn.ModuleList(
        kind(width, heads, mlp_ratio=4.0, qkv_bias=True, norm_layer=partial(nn.LayerNorm, eps=1e-6))
        for kind in [*[Block] * (layers - 1), last]
    )


def compile_each(layers: Iterable[nn.Module], backend: str = "inductor") -> None:
    """Has torch.compile make the code of each layer, which equal layers share. Done at the first call.

    Sizes are symbols: the number of tokens is another in each step, and no step must wait for a compiler again.
    """
    for layer in layers:
        layer.compile(dynamic=True, backend=backend)


def gather(tokens_BND: Tensor, indices_BK: Tensor) -> Tensor:
    """The tokens [B, K, D] at `indices_BK`."""
    return tokens_BND.gather(1, indices_BK.unsqueeze(-1).expand(-1, -1, tokens_BND.shape[-1]))


class LayerStack(nn.Module):
    """Runs transformer layers; with `checkpointing` a layer's activations are computed again in the backward pass."""

    checkpointing, compiled = False, False

    def layer_modules(self) -> list[nn.Module]:
        """The layers, each called as a module, so that it can be sharded or compiled for itself; none where they are not."""
        raise NotImplementedError

    def compile_layers(self) -> None:
        """Compiles each layer in place, which changes no name of a weight. Raises ValueError where layers are no modules."""
        if not self.layer_modules():
            raise ValueError(
                "scale.compile is true, but the layers of this encoder are not called as modules (Beit's run piece by piece) and cannot be "
                "compiled; set scale.compile to false"
            )
        compile_each(self.layer_modules())
        self.compiled = True

    def through(self, layers: Iterator[Layer] | nn.ModuleList, tokens_BND: Tensor) -> Tensor:
        """The last of `each`."""
        return deque(self.each(layers, tokens_BND), maxlen=1).pop()

    def each(self, layers: Iterator[Layer] | nn.ModuleList, tokens_BND: Tensor) -> Iterator[Tensor]:
        """The tokens after each layer."""
        for layer in layers:
            if self.checkpointing and torch.is_grad_enabled():
                tokens_BND = checkpoint(layer, tokens_BND, use_reentrant=False)
            else:
                tokens_BND = layer(tokens_BND)
            yield tokens_BND


class VisionEncoder(LayerStack):
    """What every encoder here can do, our own and those of timm. C prefix tokens (class, registers) stand before the patches."""

    config: Any
    """`image_size`, `patch_size`, `width`, `layers`, `heads` and `as_dict()`."""
    prefix: int
    """C, the number of prefix tokens."""
    has_class_token: bool
    """Whether the first prefix token is a class token; the others are registers."""

    def embed(self, images_BCHW: Tensor, indices_BK: Tensor | None = None) -> Tensor:
        """Prefix tokens and patch projections with their positions: [B, C+N, D], or [B, C+K, D] at `indices_BK`."""
        raise NotImplementedError

    def stack(self, grid: tuple[int, int], indices_BK: Tensor | None) -> Iterator[Layer] | nn.ModuleList:
        """The layers, made ready for the visible patches of a grid."""
        raise NotImplementedError

    def normed(self, tokens_BND: Tensor) -> Tensor:
        """The final norm."""
        raise NotImplementedError

    def grid(self, height: int, width: int) -> tuple[int, int]:
        """The patch grid (h, w) of an image. Raises ValueError unless the patch size divides both sides."""
        size = self.config.patch_size
        if height % size or width % size:
            raise ValueError(f"image is {height}×{width} pixels; both sides must be multiples of the patch size {size}")
        return height // size, width // size

    def tokens(self, images_BCHW: Tensor, indices_BK: Tensor | None = None) -> Tensor:
        """Normed prefix and patch tokens: [B, C+N, D], or [B, C+K, D] when only `indices_BK` are visible."""
        layers = self.stack(self.grid(*images_BCHW.shape[-2:]), indices_BK)
        return self.normed(self.through(layers, self.embed(images_BCHW, indices_BK)))

    def forward(self, images_BCHW: Tensor, indices_BK: Tensor | None = None) -> Tensor:
        """Normed tokens of all patches [B, N, D], or of the visible ones only [B, K, D]."""
        return self.tokens(images_BCHW, indices_BK)[:, self.prefix :]

    def layer_outputs(self, images_BCHW: Tensor, last: int, normed: bool = True) -> list[Tensor]:
        """Prefix and patch tokens after each of the `last` layers, earliest first, the final norm applied to each:
        `last` × [B, C+N, D]."""
        depth = self.config.layers
        if not 1 <= last <= depth:
            raise ValueError(f"last is {last}; this encoder has {depth} layers")
        layers = self.stack(self.grid(*images_BCHW.shape[-2:]), None)
        outputs = deque(self.each(layers, self.embed(images_BCHW)), maxlen=last)  # earlier ones are let go on the way
        return [self.normed(output) if normed else output for output in outputs]

    def layer_tokens(self, images_BCHW: Tensor, last: int, normed: bool = True) -> list[Tensor]:
        """The patch tokens among `layer_outputs`: `last` × [B, N, D]."""
        return [output[:, self.prefix :] for output in self.layer_outputs(images_BCHW, last, normed)]


class Encoder(VisionEncoder):
    """The plain ViT of I-JEPA, StoP, MAE, MoCo v3, DINO and iBOT, on images [B, C, H, W] of any grid."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.config: EncoderConfig = config
        self.prefix, self.has_class_token = int(config.class_token), config.class_token
        self.patch_embed = PatchEmbed(
            img_size=None, patch_size=config.patch_size, in_chans=3, embed_dim=config.width, strict_img_size=False
        )
        if config.class_token:
            self.class_token = nn.Parameter(torch.zeros(1, 1, config.width))
        if config.positions == "learned":
            side = config.image_size // config.patch_size
            self.positions = nn.Parameter(torch.zeros(1, side * side, config.width))
        self.blocks = transformer_layers(config.width, config.heads, config.layers)
        self.norm = layer_norm(config.width)

    def embed(self, images_BCHW: Tensor, indices_BK: Tensor | None = None) -> Tensor:
        """Class token (its position is 0) and patch projections plus positions: [B, C+N, D], or [B, C+K, D]."""
        h, w = self.grid(*images_BCHW.shape[-2:])
        tokens: Tensor = self.patch_embed(images_BCHW)
        if self.config.positions == "learned":
            tokens = tokens + learned_positions(self.positions, h, w)
        else:  # in float32, and so all sums of the residual stream, also where autocast computes layers in bf16
            tokens = tokens + sincos(h, w, self.config.width, tokens.device)
        tokens = tokens if indices_BK is None else gather(tokens, indices_BK)
        if self.prefix:
            tokens = torch.cat([self.class_token.expand(len(tokens), -1, -1), tokens], dim=1)
        return tokens

    def layer_modules(self) -> list[nn.Module]:
        """All layers."""
        return list(self.blocks)

    def stack(self, grid: tuple[int, int], indices_BK: Tensor | None) -> nn.ModuleList:
        """Plain layers: positions were added once, in `embed`."""
        return self.blocks

    def normed(self, tokens_BND: Tensor) -> Tensor:
        """The final LayerNorm."""
        return self.norm(tokens_BND)  # type: ignore[no-any-return]
