"""Schedules as pure functions of the step, equal to I-JEPA's to the last bit that matters (`tests/goldens/schedules.json`).

A step counts from 0; learning rate and weight decay are those of the reference after its scheduler's first advance. From
step `hold_after` on both stay where they are (the released ViT-H recipe of StoP, from epoch 250); None never holds.
"""

import math


def learning_rate(
    step: int,
    *,
    steps: int,
    warmup_steps: int,
    start: float,
    peak: float,
    final: float,
    hold_after: int | None = None,
) -> float:
    """Linear warm-up from `start` to `peak`, then half a cosine to `final` at the last step."""
    now = _held(step, hold_after) + 1
    if now < warmup_steps:
        return start + now / warmup_steps * (peak - start)
    progress = (now - warmup_steps) / max(1, steps - warmup_steps)
    return max(final, final + (peak - final) * 0.5 * (1.0 + math.cos(math.pi * min(1.0, progress))))


def weight_decay(step: int, *, steps: int, start: float, final: float, hold_after: int | None = None) -> float:
    """Half a cosine from `start` to `final`."""
    progress = min(1.0, (_held(step, hold_after) + 1) / steps)
    return final + (start - final) * 0.5 * (1.0 + math.cos(math.pi * progress))


def ema_momentum(step: int, *, steps: int, start: float, final: float) -> float:
    """A straight line from `start` towards `final`, reached one step after the last."""
    return start + step * (final - start) / steps


def _held(step: int, hold_after: int | None) -> int:
    return step if hold_after is None else min(step, hold_after)
