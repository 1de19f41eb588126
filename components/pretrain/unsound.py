"""A step whose loss or gradient is no number: left out within `optimisation.skip_budget`, else the end, with all that explains it."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from components.pretrain.batches import Batch

if TYPE_CHECKING:
    from components.pretrain.loop import Trainer

NAMED = 5
"""Images that the message names."""


class UnsoundError(ValueError):
    """Loss or gradient is no number. `dump` has the worker's share of the step: pixels, places, images, losses of single images."""

    def __init__(self, message: str, step: int, dump: dict[str, Tensor]) -> None:
        super().__init__(message)
        self.step, self.dump = step, dump


def sound(losses: Sequence[float], norms: Sequence[float]) -> bool:
    """Whether all losses and gradient norms are numbers."""
    return all(map(math.isfinite, (*losses, *norms)))


class Unsound:
    """One such step on one worker. All workers come here in the same step, whichever has the fault."""

    def __init__(self, trainer: "Trainer", batch: Batch) -> None:
        self._trainer, self._batch = trainer, batch

    def verdict(self, losses: Sequence[float], norms: Sequence[float]) -> int:
        """The number of steps that are left out now. Raises `UnsoundError` when that is one more than `skip_budget`."""
        trainer, budget = self._trainer, self._trainer.params.optimisation.skip_budget
        skipped = trainer.skipped + 1
        what = self._what(losses, norms)
        if skipped <= budget:
            trainer.adamw.zero_grad(set_to_none=True)
            return skipped
        dump = self._dump()
        left_out = f", after {trainer.skipped} that were left out" if trainer.skipped else ""
        message = f"{what}{left_out}; {self._last()}. {self._named(dump)}. Lower optimisation.lr, or set optimisation.clip_norm"
        raise UnsoundError(message, trainer.step + 1, dump)

    def _what(self, losses: Sequence[float], norms: Sequence[float]) -> str:
        loss = next((loss for loss in losses if not math.isfinite(loss)), None)
        norm = next((norm for norm in norms if not math.isfinite(norm)), math.nan)
        name = f"gradient norm is {norm}" if loss is None else f"loss is {loss}"
        return f"{name} at step {self._trainer.step + 1} (lr {self._trainer.lr:.3g})"

    def _last(self) -> str:
        history = self._trainer.history
        if not history:
            return "no step before it was logged"
        return f"the last finite one logged was {history[-1]['loss']:.4f} at step {history[-1]['step']:.0f}"

    def _dump(self) -> dict[str, Tensor]:
        """With the loss of each image alone, which masks, noise and weights of this step still give again."""
        trainer, batch = self._trainer, self._batch
        alone = list[float]()
        with torch.no_grad():
            for place in range(len(batch.places)):
                one: Any = batch._replace(
                    pixels=batch.pixels[place : place + 1], places=batch.places[place : place + 1]
                )
                alone.append(trainer.forward(one)[0].item())
        images = torch.from_numpy(trainer.batches.images(trainer.step))
        return {"pixels": batch.pixels, "places": batch.places, "images": images, "losses": torch.tensor(alone)}

    def _named(self, dump: dict[str, Tensor]) -> str:
        wrong = ~dump["losses"].isfinite()
        some = bool(wrong.any()) and not bool(wrong.all())
        indices = dump["images"][wrong if some else slice(None), 1].tolist()
        more = f" and {len(indices) - NAMED} more" if len(indices) > NAMED else ""
        names = ", ".join(self._trainer.batches.path(index) for index in indices[:NAMED]) + more
        return f"Alone, {names} give no number either" if some else f"Its images (here): {names}"
