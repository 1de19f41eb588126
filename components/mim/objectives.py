"""What the predictor must predict, and how far off it is: features of I-JEPA or data2vec, or MAE's pixels."""

from typing import Literal, NamedTuple, Protocol

import torch
from torch import Tensor
from torch.nn import functional

from components.mim.encoder import VisionEncoder

ObjectiveName = Literal["ijepa", "data2vec", "mae"]
Loss = Literal["smooth_l1", "l2"]
LowResolution = Literal["none", "bilinear", "max_pool"]


class ObjectiveSettings(Protocol):
    """What to predict; `pretrain.objective` in the params."""

    name: ObjectiveName
    target_layers: int
    low_resolution: LowResolution
    normalise_pixels: bool


class Targets(NamedTuple):
    """What each of the N patches should be predicted as, float32 [B, N, ·], and the 2×2 cell that it lies in, if asked."""

    full_BND: Tensor
    low_BND: Tensor | None


@torch.no_grad()
def targets(
    settings: ObjectiveSettings, target_encoder: VisionEncoder | None, images_BCHW: Tensor, patch_size: int
) -> Targets:
    """The targets of all patches of `images_BCHW`: features of the target encoder, or pixels where there is none (MAE)."""
    if target_encoder is None:
        return Targets(pixels(images_BCHW, patch_size, settings.normalise_pixels), None)
    if settings.name == "data2vec":
        features = averaged_features(target_encoder, images_BCHW, settings.target_layers)
    else:
        features = target_features(target_encoder, images_BCHW)
    if settings.low_resolution == "none":
        return Targets(features, None)
    h, w = target_encoder.grid(*images_BCHW.shape[-2:])
    return Targets(features, low_resolution(features, h, w, settings.low_resolution))


@torch.no_grad()
def target_features(target_encoder: VisionEncoder, images_BCHW: Tensor) -> Tensor:
    """I-JEPA's targets [B, N, D]: the target encoder's tokens of the full image, layer-normed once more without affine."""
    return _normed(target_encoder(images_BCHW))


@torch.no_grad()
def averaged_features(target_encoder: VisionEncoder, images_BCHW: Tensor, layers: int) -> Tensor:
    """data2vec's targets [B, N, D]: outputs of the last `layers` layers, each layer-normed without affine, averaged
    (Baevski et al. 2022, §3.3), then layer-normed like I-JEPA's, so that both have one scale."""
    outputs = target_encoder.layer_tokens(images_BCHW, layers, normed=False)
    return _normed(torch.stack([_normed(output) for output in outputs]).mean(dim=0))


def pixels(images_BCHW: Tensor, patch_size: int, normalised: bool) -> Tensor:
    """MAE's targets [B, N, p·p·C]: the pixels of each patch, row by row with the colours innermost.

    `normalised` takes each patch's mean away and divides by its standard deviation (norm_pix_loss).
    """
    batch, channels, height, width = images_BCHW.shape
    p, h, w = patch_size, height // patch_size, width // patch_size
    patches = images_BCHW.float().reshape(batch, channels, h, p, w, p).permute(0, 2, 4, 3, 5, 1)
    patches = patches.reshape(batch, h * w, p * p * channels)
    if normalised:
        variance, mean = torch.var_mean(patches, dim=-1, keepdim=True)
        patches = (patches - mean) / (variance + 1e-6).sqrt()
    return patches


def low_resolution(features_BND: Tensor, h: int, w: int, how: LowResolution) -> Tensor:
    """The feature map at half its resolution (paper, Table 8), told to each patch as the cell it lies in: [B, N, D].

    Raises ValueError for an odd grid, which has no half.
    """
    if h % 2 or w % 2:
        raise ValueError(f"low_resolution is {how!r} on a {h}×{w} patch grid; both sides must be even to be halved")
    maps = features_BND.transpose(1, 2).reshape(len(features_BND), -1, h, w)
    if how == "max_pool":
        half = functional.max_pool2d(maps, 2)
    else:
        half = functional.interpolate(maps, scale_factor=0.5, mode="bilinear", align_corners=False)
    return half.repeat_interleave(2, dim=2).repeat_interleave(2, dim=3).flatten(2).transpose(1, 2)


def mean_loss(predictions: list[Tensor], targets: list[Tensor], kind: Loss) -> Tensor:
    """Smooth-L1 (β = 1) or squared error, averaged over every element of every target block."""
    error = functional.smooth_l1_loss if kind == "smooth_l1" else functional.mse_loss
    total = sum(
        (error(p.float(), t, reduction="sum") for p, t in zip(predictions, targets, strict=True)),
        start=torch.zeros((), device=targets[0].device),
    )
    return total / sum(target.numel() for target in targets)


def _normed(tokens: Tensor) -> Tensor:
    return functional.layer_norm(tokens.float(), tokens.shape[-1:])
