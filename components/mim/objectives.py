"""What the predictor must predict, and how far off it is."""

import torch
from torch import Tensor
from torch.nn import functional

from components.mim.encoder import Encoder


@torch.no_grad()
def target_features(target_encoder: Encoder, images_BCHW: Tensor) -> Tensor:
    """I-JEPA's targets [B, N, D]: the target encoder's tokens of the full image, layer-normed once more without affine."""
    tokens = target_encoder(images_BCHW).float()
    return functional.layer_norm(tokens, tokens.shape[-1:])


def smooth_l1(predictions: list[Tensor], targets: list[Tensor]) -> Tensor:
    """Smooth-L1 (β = 1) averaged over every element of every target block."""
    total = sum(
        (functional.smooth_l1_loss(p.float(), t, reduction="sum") for p, t in zip(predictions, targets, strict=True)),
        start=torch.zeros((), device=targets[0].device),
    )
    return total / sum(target.numel() for target in targets)
