"""Checkpoints after each epoch, so that a finetuning that was killed goes on where it was, to the bit on a CPU.

A folder holds `checkpoint.pt` (`loop.State` with the best epoch so far) and `best-<epoch>.pt` (the weights of that epoch, which change
seldom). A checkpoint names its best file, and older ones go only after it is in place: any moment is a good one to be killed.
"""

from pathlib import Path
from typing import Any, NamedTuple

import torch

from components.finetune.loop import State
from components.stage import atomic


class Best(NamedTuple):
    """The best epoch so far, from 1; 0 before any. `top1` is its percent right of the judging images."""

    epoch: int
    top1: float


class Checkpoints:
    """The checkpoints of one finetuning in `folder`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def load(self) -> tuple[State, Best] | None:
        """The newest state, on the CPU, and the best epoch up to it; None at the start."""
        path = self._folder / "checkpoint.pt"
        if not path.exists():
            return None
        state: State = torch.load(path, map_location="cpu", weights_only=True)
        return state, Best(*state.pop("best"))

    def save(self, state: State, best: Best, model: dict[str, Any]) -> None:
        """Keeps `state`, and the weights `model` if this epoch is the best one."""
        kept = self._best(best.epoch)
        if best.epoch == len(state["history"]):
            _write(kept, model)
        _write(self._folder / "checkpoint.pt", {**state, "best": tuple(best)})
        for path in self._folder.glob("best-*.pt"):
            if path != kept:
                path.unlink()

    def best(self, best: Best) -> dict[str, Any]:
        """The weights of the best epoch, on the CPU."""
        weights: dict[str, Any] = torch.load(self._best(best.epoch), map_location="cpu", weights_only=True)
        return weights

    def _best(self, epoch: int) -> Path:
        return self._folder / f"best-{epoch:05d}.pt"


def _write(path: Path, value: Any) -> None:
    with atomic(path) as temporary:
        torch.save(value, temporary)
