"""I-JEPA with StoP as one trainable module, its moving-average target encoder, and what is worth watching."""

import copy
from collections import defaultdict

import torch
from torch import Tensor, nn
from torch.optim import AdamW

from components.mim.encoder import Encoder, gather
from components.mim.masks import Masks
from components.mim.objectives import smooth_l1
from components.mim.predictor import Predictor


class MaskedImageModel(nn.Module):
    """The trained part: context encoder and predictor. The target encoder follows outside, without gradient."""

    def __init__(self, encoder: Encoder, predictor: Predictor) -> None:
        super().__init__()
        self.encoder = encoder
        self.predictor = predictor

    def predict(self, images_BCHW: Tensor, masks: Masks, noise: list[Tensor] | None) -> list[Tensor]:
        """Predictions [B, T, D] of each target block; blocks never see each other. `noise` None predicts deterministically.

        Blocks of equal size share one pass, stacked along the batch.
        """
        grid = self.encoder.grid(*images_BCHW.shape[-2:])
        context = self.encoder(images_BCHW, masks.context_BK)
        passes: dict[int, list[int]] = defaultdict(list)
        for block, target in enumerate(masks.targets):
            passes[target.shape[1]].append(block)
        predictions: dict[int, Tensor] = {}
        for blocks in passes.values():
            output = self.predictor(
                context.repeat(len(blocks), 1, 1),
                masks.context_BK.repeat(len(blocks), 1),
                torch.cat([masks.targets[block] for block in blocks]),
                grid,
                None if noise is None else torch.cat([noise[block] for block in blocks]),
            )
            predictions.update(zip(blocks, output.chunk(len(blocks)), strict=True))
        return [predictions[block] for block in range(len(masks.targets))]

    def forward(self, images_BCHW: Tensor, masks: Masks, noise: list[Tensor] | None, features_BND: Tensor) -> Tensor:
        """The loss of one batch against the target features [B, N, D]."""
        predictions = self.predict(images_BCHW, masks, noise)
        return smooth_l1(predictions, [gather(features_BND, target) for target in masks.targets])


def target_encoder(encoder: Encoder) -> Encoder:
    """A copy of the encoder that no gradient reaches."""
    copied = copy.deepcopy(encoder).eval()
    return copied.requires_grad_(False)


@torch.no_grad()
def update_target(target: Encoder, encoder: Encoder, momentum: float) -> None:
    """Exponential moving average: target ← momentum·target + (1 − momentum)·encoder."""
    torch._foreach_lerp_(list(target.parameters()), list(encoder.parameters()), 1.0 - momentum)


def optimizer(model: nn.Module, lr: float, weight_decay: float) -> AdamW:
    """AdamW (β .9/.999, eps 1e-8) with weight decay on matrices only: biases and 1-D parameters form a group without."""
    named = [(name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad]
    plain = [parameter for name, parameter in named if parameter.ndim == 1 or name.endswith("bias")]
    decayed = [parameter for name, parameter in named if not (parameter.ndim == 1 or name.endswith("bias"))]
    groups = [{"params": decayed, "weight_decay": weight_decay}, {"params": plain, "weight_decay": 0.0}]
    return AdamW(groups, lr=lr, betas=(0.9, 0.999), eps=1e-8)


def set_rates(adamw: AdamW, lr: float, weight_decay: float) -> None:
    """Sets this step's learning rate and, on the decayed group, its weight decay."""
    for group, decay in zip(adamw.param_groups, (weight_decay, 0.0), strict=True):
        group["lr"], group["weight_decay"] = lr, decay


@torch.no_grad()
def diagnostics(predictor: Predictor, noise_std: float, pooled_nD: Tensor) -> dict[str, float]:
    """What tells a healthy run from a collapsed one, by metric name; `pooled_nD` are average-pooled target features.

    `A_norm` is ‖A‖ (Frobenius), `A_norm_l1` its mean absolute entry (the paper's normalised l1, Fig. 4), `noise_ratio` is
    rms(A·n)/rms(ψ) in expectation, `effective_rank` RankMe (Garrido et al. 2023). Without a mask token its norms are 0.
    """
    weight = predictor.embed.weight.float()
    token = predictor.mask_token.float() if predictor.config.mask_token else torch.zeros(1)
    return {
        "A_norm": weight.norm().item(),
        "A_norm_l1": weight.abs().mean().item(),
        "b_norm": predictor.embed.bias.float().norm().item(),
        "mask_token_norm": token.norm().item(),
        "mask_token_norm_l1": token.abs().mean().item(),
        "noise_ratio": noise_std * weight.norm().item() / (len(weight) / 2.0) ** 0.5,
        "feature_std": pooled_nD.std(dim=0).mean().item(),
        "effective_rank": effective_rank(pooled_nD),
    }


@torch.no_grad()
def effective_rank(features_nD: Tensor) -> float:
    """exp(entropy) of the normalised singular values of [n, D] features (RankMe, eq. 2)."""
    singular = torch.linalg.svdvals(features_nD.float())
    share = singular / singular.sum().clamp_min(1e-12) + 1e-7
    return torch.exp(-(share * share.log()).sum()).item()
