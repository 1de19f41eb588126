"""The training loop in plain torch: no Ray, no MLflow, no files."""

import math
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from components.images.transforms import normalise
from components.mim import diagnostics, masks, objectives, schedules
from components.mim.blocks import Masks
from components.mim.encoder import VisionEncoder
from components.mim.grid import Size, patch_grid
from components.mim.model import optimizer, set_rates, target_encoder, update_target
from components.mim.positions import draw_noise
from components.pretrain.batches import Batch, Batches
from components.pretrain.building import build
from components.pretrain.contract import PretrainParams

CHECKPOINT_S = 600.0
"""Seconds after which a logged step is a checkpoint as well, whatever `checkpoint_every` says: a restart loses ten minutes at most."""

Row = dict[str, float]
State = dict[str, Any]


class Step(NamedTuple):
    """What one step leaves for the curves."""

    loss: float
    gradient_norm: float
    images: Tensor
    masks: Masks
    targets: objectives.Targets


class Trainer:
    """Everything one worker holds while it trains.

    `wrap` distributes the model (DDP) or leaves it as it is; `gather` joins a tensor of all workers along its first axis.
    `init` is the file that an imported encoder is read from.
    """

    def __init__(
        self,
        params: PretrainParams,
        batches: Batches,
        wrap: Callable[[nn.Module], nn.Module],
        gather: Callable[[Tensor], Tensor],
        device: torch.device,
        init: Path,
    ) -> None:
        self.params, self.batches, self.gather, self.device = params, batches, gather, device
        self.model = build(params, init).model.to(device)
        # Pixels don't move, so MAE needs no second encoder.
        self.target = None if params.objective.name == "mae" else target_encoder(self.model.encoder)
        self.wrapped = wrap(self.model)
        self.grid: Size = patch_grid(params.encoder.image_size, params.encoder.patch_size)
        self.steps = batches.total
        rates = params.optimisation
        self.adamw = optimizer(self.model, rates.lr, rates.weight_decay, rates.beta2, rates.decay_A)
        self.lr, self.weight_decay, self.momentum = 0.0, 0.0, 1.0
        self.rule = diagnostics.CollapseRule(
            params.collapse.effective_rank_floor, params.collapse.feature_std_floor, params.collapse.patience
        )
        self.step, self.history, self.saved = 0, list[Row](), time.monotonic()

    def state(self) -> State:
        """All that a restart needs; tensors and plain values only."""
        return {
            "step": self.step,
            "history": self.history,
            "model": self.model.state_dict(),
            "target": self.target.state_dict() if self.target else None,
            "optimizer": self.adamw.state_dict(),
        }

    def restore(self, state: State) -> None:
        """Continues from `state`. Every tensor must fit."""
        self.step, self.history = state["step"], state["history"]
        self.model.load_state_dict(state["model"], strict=True)
        if self.target:
            self.target.load_state_dict(state["target"], strict=True)
        self.adamw.load_state_dict(state["optimizer"])

    def train(self, on_log: Callable[[Row, bool], None]) -> None:
        """Runs to the last step. `on_log(row, checkpoint)` is called every `log_every` steps and whenever a checkpoint is due.

        That is every `checkpoint_every` steps, and at the last logged step before `CHECKPOINT_S` have passed since the one before.

        Without any epochs one batch is looked at, and nothing changes. Raises ValueError when the loss is no number, and when
        features have collapsed and `collapse.action` says fail, then after a checkpoint.
        """
        since, first = time.monotonic(), self.step
        self.saved = since
        if not self.steps and self.history:
            return  # looked at before
        for batch in self.batches.steps(self.step, self.steps or 1):
            next_step = self.step + (self.steps > 0)
            last = next_step == self.steps
            checkpoint = last or next_step % self.params.checkpoint_every == 0
            due = checkpoint or next_step % self.params.log_every == 0 or next_step == 1
            if self.steps:
                self.set_schedules()
                done = self.update(batch, measure=due)
            else:
                done = self._look(batch)
            self.step = next_step
            if due:
                row = self._row(done)
                now = time.monotonic()
                row |= self._pace(now - since, self.step - first)
                checkpoint = checkpoint or self._overdue(now, now - since)
                since, first = now, self.step  # what logging and checkpoints take counts into the next row
                self._log(row, checkpoint, on_log)

    def _log(self, row: Row, checkpoint: bool, on_log: Callable[[Row, bool], None]) -> None:
        self.history.append(row)
        verdict = self.rule.verdict(self.history)
        row["collapsed"] = float(verdict is not None)
        fail = verdict is not None and self.params.collapse.action == "fail"
        on_log(row, checkpoint or fail)
        if checkpoint:
            self.saved = time.monotonic()
        if fail:
            raise ValueError(
                f"{verdict}; collapse.action is 'fail'. A lower optimisation.lr, a momentum optimisation.ema closer to 1 or a larger "
                f"batch often helps, below width 768 weight_init fan_in. With collapse.action warn it goes on; new params train anew"
            )

    def _overdue(self, now: float, interval: float) -> bool:
        """Whether the next logged step, `interval` seconds on, would be too late for a checkpoint on any worker's clock."""
        late = float(now - self.saved + interval > CHECKPOINT_S)
        return bool(self.gather(torch.tensor([late], device=self.device)).max())

    def set_schedules(self) -> None:
        """Sets the rates of the step to come."""
        rates, step, per_epoch = self.params.optimisation, self.step, self.batches.steps_per_epoch
        hold_after = round(rates.hold_after * per_epoch) if rates.hold_after else None
        self.lr = schedules.learning_rate(
            step,
            steps=self.steps,
            warmup_steps=round(rates.warmup_epochs * per_epoch),
            start=rates.start_lr,
            peak=rates.lr,
            final=rates.final_lr,
            hold_after=hold_after,
        )
        self.weight_decay = schedules.weight_decay(
            step,
            steps=self.steps,
            start=rates.weight_decay,
            final=rates.final_weight_decay,
            hold_after=hold_after,
        )
        self.momentum = schedules.ema_momentum(step, steps=self.steps, start=rates.ema, final=rates.final_ema)
        set_rates(self.adamw, self.lr, self.weight_decay)

    def update(self, batch: Batch, measure: bool) -> Step:
        """One step: masks, noise, targets, loss, gradients, update, moving average. `measure` asks for the gradients' norm."""
        loss, images, chosen, targets = self._forward(batch)
        self.adamw.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        self._check_finite(loss.item())
        norm, clip = 0.0, self.params.optimisation.clip_norm
        if measure or clip:
            parameters = [parameter for parameter in self.model.parameters() if parameter.grad is not None]
            total = nn.utils.get_total_norm([parameter.grad for parameter in parameters if parameter.grad is not None])
            norm = total.item()
            if clip:
                nn.utils.clip_grads_with_norm_(parameters, clip, total)
        self.adamw.step()
        if self.target:
            update_target(self.target, self.model.encoder, self.momentum)
        return Step(loss.item(), norm, images, chosen, targets)

    @torch.no_grad()
    def _look(self, batch: Batch) -> Step:
        """The same without an update."""
        loss, images, chosen, targets = self._forward(batch)
        return Step(loss.item(), 0.0, images, chosen, targets)

    def _forward(self, batch: Batch) -> tuple[Tensor, Tensor, Masks, objectives.Targets]:
        params, step = self.params, self.step
        images = normalise(batch.pixels.to(self.device, non_blocking=True))
        chosen = masks.sample(params.seed, step, batch.places, self.grid, params.masks).to(self.device)
        widths = params.encoder.width, params.predictor.width
        noise = draw_noise(params.stop, params.seed, step, batch.places, chosen, *widths)
        with self._precision():
            targets = objectives.targets(params.objective, self.target, images, params.encoder.patch_size)
            loss: Tensor = self.wrapped(images, chosen, noise, targets)
        return loss, images, chosen, targets

    def _precision(self) -> AbstractContextManager[Any]:
        bf16 = self.params.scale.precision == "bf16"
        return torch.autocast(self.device.type, torch.bfloat16) if bf16 else nullcontext()

    def _check_finite(self, loss: float) -> None:
        if not math.isfinite(loss):
            last = self.history[-1] if self.history else {"step": 0, "loss": math.nan}
            raise ValueError(
                f"loss is {loss} at step {self.step + 1} (lr {self.lr:.3g}); the last finite one was {last['loss']:.4f} at step "
                f"{last['step']:.0f}. Lower optimisation.lr"
            )

    def _row(self, done: Step) -> Row:
        """A point of every curve, the same on every worker."""
        full = done.targets.full_BND.float()
        mean, square = self.gather(torch.stack([full.mean(dim=(0, 1)), full.square().mean(dim=(0, 1))])[None]).mean(
            dim=0
        )
        used = self.gather(diagnostics.used_patches(done.masks, self.grid.h * self.grid.w)[None])
        return {
            "step": self.step,
            "epoch": self.step / self.batches.steps_per_epoch,
            "loss": self.gather(full.new_tensor([done.loss])).mean().item(),
            "lr": self.lr,
            "weight_decay": self.weight_decay,
            "ema": self.momentum,
            "gradient_norm": done.gradient_norm,
            **diagnostics.norms(self.model.predictor, self.params.stop, self.grid),
            **diagnostics.spread(self.gather(self._pooled(done))),
            "target_std": (square - mean.square()).clamp_min(0).sqrt().mean().item(),
            "context_length": done.masks.context_BK.shape[1],
            "mask_coverage": used.amax(dim=0).mean().item(),
        }

    def _pace(self, seconds: float, steps: int) -> Row:
        """`seconds` went into the `steps` since the last point."""
        images = steps * self.params.optimisation.global_batch_size
        return {
            "seconds": seconds,
            "seconds_per_step": seconds / max(steps, 1),
            "images_per_second": images / seconds,
        }

    def _pooled(self, done: Step) -> Tensor:
        """Average-pooled, layer-normed features of this worker's images [B, D]."""
        if self.target:
            return done.targets.full_BND.float().mean(dim=1)
        encoder: VisionEncoder = self.model.encoder
        with torch.no_grad(), self._precision():
            tokens = encoder(done.images).float()
        return functional.layer_norm(tokens, tokens.shape[-1:]).mean(dim=1)
