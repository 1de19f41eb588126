"""What is finetuned: an encoder with all its parameters, pooling, a norm and a linear head."""

import json
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from timm.layers import DropPath
from torch import Tensor, nn

from components.mim import keys
from components.mim.encoder import VisionEncoder, layer_norm
from components.mim.timm_encoder import TimmEncoder
from components.mim.weights import blank

HEAD_STD = 2e-5
"""MAE's: a head near zero, so that first steps do not shake the encoder by a random head's gradients."""


class Classifier(nn.Module):
    """Images [B, C, H, W] to logits [B, K], from the average of the patch tokens or the class token.

    With norm 'encoder' the encoder's final norm is applied to each token before pooling; with 'new' it is left out, and a fresh one
    follows pooling. Raises ValueError when the class token is asked for and there is none.
    """

    def __init__(
        self,
        encoder: VisionEncoder,
        pooling: Literal["average", "class_token"],
        norm: Literal["encoder", "new"],
        classes: int,
    ) -> None:
        super().__init__()
        if pooling == "class_token" and not _has_class_token(encoder):
            raise ValueError(
                f"pooling is 'class_token', but the encoder has none ({encoder.prefix} prefix tokens); set pooling: average"
            )
        self.encoder, self.pooling, self.classes = encoder, pooling, classes
        self.norm = layer_norm(encoder.config.width) if norm == "new" else None
        self.head = nn.Linear(encoder.config.width, classes)

    def initialise(self, seed: int) -> None:
        """Draws the head from `seed`; the encoder stays as it is."""
        drawn = torch.Generator().manual_seed(keys.key(seed, "finetune head"))
        with torch.no_grad():
            nn.init.trunc_normal_(self.head.weight, std=HEAD_STD, generator=drawn)
            nn.init.zeros_(self.head.bias)

    def trainable(self) -> dict[str, nn.Parameter]:
        """The parameters that the logits depend on, which is all but the encoder's final norm where a new one replaces it."""
        idle: set[int] = set()
        if self.norm is not None:
            idle = {id(parameter) for module in _final_norms(self.encoder) for parameter in module.parameters()}
        return {name: parameter for name, parameter in self.named_parameters() if id(parameter) not in idle}

    def forward(self, images_BCHW: Tensor) -> Tensor:
        """Logits [B, K]."""
        encoder = self.encoder
        layers = encoder.stack(encoder.grid(*images_BCHW.shape[-2:]), None)
        tokens = encoder.through(layers, encoder.embed(images_BCHW))
        if self.norm is None:
            tokens = encoder.normed(tokens)
        pooled = tokens[:, 0] if self.pooling == "class_token" else tokens[:, encoder.prefix :].mean(dim=1)
        logits: Tensor = self.head(pooled if self.norm is None else self.norm(pooled))
        return logits


def set_drop_path(encoder: VisionEncoder, rate: float) -> None:
    """Stochastic depth, from 0 in the first layer to `rate` in the last. Raises ValueError for layers without residual paths."""
    if not rate:  # an imported encoder may bring its own
        for part in encoder.modules():
            if isinstance(part, DropPath):
                part.drop_prob = 0.0
        return
    blocks: Any = encoder.model.blocks if isinstance(encoder, TimmEncoder) else encoder.blocks
    for block, share in zip(blocks, torch.linspace(0, rate, len(blocks)).tolist(), strict=True):
        if not (hasattr(block, "drop_path1") and hasattr(block, "drop_path2")):
            raise ValueError(
                f"optimisation.drop_path is {rate}, but the encoder's layers ({type(block).__name__}) have no two paths to "
                "drop; set it to 0"
            )
        block.drop_path1, block.drop_path2 = DropPath(share), DropPath(share)


def save(path: Path, model: Classifier, about: dict[str, Any]) -> None:
    """Writes `model` as safetensors that describe themselves: metadata `classifier` is JSON of what `load` needs and
    of `about`."""
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in model.state_dict().items()}
    made_of = {
        "config": model.encoder.config.as_dict(),
        "pooling": model.pooling,
        "norm": "encoder" if model.norm is None else "new",
        "classes": model.classes,
    }
    save_file(tensors, path, metadata={"classifier": json.dumps({**made_of, "about": about}, sort_keys=True)})


def load(path: Path) -> tuple[Classifier, dict[str, Any]]:
    """The classifier in a file that `save` wrote, in eval mode, and what was said about it. Every tensor must fit."""
    with safe_open(path, "pt") as file:
        made_of = json.loads(file.metadata()["classifier"])
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a dict
    model = Classifier(blank(made_of["config"]), made_of["pooling"], made_of["norm"], made_of["classes"])
    model.load_state_dict(tensors, strict=True)
    return model.eval(), made_of["about"]


def _has_class_token(encoder: VisionEncoder) -> bool:
    if isinstance(encoder, TimmEncoder):  # it may have registers alone
        return getattr(encoder.model, "cls_token", None) is not None
    return encoder.prefix > 0


def _final_norms(encoder: Any) -> list[nn.Module]:
    return [encoder.model.norm, encoder.model.fc_norm] if isinstance(encoder, TimmEncoder) else [encoder.norm]
