"""Images decoded ahead of what consumes them: by threads of this process, or by processes of their own."""

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import get_context, parent_process
from multiprocessing.context import BaseContext
from threading import Thread
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from components.images.transforms import Pixels


def threaded(
    plan: Iterable[NDArray[np.int64]], reader: Callable[[NDArray[np.int64]], Callable[[int], Pixels]], threads: int
) -> Iterator[tuple[NDArray[np.int64], Tensor]]:
    """Each batch of `plan` [B, …] with its uint8 pixels [B, H, W, 3], read while the one before is worked on.

    `reader` makes of a batch what gives the pixels of its i-th image. An exception of an image comes out with its batch.
    """
    pool, ahead = ThreadPoolExecutor(threads), deque[tuple[NDArray[np.int64], Iterator[Pixels]]]()
    try:
        for batch in plan:
            ahead.append((batch, pool.map(reader(batch), range(len(batch)))))
            if len(ahead) > 1:
                yield _stacked(*ahead.popleft())
        while ahead:
            yield _stacked(*ahead.popleft())
    finally:
        pool.shutdown(cancel_futures=True)


def _stacked(batch: NDArray[np.int64], pixels: Iterator[Pixels]) -> tuple[NDArray[np.int64], Tensor]:
    return batch, torch.from_numpy(np.stack(list(pixels)))


def loader(dataset: Dataset[Any], processes: int, gpu: bool, **how: Any) -> DataLoader[Any]:
    """torch's loader over `dataset` with so many processes; 0 reads in this one. `gpu` pins the memory of what it gives.

    A process computes on one thread and inherits from this one only what `dataset` pickles to. Its errors come out of the iterator; that
    it was killed comes out as a RuntimeError within seconds (`alive` says it in full).
    """
    if processes:
        how |= {"multiprocessing_context": _server(type(dataset).__module__), "persistent_workers": True}
        how["worker_init_fn"] = _end_with_consumer
    # Its own generator, since a loader draws a seed from torch's global one, though nothing here uses it.
    return DataLoader(dataset, num_workers=processes, pin_memory=gpu, generator=torch.Generator(), **how)


def _server(module: str) -> BaseContext:
    """Processes forked from one that has loaded `module` and done nothing: they share its code's memory, which spawned ones don't.

    Forks of this process, with its threads and its GPU, could hang.
    """
    context = get_context("forkserver")
    context.set_forkserver_preload(["__main__", module])
    return context


def _end_with_consumer(_: int) -> None:
    """In a process that decodes: it ends when the one it decodes for does, killed or not.

    torch watches the parent, which is the server; and the server lives as long as one of its forks.
    """
    Thread(target=_wait_and_end, daemon=True).start()


def _wait_and_end() -> None:
    consumer = parent_process()
    assert consumer is not None
    consumer.join()
    os._exit(1)


def alive(batches: Iterable[Any], field: str) -> Iterator[Any]:
    """What a `loader` gives; a process of it that was killed is told with the `field` that says how many there are."""
    try:
        yield from batches
    except (
        RuntimeError,
        ConnectionError,
        EOFError,
        FileNotFoundError,
    ) as error:  # the latter where it was killed half-way through
        if isinstance(error, RuntimeError) and "DataLoader worker (pid" not in str(error) or "Caught " in str(error):
            raise  # an error of what it read, or another one of torch's
        raise RuntimeError(
            f"{error or type(error).__name__}: a process that decodes images was killed. Most often memory ran out, or shared memory "
            f"(/dev/shm), where each keeps two batches: see the kernel's log, lower {field}, or give the container a larger shm_size"
        ) from error
