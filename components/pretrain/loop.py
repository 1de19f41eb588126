"""The training loop in plain torch: no Ray, no MLflow, no files."""

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn

from components.images.transforms import normalise
from components.mim import diagnostics, masks, objectives, schedules
from components.mim.blocks import Masks
from components.mim.encoder import VisionEncoder
from components.mim.grid import Size, patch_grid
from components.mim.model import optimizer, set_rates, target_encoder, update_target
from components.mim.positions import draw_noise
from components.pretrain import measuring
from components.pretrain.batches import Batch, Batches
from components.pretrain.building import build
from components.pretrain.contract import PretrainParams
from components.pretrain.measuring import Pace, Part
from components.pretrain.parallel import Alone, Weights
from components.pretrain.state import State, versions
from components.pretrain.unsound import Unsound, sound

if TYPE_CHECKING:
    from components.pretrain.quality import Quality

CHECKPOINT_S = 600.0
"""Seconds after which a logged step is a checkpoint as well, whatever `checkpoint_every` says, so that a restart loses little time."""

Row = dict[str, float]
OnLog = Callable[[Row, Row], None]
"""Gets the row of a step, the same on every worker, and this worker's own."""


class Step(NamedTuple):
    """What one step leaves for the curves."""

    loss: float
    """Over the global batch."""
    gradient_norm: float
    parts: list[Part]
    stop: bool
    """Whether a worker was asked to stop."""
    left_out: bool = False
    """Whether loss or gradient was no number: there is nothing to show, and nothing changed."""


class Trainer:
    """Everything one worker holds while it trains.

    `parallel` is how it works together with others. `init` is the file that an imported encoder is read from. `stopping` is asked after
    each step whether somebody wants training to end after a checkpoint. `quality` says when it is due, and adds to that step's row.
    """

    def __init__(
        self,
        params: PretrainParams,
        batches: Batches,
        parallel: Alone,
        init: Path,
        stopping: Callable[[], bool] = lambda: False,
        quality: "Quality | None" = None,
    ) -> None:
        self.params, self.batches, self.parallel, self.device = params, batches, parallel, parallel.device
        self.stopping, self.quality = stopping, quality
        self.model = build(params, init).model
        # Pixels don't move, so MAE needs no second encoder.
        self.target = None if params.objective.name == "mae" else target_encoder(self.model.encoder)
        self.wrapped = parallel.distribute(self.model, self.target)
        self.grid: Size = patch_grid(params.encoder.image_size, params.encoder.patch_size)
        self.steps = batches.total
        rates = params.optimisation
        self.adamw = optimizer(self.model, rates.lr, rates.weight_decay, rates.beta2, rates.decay_A)
        self.lr, self.weight_decay, self.momentum = 0.0, 0.0, 1.0
        self.rule = diagnostics.CollapseRule(
            params.collapse.effective_rank_floor, params.collapse.feature_std_floor, params.collapse.patience
        )
        self.step, self.skipped, self.history, self.saved = 0, 0, list[Row](), time.monotonic()

    def state(self) -> State:
        """All that a restart needs; complete on rank 0 only, and called by every worker."""
        model, target, adamw = self.parallel.weights(self.model, self.target, self.adamw)
        about = {
            "params": self.params.model_dump(),
            "seed": self.params.seed,
            "images_seen": self.step * self.params.optimisation.global_batch_size,
            "world_size": self.parallel.world,
            "versions": versions(),
        }
        return State(
            step=self.step,
            history=self.history,
            skipped=self.skipped,
            model=model,
            target=target,
            optimizer=adamw,
            about=about,
        )

    def restore(self, state: State) -> None:
        """Continues from `state`. Every tensor must fit."""
        self.step, self.history, self.skipped = state["step"], state["history"], state["skipped"]
        weights = Weights(state["model"], state["target"], state["optimizer"])
        self.parallel.load(self.model, self.target, self.adamw, weights)

    def train(self, on_log: OnLog, on_checkpoint: Callable[[], None]) -> bool:
        """Runs to the last step; False when it ended earlier, at a checkpoint, because `stopping` said so to one of the workers.

        `on_log` is called every `log_every` steps, where quality is due and at checkpoints, unless the step was left out. Checkpoints come
        every `checkpoint_every` steps, at the last logged step before `CHECKPOINT_S` have passed since the one before, and at the end.
        All workers call both, in the same steps.

        Without any epochs one batch is looked at, and nothing changes. Raises `UnsoundError` when loss or gradient is no number, and
        ValueError when features have collapsed and `collapse.action` says fail, then after a checkpoint.
        """
        self.saved = time.monotonic()
        pace = Pace(self.params.optimisation.global_batch_size // self.parallel.world, self.device)
        if not self.steps and self.history:
            return True  # looked at before
        for batch in self.batches.steps(self.step, self.steps or 1):
            next_step = self.step + (self.steps > 0)
            checkpoint = next_step in (self.steps, 0) or next_step % self.params.checkpoint_every == 0
            quality = self.quality if self.quality and self.quality.due(next_step) else None
            due = checkpoint or next_step % self.params.log_every == 0 or next_step == 1 or quality is not None
            self.set_schedules()
            done = self.update(batch, measure=due)
            self.step = next_step
            pace.step(batch.waited)
            verdict = None
            if due and not done.left_out:
                own = pace.row(done.gradient_norm)
                row = self._row(done) | measuring.together(own, self.parallel)
                row |= quality.measure(self.shown()) if quality else {}
                checkpoint = checkpoint or self._overdue(row["seconds"])
                verdict = self._log(row, own, on_log)
            if checkpoint or done.stop or verdict:
                on_checkpoint()
                self.saved = time.monotonic()
            if verdict:
                raise ValueError(verdict)
            if done.stop:
                return self.step == self.steps
        return True

    def _log(self, row: Row, own: Row, on_log: OnLog) -> str | None:
        """Adds to the history; why training must end, if it must."""
        self.history.append(row)
        verdict = self.rule.verdict(self.history)
        row["collapsed"] = float(verdict is not None)
        on_log(row, own)
        if verdict is None or self.params.collapse.action == "warn":
            return None
        return (
            f"{verdict}; collapse.action is 'fail'. A lower optimisation.lr, a momentum optimisation.ema closer to 1 or a larger "
            f"batch often helps, below width 768 weight_init fan_in. With collapse.action warn it goes on; new params train anew"
        )

    def _overdue(self, interval: float) -> bool:
        """Whether the next logged step, `interval` seconds on, would be too late for a checkpoint on any worker's clock."""
        late = float(time.monotonic() - self.saved + interval > CHECKPOINT_S)
        return bool(self.parallel.gather(torch.tensor([late], device=self.device)).max())

    def set_schedules(self) -> None:
        """Sets the rates of the step to come."""
        if not self.steps:
            return
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
        """One step: masks, noise, targets, loss, gradients, update, moving average. `measure` asks for what the curves need."""
        if not self.steps:
            return self._look(batch)
        loss, parts = self._backward(batch, measure)
        parameters = [parameter for parameter in self.model.parameters() if parameter.grad is not None]
        norm = self.parallel.gradient_norm([parameter.grad for parameter in parameters if parameter.grad is not None])
        # One look at the device a step, and one exchange: every worker must come to the same verdict.
        told = torch.stack([loss, norm.float(), loss.new_tensor(float(self.stopping()))])
        losses, norms, stops = self.parallel.gather(told[None]).T.tolist()
        done = Step(sum(losses) / len(losses), norms[0], parts, any(stops))
        if not sound(losses, norms):
            self.skipped = Unsound(self, batch).verdict(losses, norms)
            return done._replace(left_out=True)
        if clip := self.params.optimisation.clip_norm:
            nn.utils.clip_grads_with_norm_(parameters, clip, norm)
        self.adamw.step()
        if self.target:
            update_target(self.target, self.model.encoder, self.momentum)
        return done

    def _backward(self, batch: Batch, measure: bool) -> tuple[Tensor, list[Part]]:
        """Leaves the gradients of this worker's share; its mean loss and, where asked, what each part of it shows."""
        self.adamw.zero_grad(set_to_none=True)
        share, loss, parts = len(batch.places), torch.zeros((), device=self.device), list[Part]()
        for batch_part in self.parts(batch):
            last = batch_part.places[-1] == batch.places[-1]
            with self.parallel.exchanging(self.wrapped, bool(last)):
                mean, images, chosen, targets = self.forward(batch_part)
                weighted = mean * (len(batch_part.places) / share)
                weighted.backward()  # type: ignore[no-untyped-call]
            loss = loss + weighted.detach()
            if measure:
                parts.append(measuring.part(self, images, chosen, targets))
        return loss, parts

    @torch.no_grad()
    def _look(self, batch: Batch) -> Step:
        """A step without an update."""
        losses, parts = list[Tensor](), list[Part]()
        for batch_part in self.parts(batch):
            mean, images, chosen, targets = self.forward(batch_part)
            losses.append(mean * (len(batch_part.places) / len(batch.places)))
            parts.append(measuring.part(self, images, chosen, targets))
        loss = self.parallel.gather(torch.stack(losses).sum()[None]).mean().item()
        return Step(loss, 0.0, parts, False)

    def parts(self, batch: Batch) -> Iterator[Batch]:
        """The batch in runs of at most `scale.images_at_once` images."""
        size = self.params.scale.images_at_once or len(batch.places)
        for start in range(0, len(batch.places), size):
            yield batch._replace(pixels=batch.pixels[start : start + size], places=batch.places[start : start + size])

    def forward(self, batch: Batch) -> tuple[Tensor, Tensor, Masks, objectives.Targets]:
        """Mean loss, normalised images [B, C, H, W], masks and targets of a part of the batch of the step to come."""
        params, step = self.params, self.step
        images = normalise(batch.pixels.to(self.device, non_blocking=True))
        chosen = masks.sample(params.seed, step, batch.places, self.grid, params.masks).to(self.device)
        widths = params.encoder.width, params.predictor.width
        noise = draw_noise(params.stop, params.seed, step, batch.places, chosen, *widths)
        with self.precision():
            targets = objectives.targets(params.objective, self.target, images, params.encoder.patch_size)
            loss: Tensor = self.wrapped(images, chosen, noise, targets)
        return loss, images, chosen, targets

    def precision(self) -> AbstractContextManager[Any]:
        """The numbers that layers compute with."""
        bf16 = self.params.scale.precision == "bf16"
        return torch.autocast(self.device.type, torch.bfloat16) if bf16 else nullcontext()

    def shown(self) -> VisionEncoder:
        """The encoder that goes on: the target encoder, and MAE's only one."""
        encoder: VisionEncoder = self.target or self.model.encoder
        return encoder

    def _row(self, done: Step) -> Row:
        """A point of every curve, the same on every worker."""
        return {
            "step": self.step,
            "epoch": self.step / self.batches.steps_per_epoch,
            "loss": done.loss,
            "lr": self.lr,
            "weight_decay": self.weight_decay,
            "ema": self.momentum,
            "gradient_norm": done.gradient_norm,
            **diagnostics.norms(self.model.predictor, self.params.stop, self.grid),
            **measuring.batch(done.parts, self.parallel),
            "skipped": self.skipped,
        }
