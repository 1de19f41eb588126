"""The one source of randomness: draws that are a pure function of integer keys and places.

A place is an image's index in the dataset or its position in the global batch. No draw depends on how many were made
before it or on the worker's rank, so masks, noise and crops are the same for any number of workers.
"""

import hashlib
from collections.abc import Callable

import torch
from torch import Tensor

GROUP = 16
"""Consecutive places that share one generator: seeding one per image costs three times as much on a CPU."""
LONG = 4096
"""Numbers for one place from which on a CPU seeds for each: that costs nothing beside them, and a small batch draws no more than
it needs. On a GPU launches count, and groups stay."""


def key(*parts: int | str) -> int:
    """A 63-bit key of a purpose and its coordinates, such as `key(seed, "noise", step)`."""
    text = "\x1f".join(f"{type(part).__name__}:{part}" for part in parts)
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little") >> 1


def uniform(purpose: int, places_B: Tensor, count: int) -> Tensor:
    """`count` uniform draws in [0, 1) for each of the int64 `places_B`: float32 [B, count], all on the CPU."""
    return _draws(torch.rand, purpose, places_B, count, torch.device("cpu"))


def normal(purpose: int, places_B: Tensor, count: int, device: torch.device | None = None) -> Tensor:
    """`count` standard normal draws for each of the int64 `places_B` (on the CPU): float32 [B, count] on `device`.

    A GPU draws other numbers than a CPU for the same key.
    """
    return _draws(torch.randn, purpose, places_B, count, device or torch.device("cpu"))


def _draws(draw: Callable[..., Tensor], purpose: int, places_B: Tensor, count: int, device: torch.device) -> Tensor:
    size = 1 if device.type == "cpu" and count >= LONG else GROUP
    groups, which_B = torch.unique(places_B // size, return_inverse=True)
    generator = torch.Generator(device)
    drawn = torch.stack(
        [
            draw(size, count, generator=generator.manual_seed(key(purpose, group)), device=device)
            for group in groups.tolist()
        ]
    )
    return drawn[which_B.to(device), (places_B % size).to(device)]
