"""Masked image modelling as one trainable module: StoP on I-JEPA, data2vec or MAE; its optimiser and moving average."""

import copy
from collections import defaultdict
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.optim import AdamW

from components.mim.blocks import Masks
from components.mim.encoder import VisionEncoder, gather
from components.mim.objectives import Loss, Targets, mean_loss
from components.mim.positions import Noise
from components.mim.predictor import Predictor


class Penalty(NamedTuple):
    """`weight` times the mean of |A| (l1) or of A² (l2) is added to the loss: the paper's regularisation ablation (§4.3)."""

    kind: Literal["none", "l1", "l2"]
    weight: float


class MaskedImageModel(nn.Module):
    """The trained part: context encoder and predictor. The target encoder follows outside, without gradient."""

    def __init__(
        self,
        encoder: VisionEncoder,
        predictor: Predictor,
        loss: Loss = "smooth_l1",
        penalty: Penalty = Penalty("none", 0.0),  # noqa: B008 - immutable
    ) -> None:
        super().__init__()
        self.encoder = encoder
        self.predictor = predictor
        self.loss: Loss = loss
        self.penalty = penalty

    def checkpointing(self, on: bool) -> None:
        """Activation checkpointing: less memory for a second forward pass through each layer."""
        self.encoder.checkpointing = self.predictor.checkpointing = on

    def compile_layers(self) -> None:
        """Faster layers after a minute or more of compiling, at the first steps. A target encoder made afterwards has them as well."""
        self.encoder.compile_layers()
        self.predictor.compile_layers()

    def predict(self, images_BCHW: Tensor, masks: Masks, noise: Noise | None) -> list[Tensor]:
        """Predictions [B, T, ·] of each target block at full scale. `noise` None predicts deterministically."""
        return [self.predictor.head(states) for states in self.states(images_BCHW, masks, noise)]

    def states(self, images_BCHW: Tensor, masks: Masks, noise: Noise | None) -> list[Tensor]:
        """The predictor's normed states [B, T, P] of each target block.

        A pass per block, so that blocks never see each other; those of equal size share one, stacked along the batch. Or one
        joint pass, in which all masked tokens see each other.
        """
        grid = self.encoder.grid(*images_BCHW.shape[-2:])
        return self.states_from(self.encoder.tokens(images_BCHW, masks.context_BK), grid, masks, noise)

    def states_from(self, encoded: Tensor, grid: tuple[int, int], masks: Masks, noise: Noise | None) -> list[Tensor]:
        """The same from the encoder's tokens [B, C+K, D] of the context, which several draws of noise can share."""
        table = self.predictor.position_table(grid)
        context = self.predictor.context_tokens(encoded, table[masks.context_BK])
        masked = [
            self.predictor.masked_tokens(
                table[target], None if noise is None or noise.masked is None else noise.masked[m]
            )
            for m, target in enumerate(masks.targets)
        ]
        if self.predictor.config.passes == "joint":
            states = self.predictor(self._noisy(context, noise, 0), torch.cat(masked, dim=1))
            return list(states.split([tokens.shape[1] for tokens in masked], dim=1))
        sizes: dict[int, list[int]] = defaultdict(list)
        for m, tokens in enumerate(masked):
            sizes[tokens.shape[1]].append(m)
        found: dict[int, Tensor] = {}
        for blocks in sizes.values():
            contexts = torch.cat([self._noisy(context, noise, m) for m in blocks])
            states = self.predictor(contexts, torch.cat([masked[m] for m in blocks]))
            found.update(zip(blocks, states.chunk(len(blocks)), strict=True))
        return [found[m] for m in range(len(masked))]

    def _noisy(self, context: Tensor, noise: Noise | None, block: int) -> Tensor:
        """The context tokens [B, C+K, P] of one block's pass, with noise on their positions where it is asked for."""
        if noise is None or noise.context is None:
            return context
        stray = self.predictor.stray(noise.context[block])
        return context + nn.functional.pad(stray, (0, 0, context.shape[1] - stray.shape[1], 0))

    def forward(self, images_BCHW: Tensor, masks: Masks, noise: Noise | None, targets: Targets) -> Tensor:
        """The loss of one batch against the targets of all patches; with low-resolution targets, the mean of both scales."""
        states = self.states(images_BCHW, masks, noise)
        heads = [(self.predictor.head, targets.full_BND)]
        if targets.low_BND is not None:
            heads.append((self.predictor.low_head, targets.low_BND))
        losses = [
            mean_loss([head(state) for state in states], [gather(wanted, block) for block in masks.targets], self.loss)
            for head, wanted in heads
        ]
        loss = sum(losses[1:], start=losses[0]) / len(losses)
        if self.penalty.kind == "none":
            return loss
        weight = self.predictor.embed.weight
        return loss + self.penalty.weight * (weight.abs() if self.penalty.kind == "l1" else weight.square()).mean()


def target_encoder(encoder: VisionEncoder) -> VisionEncoder:
    """A copy of the encoder that no gradient reaches, compiled if it is."""
    copied = copy.deepcopy(encoder).eval()
    if encoder.compiled:  # which no copy of a module is
        copied.compile_layers()
    return copied.requires_grad_(False)


@torch.no_grad()
def update_target(target: VisionEncoder, encoder: VisionEncoder, momentum: float) -> None:
    """Exponential moving average: target ← momentum·target + (1 − momentum)·encoder."""
    torch._foreach_lerp_(list(target.parameters()), list(encoder.parameters()), 1.0 - momentum)


def optimizer(
    model: MaskedImageModel, lr: float, weight_decay: float, beta2: float = 0.999, decay_a: bool = True
) -> AdamW:
    """AdamW (β₁ .9, eps 1e-8) with weight decay on matrices only: biases and 1-D parameters form a group without.

    `decay_a` False spares A as well, which StoP's noise is meant to regularise by itself.
    """
    named = [(name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad]

    def spared(name: str, parameter: nn.Parameter) -> bool:
        is_a = name == "predictor.embed.weight"
        return parameter.ndim == 1 or name.endswith("bias") or (is_a and not decay_a)

    plain = [parameter for name, parameter in named if spared(name, parameter)]
    decayed = [parameter for name, parameter in named if not spared(name, parameter)]
    groups = [{"params": decayed, "weight_decay": weight_decay}, {"params": plain, "weight_decay": 0.0}]
    return AdamW(groups, lr=lr, betas=(0.9, beta2), eps=1e-8, fused=True)


def set_rates(adamw: AdamW, lr: float, weight_decay: float) -> None:
    """Sets this step's learning rate and, on the decayed group, its weight decay."""
    for group, decay in zip(adamw.param_groups, (weight_decay, 0.0), strict=True):
        group["lr"], group["weight_decay"] = lr, decay
