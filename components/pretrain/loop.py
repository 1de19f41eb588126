"""The training loop in plain torch: no Ray, no MLflow, no files."""

import math
import time
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from components.images.transforms import normalise
from components.mim import masks, schedules
from components.mim.encoder import EncoderConfig
from components.mim.grid import Size, patch_grid
from components.mim.model import MaskedImageModel, diagnostics, optimizer, set_rates, target_encoder, update_target
from components.mim.objectives import target_features
from components.mim.positions import draw_noise
from components.mim.predictor import PredictorConfig
from components.mim.weights import build
from components.pretrain.batches import Batch, Batches
from components.pretrain.contract import PretrainParams

Row = dict[str, float]
State = dict[str, Any]


def build_model(params: PretrainParams) -> MaskedImageModel:
    """The model at its first step."""
    encoder = EncoderConfig(
        image_size=params.encoder.image_size,
        patch_size=params.encoder.patch_size,
        width=params.encoder.width,
        layers=params.encoder.layers,
        heads=params.encoder.heads,
    )
    predictor = PredictorConfig(
        encoder_width=encoder.width,
        width=params.predictor.width,
        layers=params.predictor.layers,
        heads=params.predictor.heads,
        mask_token=params.stop.mask_token,
        bias_on_noise=params.stop.bias_on_noise,
    )
    return build(encoder, predictor, params.seed, params.weight_init)


class Trainer:
    """Everything one worker holds while it trains.

    `wrap` distributes the model (DDP) or leaves it as it is; `gather` joins a tensor of all workers along its first axis.
    """

    def __init__(
        self,
        params: PretrainParams,
        batches: Batches,
        wrap: Callable[[nn.Module], nn.Module],
        gather: Callable[[Tensor], Tensor],
        device: torch.device,
    ) -> None:
        self.params, self.batches, self.gather, self.device = params, batches, gather, device
        self.model = build_model(params).to(device)
        self.target = target_encoder(self.model.encoder)
        self.wrapped = wrap(self.model)
        self.grid: Size = patch_grid(params.encoder.image_size, params.encoder.patch_size)
        self.steps = params.optimisation.epochs * batches.steps_per_epoch
        self.adamw = optimizer(self.model, params.optimisation.lr, params.optimisation.weight_decay)
        self.step, self.history = 0, list[Row]()

    def state(self) -> State:
        """All that a restart needs; tensors and plain values only."""
        return {
            "step": self.step,
            "history": self.history,
            "model": self.model.state_dict(),
            "target": self.target.state_dict(),
            "optimizer": self.adamw.state_dict(),
        }

    def restore(self, state: State) -> None:
        """Continues from `state`. Every tensor must fit."""
        self.step, self.history = state["step"], state["history"]
        self.model.load_state_dict(state["model"], strict=True)
        self.target.load_state_dict(state["target"], strict=True)
        self.adamw.load_state_dict(state["optimizer"])

    def train(self, on_log: Callable[[Row, bool], None]) -> None:
        """Runs to the last step. `on_log(row, checkpoint)` is called every `log_every` steps and whenever a checkpoint is due."""
        since, first = time.monotonic(), self.step
        for batch in self.batches.steps(self.step, self.steps):
            self._set_schedules()
            loss, features, gradient_norm = self._update(batch)
            self.step += 1
            last = self.step == self.steps
            checkpoint = last or self.step % self.params.checkpoint_every == 0
            if last or checkpoint or self.step % self.params.log_every == 0 or self.step == 1:
                now = time.monotonic()
                row = self._row(loss, features, gradient_norm, now - since, self.step - first)
                since, first = now, self.step  # what logging and checkpoints take counts into the next row
                self.history.append(row)
                on_log(row, checkpoint)

    def _set_schedules(self) -> None:
        rates, step = self.params.optimisation, self.step
        self.lr = schedules.learning_rate(
            step,
            steps=self.steps,
            warmup_steps=round(rates.warmup_epochs * self.batches.steps_per_epoch),
            start=rates.start_lr,
            peak=rates.lr,
            final=rates.final_lr,
        )
        self.weight_decay = schedules.weight_decay(
            step, steps=self.steps, start=rates.weight_decay, final=rates.final_weight_decay
        )
        self.momentum = schedules.ema_momentum(step, steps=self.steps, start=rates.ema, final=rates.final_ema)
        set_rates(self.adamw, self.lr, self.weight_decay)

    def _update(self, batch: Batch) -> tuple[float, Tensor, float]:
        """One step: masks, noise, targets, loss, gradients, update, moving average."""
        params, step = self.params, self.step
        images, places = normalise(batch.pixels.to(self.device)), batch.places.to(self.device)
        chosen = masks.sample(params.seed, step, places, self.grid, params.masks)
        noise = None
        if params.stop.noise_std > 0:
            noise = [
                draw_noise(
                    params.seed, step, block, places, target.shape[1], params.encoder.width, params.stop.noise_std
                )
                for block, target in enumerate(chosen.targets)
            ]
        bf16 = params.scale.precision == "bf16"
        with torch.autocast(self.device.type, torch.bfloat16) if bf16 else nullcontext():
            features = target_features(self.target, images)
            loss: Tensor = self.wrapped(images, chosen, noise, features)
        self.adamw.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        norm = nn.utils.get_total_norm([p.grad for p in self.model.parameters() if p.grad is not None])
        self._check_finite(loss.item())
        self.adamw.step()
        update_target(self.target, self.model.encoder, self.momentum)
        return loss.item(), features, norm.item()

    def _check_finite(self, loss: float) -> None:
        if not math.isfinite(loss):
            last = self.history[-1] if self.history else {"step": 0, "loss": math.nan}
            raise ValueError(
                f"loss is {loss} at step {self.step + 1} (lr {self.lr:.3g}); the last finite one was {last['loss']:.4f} at step "
                f"{last['step']:.0f}. Lower optimisation.lr"
            )

    def _row(self, loss: float, features: Tensor, gradient_norm: float, seconds: float, steps: int) -> Row:
        """A point of every curve, the same on every worker; `seconds` went into the `steps` since the last point."""
        losses, pooled = self.gather(features.new_tensor([loss])), self.gather(features.float().mean(dim=1))
        return {
            "step": self.step,
            "epoch": self.step / self.batches.steps_per_epoch,
            "loss": losses.mean().item(),
            "lr": self.lr,
            "weight_decay": self.weight_decay,
            "ema": self.momentum,
            "gradient_norm": gradient_norm,
            "seconds": seconds,
            "seconds_per_step": seconds / steps,
            "images_per_second": steps * self.params.optimisation.global_batch_size / seconds,
            **diagnostics(self.model.predictor, self.params.stop.noise_std, pooled),
        }
