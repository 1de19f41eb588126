"""Every encoder here takes images normalised with ImageNet's mean and deviation; others are adapted when they are read.

An image that is normalised in another way is x' = x·gain + shift for each colour. Patches don't overlap and are not padded, so
the patch projection takes the gain into its weights and the shift into its bias, exactly.
"""

from typing import Any, NamedTuple

import torch
from timm.data import (
    IMAGENET_DEFAULT_MEAN,
    IMAGENET_DEFAULT_STD,
    IMAGENET_INCEPTION_MEAN,
    IMAGENET_INCEPTION_STD,
)
from timm.models import get_pretrained_cfg
from torch import Tensor, nn

from components.mim.encoder import VisionEncoder
from components.mim.timm_encoder import TimmEncoder


class Normalisation(NamedTuple):
    """Mean and standard deviation of each colour, on a scale of 0 to 1."""

    mean: tuple[float, ...]
    std: tuple[float, ...]


IMAGENET = Normalisation(IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD)
INCEPTION = Normalisation(IMAGENET_INCEPTION_MEAN, IMAGENET_INCEPTION_STD)
"""0.5 and 0.5, as BEiT has it, and data2vec when it is fine-tuned."""


def of_timm(model: str) -> Normalisation:
    """What timm's configuration says of the images for `model`; a tag after a dot chooses among its weights."""
    known = get_pretrained_cfg(model)
    return Normalisation(tuple(known.mean), tuple(known.std)) if known else IMAGENET


@torch.no_grad()
def adapt(encoder: VisionEncoder, expected: Normalisation) -> None:
    """Makes `encoder`, trained on images of normalisation `expected`, give the same on images with ImageNet's."""
    if expected == IMAGENET:
        return
    mean, std = (torch.tensor(values) for values in expected)
    own_mean, own_std = (torch.tensor(values) for values in IMAGENET)
    gain, shift = own_std / std, (own_mean - mean) / std
    parts: Any = encoder.model if isinstance(encoder, TimmEncoder) else encoder
    projection: nn.Conv2d = parts.patch_embed.proj
    stray = (projection.weight * shift.view(1, -1, 1, 1)).sum(dim=(1, 2, 3))
    projection.weight.mul_(gain.view(1, -1, 1, 1))
    if projection.bias is not None:
        projection.bias.add_(stray)
    else:  # CLIP's has none; positions are added next, and resampling leaves what is the same in all of them
        _patch_positions(parts).add_(stray)


def _patch_positions(model: Any) -> Tensor:
    if getattr(model, "pos_embed", None) is None:
        raise ValueError(
            f"timm's {type(model).__name__} has neither a bias in its patch projection nor absolute positions, so its normalisation "
            "of images cannot be taken over; import a model with one of them"
        )
    (h, w), table = model.patch_embed.grid_size, model.pos_embed
    return table[:, table.shape[1] - h * w :]  # type: ignore[no-any-return]
