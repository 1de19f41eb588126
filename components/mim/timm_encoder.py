"""Vision Transformers of timm as encoders: its VisionTransformer (DINOv2, CLIP, SigLIP, DeiT III …) and its Beit."""

import difflib
import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Any, Final

import timm
import torch
from timm.layers import PatchEmbed
from timm.models.beit import Beit
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn

from components.mim import beit
from components.mim.encoder import Layer, VisionEncoder, gather

_OURS: Final = {  # arguments that are not for the caller, and why
    "pretrained": "weights come from a file, never from the internet",
    "checkpoint_path": "weights come from a file that the checkpoint reader checks",
    "pretrained_cfg": "weights come from a file that the checkpoint reader checks",
    "pretrained_cfg_overlay": "weights come from a file that the checkpoint reader checks",
    "cache_dir": "weights come from a file, never from the internet",
    "num_classes": "an encoder has no classifier",
    "global_pool": "an encoder gives a token per patch; what reads it pools",
    "features_only": "an encoder gives a token per patch",
    "dynamic_img_size": "every grid is accepted anyway",
    "patch_drop_rate": "the masks say which patches are visible",
}


@dataclass(frozen=True, kw_only=True)
class TimmConfig:
    """Architecture of a timm encoder, stored in its file: `model` is timm's entry point, `arguments` what overrides it there.

    The other fields are read off that model; `timm_config` fills them in. Positions are tables for `image_size`.
    """

    image_size: int
    patch_size: int
    width: int
    layers: int
    heads: int
    model: str
    arguments: dict[str, Any]

    def as_dict(self) -> dict[str, Any]:
        """The fields by name."""
        return asdict(self)


def timm_config(model: str, arguments: Mapping[str, Any]) -> TimmConfig:
    """The architecture of timm's `model` with `arguments`, without memory for its weights.

    Raises ValueError for a model that timm lacks, of another class than VisionTransformer or Beit, or arguments it refuses.
    """
    with torch.device("meta"):
        return _read(model, arguments, _create(model, arguments))


class TimmEncoder(VisionEncoder):
    """timm's `model` without head and pooling, on images [B, C, H, W] of any grid; C counts class and register tokens."""

    def __init__(self, config: TimmConfig) -> None:
        super().__init__()
        self.config: TimmConfig = config
        self.model: Any = _create(config.model, config.arguments)
        found = _read(config.model, config.arguments, self.model)
        if found != config:
            raise ValueError(f"timm makes {found} of {config.model!r}, but the config is {config}; use timm_config")
        self.prefix = int(self.model.num_prefix_tokens)
        self.has_class_token = self.model.cls_token is not None

    def embed(self, images_BCHW: Tensor, indices_BK: Tensor | None = None) -> Tensor:
        """Prefix tokens and patch projections with the absolute positions that the model has: [B, C+N, D] or [B, C+K, D]."""
        grid = self.grid(*images_BCHW.shape[-2:])
        if isinstance(self.model, Beit):
            return self._visible(beit.embed(self.model, images_BCHW, grid), indices_BK)
        tokens = self.model._pos_embed(self.model.patch_embed(images_BCHW))
        return self.model.norm_pre(self._visible(tokens, indices_BK))  # type: ignore[no-any-return]

    def _visible(self, tokens_BND: Tensor, indices_BK: Tensor | None) -> Tensor:
        if indices_BK is None:
            return tokens_BND
        return torch.cat([tokens_BND[:, : self.prefix], gather(tokens_BND[:, self.prefix :], indices_BK)], dim=1)

    def layer_modules(self) -> list[nn.Module]:
        """Those of a VisionTransformer. Beit's run piece by piece, with position biases from outside."""
        return [] if isinstance(self.model, Beit) else list(self.model.blocks)

    def stack(self, grid: tuple[int, int], indices_BK: Tensor | None) -> Iterator[Layer]:
        """The layers; those of Beit get the position biases of the visible patches."""
        if isinstance(self.model, Beit):
            return beit.layers(self.model, grid, indices_BK)
        return iter(self.model.blocks)

    def normed(self, tokens_BND: Tensor) -> Tensor:
        """The final norm, which timm calls `norm` or `fc_norm`; the other one is an identity."""
        return self.model.fc_norm(self.model.norm(tokens_BND))  # type: ignore[no-any-return]


def untrained(config: TimmConfig, seed: int) -> TimmEncoder:
    """The encoder with the first weights that timm draws, from `seed`; torch's global random state stays as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)  # torch.manual_seed would touch the GPUs' states, too
        return TimmEncoder(config)


def licence(model: str) -> str:
    """What timm knows of the weights of `model` with their tag after the dot; without one, what holds for all its weights."""
    known = timm.models.get_arch_pretrained_cfgs(model.split(".")[0])
    found = {config.license for name, config in known.items() if name == model or "." not in model}
    name = found.pop() if len(found) == 1 else None
    return {"apache-2.0": "Apache-2.0", "mit": "MIT", "cc-by-nc-4.0": "CC-BY-NC-4.0"}.get(name or "", name or "unknown")


def _create(model: str, arguments: Mapping[str, Any]) -> Any:
    for name in arguments:
        if name in _OURS:
            raise ValueError(f"arguments of {model!r} hold {name}: {_OURS[name]}; leave it out")
    dynamic = {"dynamic_img_size": True} if _family(model) is VisionTransformer else {}
    try:
        json.dumps(arguments)
        return timm.create_model(model, num_classes=0, global_pool="", **dynamic, **arguments)
    except (TypeError, ValueError, RuntimeError, AssertionError) as error:
        raise ValueError(
            f"timm cannot make {model!r} with the arguments {dict(arguments)}: {error}; "
            "they must be plain values that timm.create_model takes for it"
        ) from error


@lru_cache(maxsize=64)
def _family(model: str) -> type:
    """The class of timm's `model`, which must be one that this module knows how to run on visible patches only."""
    if not timm.is_model(model):
        near = difflib.get_close_matches(model.split(".")[0], timm.list_models(), n=3)
        hint = f"did you mean {' or '.join(near)}?" if near else "timm.list_models() lists them"
        raise ValueError(f"model is {model!r}, which is no entry point of timm {timm.__version__}; {hint}")
    try:
        with torch.device("meta"):
            made = timm.create_model(model, num_classes=0)
    except RuntimeError as error:  # an unknown tag after the dot
        raise ValueError(f"model is {model!r}: {error}; drop what follows the dot") from error
    # A convolutional stem in front of the patches would show the encoder what the masks hide.
    if type(made) not in (VisionTransformer, Beit) or type(made.patch_embed) is not PatchEmbed:
        stem = type(getattr(made, "patch_embed", None)).__name__
        raise ValueError(
            f"model {model!r} is of timm's class {type(made).__name__} on {stem}; an encoder here must be a VisionTransformer or "
            "a Beit on PatchEmbed, whose patches can be left out one by one: such as vit_base_patch16_224, "
            "vit_small_patch14_dinov2 or beit_base_patch16_224"
        )
    return type(made)


def _read(name: str, arguments: Mapping[str, Any], model: Any) -> TimmConfig:
    (height, width), patch = model.patch_embed.img_size, model.patch_embed.patch_size
    if height != width or patch[0] != patch[1] or height % patch[0]:
        raise ValueError(
            f"model {name!r} with {dict(arguments)} is for {height}×{width} pixels in patches of {patch[0]}×{patch[1]}; "
            "image and patches must be square and one a multiple of the other: set img_size in the arguments"
        )
    heads = next(module.num_heads for module in model.blocks[0].modules() if hasattr(module, "num_heads"))
    return TimmConfig(
        image_size=height, patch_size=patch[0], width=model.embed_dim, layers=len(model.blocks), heads=heads,
        model=name, arguments=dict(arguments),
    )  # fmt: skip
