"""Checkpoints of a run: written beside training, whole or not there, checked when they are read.

`<folder>/checkpoints/step-00000200/` holds `state.safetensors` and `checkpoint.json` with its size and sha256. It is written under
another name and renamed once it is on the disk. One process writes: that of rank 0.
"""

import hashlib
import json
import os
import shutil
import threading
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from components import progress
from components.pretrain import state as states
from components.pretrain.history import FULL
from components.pretrain.state import State
from components.stage import remove, write_json

FOLDER, STATE, ABOUT = "checkpoints", "state.safetensors", "checkpoint.json"
WRITING, DAMAGED = ".writing-", "damaged-"
AGAIN_S = 1.0, 5.0, 25.0
"""Before each further try to write to a disk that has answered with an error: one over the network may be away for a moment."""


class Checkpoints:
    """Saves states in the background: `save` returns once the state is copied, and the next one waits until it is written.

    The `keep_last` newest ones stay, and those at multiples of `keep_every` steps.
    """

    def __init__(self, folder: Path, keep_last: int, keep_every: int) -> None:
        self._folder, self._last, self._every = folder / FOLDER, keep_last, keep_every
        self._buffers: dict[str, Tensor] = {}
        self._thread: threading.Thread | None = None
        self._error: Exception | None = None
        self._folder.mkdir(parents=True, exist_ok=True)

    def save(self, state: State) -> None:
        """Copies the state, whose tensors training goes on to change, and has it written. Raises what went wrong with the one before.

        A full disk is a ValueError that says so, another fault of the disk an OSError.
        """
        self.wait()
        copied = {name: self._copied(name, tensor) for name, tensor in states.flat(state).items()}
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        kept = State(**{**state, "history": [dict(row) for row in state["history"]]})
        self._thread = threading.Thread(target=self._write, args=(kept, copied))
        self._thread.start()

    def wait(self) -> None:
        """Returns when the last state is written. Raises what went wrong with it."""
        self.join()
        self.told()

    def told(self) -> None:
        """Raises what has gone wrong so far, without waiting."""
        if self._error:
            error, self._error = self._error, None
            raise error

    def join(self) -> None:
        """Returns when nothing is being written."""
        if self._thread:
            self._thread.join()
            self._thread = None

    def _copied(self, name: str, tensor: Tensor) -> Tensor:
        """In memory that is kept from one checkpoint to the next: page-locked where it comes from a GPU, which then need not wait."""
        if name not in self._buffers:
            self._buffers[name] = torch.empty_like(tensor, device="cpu", pin_memory=tensor.is_cuda)
        return self._buffers[name].copy_(tensor, non_blocking=tensor.is_cuda)

    def _write(self, state: State, tensors: dict[str, Tensor]) -> None:
        path = self._folder / f"step-{state['step']:08d}"
        try:
            self._try(path, state, tensors)
            self._prune(self._last)
        except OSError as error:
            told = f"the checkpoint of step {state['step']} cannot be written to {path}: {error}"
            goes_on = f"training goes on from {_after(self._folder)}"
            if error.errno in FULL:
                needed = sum(tensor.nbytes for tensor in tensors.values()) / 1e9
                room = f"It takes {needed:.3g} GB, {_free(path)}; make room and start again"
                self._error = ValueError(f"{told}. {room}: {goes_on}")
            else:
                self._error = OSError(error.errno, f"{told}, {1 + len(AGAIN_S)} times; {goes_on}")
        except Exception as error:  # raised where training waits for it
            self._error = error

    def _try(self, path: Path, state: State, tensors: dict[str, Tensor]) -> None:
        """Writes it, if need be to a disk that has to be emptied, or waited for, first."""
        for pause in (*AGAIN_S, None):
            try:
                return _write(path, state, tensors)
            except OSError as error:
                if error.errno in FULL:
                    self._prune(1)  # room is made of older ones, all but the newest
                    return _write(path, state, tensors)
                if pause is None:
                    raise
                time.sleep(pause)

    def _prune(self, last: int) -> None:
        for path in steps(self._folder)[:-last]:
            if not self._every or step_of(path) % self._every:
                gone = path.with_name(f".{path.name}")
                path.rename(gone)  # in one step, so that no half of it is ever read
                shutil.rmtree(gone)


def steps(folder: Path) -> list[Path]:
    """The checkpoints in a folder of them, oldest first."""
    return sorted(folder.glob("step-*"))


def step_of(checkpoint: Path) -> int:
    """The step a checkpoint was made after."""
    return int(checkpoint.name.rpartition("-")[2])


def newest(folder: Path) -> Path | None:
    """The newest whole checkpoint of the run in `folder`; None where it has none yet.

    One that is damaged is told, and set aside under another name. Raises ValueError where all are, each time: training does not start
    from zero by itself. And where the disk does not let one be read, which says nothing about it.
    """
    home = folder / FOLDER
    fell_back = False
    for path in reversed(steps(home)):
        fault = check(path)
        if fault is None:
            if fell_back:
                progress.show(f"WARNING: training goes on from the checkpoint before, of step {step_of(path)}")
            return path
        aside = path.with_name(DAMAGED + path.name)
        remove(aside)
        path.rename(aside)
        fell_back = True
        progress.show(f"WARNING: the checkpoint {path} is damaged: {fault}; it stays as {aside.name}")
    if damaged := sorted(path.name.removeprefix(DAMAGED) for path in home.glob(f"{DAMAGED}*")):
        raise ValueError(
            f"no checkpoint in {home} is whole, {', '.join(damaged)} are damaged; bring one back from a backup, or remove {folder} to "
            f"begin at step 0"
        )
    return None


def check(checkpoint: Path) -> str | None:
    """What is wrong with a checkpoint, None for nothing: its bytes are those that were written.

    Raises ValueError where the disk does not let it be read.
    """
    try:
        about = json.loads((checkpoint / ABOUT).read_text(encoding="utf-8"))
        size = (checkpoint / STATE).stat().st_size
        if size != about["bytes"]:
            return f"{STATE} has {size} bytes and not {about['bytes']}"
        if _sha256(checkpoint / STATE) != about["sha256"]:
            return f"the sha256 of {STATE} is another than was written"
    except (FileNotFoundError, ValueError, KeyError) as error:
        return f"{type(error).__name__}: {error}"
    except OSError as error:
        raise ValueError(
            f"the checkpoint {checkpoint} cannot be read now: {error}; see to its disk and start again. If it is lost, rename it to "
            f"{DAMAGED}{checkpoint.name}: training goes on from the one before"
        ) from error
    return None


def clear(folder: Path) -> None:
    """Removes what writers that were killed have left."""
    for path in (folder / FOLDER).glob(".*"):
        remove(path)


def load(checkpoint: Path) -> State:
    """The state in a checkpoint, its tensors mapped."""
    return states.read(checkpoint / STATE)


def _write(path: Path, state: State, tensors: dict[str, Tensor]) -> None:
    temporary = path.with_name(WRITING + path.name)
    remove(temporary)
    temporary.mkdir()
    try:
        states.write(temporary / STATE, state, tensors)
        about: dict[str, Any] = {
            "step": state["step"],
            "bytes": (temporary / STATE).stat().st_size,
            "sha256": _sha256(temporary / STATE),
            **state["about"],
        }
        write_json(temporary / ABOUT, about)
        for name in (STATE, ABOUT, "."):
            _sync(temporary / name)
        remove(path)  # of a step that was computed again after a restart from before it
        temporary.rename(path)
        _sync(path.parent)
    except OSError:
        remove(temporary)
        raise


def _sync(path: Path) -> None:
    """On the disk, and not only on its way: a rename must not survive a crash that the bytes do not."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _free(path: Path) -> str:
    return f"{shutil.disk_usage(path.parent).free / 1e9:.3g} GB are free"


def _after(folder: Path) -> str:
    left = steps(folder)
    return f"step {step_of(left[-1])}" if left else "its start"
