"""The training loop in plain torch: one model, one device, no files."""

import math
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional
from torch.utils.data import DataLoader

from components import progress
from components.finetune import rates
from components.finetune.augment import Mix, seeded
from components.finetune.classifier import Classifier
from components.finetune.contract import FinetuneParams, FinetuningParams
from components.finetune.examples import Batches
from components.images.transforms import normalise
from components.mim import keys, schedules

Row = dict[str, float]
State = dict[str, Any]


class Trainer:
    """One classifier while it is finetuned. `label` starts progress lines and errors, such as "finetune digits, pretrained"."""

    def __init__(
        self,
        label: str,
        params: FinetuneParams,
        finetuning: FinetuningParams,
        model: Classifier,
        batches: Batches,
        device: torch.device,
    ) -> None:
        self.label, self.params, self.recipe = label, params, finetuning.optimisation
        self.model, self.batches, self.device = model.to(device), batches, device
        self.adamw = rates.optimizer(self.model, self.recipe.weight_decay, self.recipe.layer_decay)
        self.mix = Mix(finetuning.augmentation, self.recipe.label_smoothing, model.classes, params.seed)
        self.step, self.lr, self.last = 0, 0.0, math.nan
        self.history = list[Row]()

    @property
    def epoch(self) -> int:
        """Epochs done."""
        return len(self.history)

    def state(self) -> State:
        """All that a restart needs, tensors and plain values only."""
        return {
            "step": self.step,
            "last": self.last,
            "history": self.history,
            "model": self.model.state_dict(),
            "optimizer": self.adamw.state_dict(),
        }

    def restore(self, state: State) -> None:
        """Continues from `state`. Every tensor must fit."""
        self.step, self.last, self.history = state["step"], state["last"], list(state["history"])
        self.model.load_state_dict(state["model"], strict=True)
        self.adamw.load_state_dict(state["optimizer"])

    def train(self, after_epoch: Callable[[Row], None]) -> None:
        """Runs to the last epoch; `after_epoch` gets each one's row, may add to it, and finds it in the history already.

        Raises ValueError when the loss is no number.
        """
        per_epoch, total, losses = self.batches.per_epoch, self.recipe.epochs, list[float]()
        meter = progress.Meter(self.label, (total - self.epoch) * per_epoch * self.recipe.batch_size, "images")
        for pixels, labels in self.batches.epochs(self.epoch, total):
            losses.append(self.update(pixels, labels))
            meter.advance(len(labels))
            if len(losses) == per_epoch:
                row = {"epoch": self.epoch + 1, "lr": self.lr, "train_loss": sum(losses) / per_epoch}
                self.history.append(row)
                losses = []
                after_epoch(row)

    def update(self, pixels_BHWC: Tensor, labels_B: Tensor) -> float:
        """One step on uint8 pixels and labels; returns the loss before it."""
        self.lr = self._rate()
        rates.set_rate(self.adamw, self.lr)
        images = normalise(pixels_BHWC.to(self.device, non_blocking=True))
        images, targets = self.mix(images, labels_B.to(self.device, non_blocking=True), self.step)
        self.model.train()
        self.adamw.zero_grad(set_to_none=True)
        loss = 0.0
        with seeded(keys.key(self.params.seed, "drop path", self.step), self.device):
            part = self.params.micro_batch_size or len(images)
            for few, wanted in zip(torch.split(images, part), torch.split(targets, part), strict=True):
                with self._precision():
                    logits = self.model(few)
                share = functional.cross_entropy(logits.float(), wanted) * (len(few) / len(images))
                share.backward()  # type: ignore[no-untyped-call]
                loss += share.item()
        self._check_finite(loss)
        self.adamw.step()
        self.step, self.last = self.step + 1, loss
        return loss

    @torch.no_grad()
    def predict(self, views: DataLoader[Tensor]) -> NDArray[np.int64]:
        """The class of each image of `views` [n]. Raises ValueError for logits that are no numbers."""
        self.model.eval()
        predictions = []
        for pixels in views:
            with self._precision():
                logits = self.model(normalise(pixels.to(self.device, non_blocking=True)))
            if not logits.isfinite().all():
                raise ValueError(f"{self.label}: logits are not finite after epoch {self.epoch}, {self._advice()}")
            predictions.append(logits.argmax(dim=1).cpu())
        return torch.cat(predictions).numpy()

    def _rate(self) -> float:
        per_epoch, recipe = self.batches.per_epoch, self.recipe
        return schedules.learning_rate(
            self.step,
            steps=recipe.epochs * per_epoch,
            warmup_steps=round(recipe.warmup_epochs * per_epoch),
            start=0.0,
            peak=recipe.lr,
            final=recipe.final_lr,
        )

    def _precision(self) -> AbstractContextManager[Any]:
        bf16 = self.params.precision == "bf16"
        return torch.autocast(self.device.type, torch.bfloat16) if bf16 else nullcontext()

    def _check_finite(self, loss: float) -> None:
        if not math.isfinite(loss):
            raise ValueError(f"{self.label}: loss is {loss} at step {self.step + 1}, {self._advice()}")

    def _advice(self) -> str:
        return (
            f"learning rate {self.lr:.3g}; the last finite loss was {self.last:.4f} at step {self.step}. Lower "
            "optimisation.lr, or take precision fp32 if it is bf16"
        )
