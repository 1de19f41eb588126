"""This machine's processor as a device, measured: the best of many matrix products and copies in about a second."""

import os
import time
from collections.abc import Callable

import torch

from components.preflight.devices import Device

SIDE = 768
"""Of the square matrices: large enough for the peak, over in a few milliseconds, between two turns of other work."""
SECONDS = 0.7
"""How long each figure is looked for; other work on the machine spoils single tries."""


def this_machine(threads: int, workers: int) -> Device:
    """A worker's share with `threads` of its own: FLOP/s in both precisions, and bytes moved by a copy, there and back."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        rates = [_rate(torch.bfloat16), _rate(torch.float32)]
        source = torch.ones(2**25)
        copied = torch.empty_like(source)
        bandwidth = 2 * 4 * source.numel() / _fastest(lambda: copied.copy_(source))
    finally:
        torch.set_num_threads(before)
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / workers
    return Device("cpu", "cpu", rates[0], rates[1], memory, bandwidth)


def _rate(dtype: torch.dtype) -> float:
    a, b = torch.ones(SIDE, SIDE, dtype=dtype), torch.ones(SIDE, SIDE, dtype=dtype)
    return 2 * SIDE**3 / _fastest(lambda: a @ b)


def _fastest(work: Callable[[], object]) -> float:
    best, end = float("inf"), time.perf_counter() + SECONDS
    while time.perf_counter() < end:
        start = time.perf_counter()
        work()
        best = min(best, time.perf_counter() - start)
    return best
