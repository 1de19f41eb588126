"""Opens files of weights from elsewhere without running what they hold."""

import hashlib
import re
import shlex
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

import torch
from safetensors import safe_open

SECTIONS: Final = ("target_encoder", "encoder", "teacher", "student", "model", "state_dict", "module")
"""Names under which published training files keep weights."""


class CheckpointFile(NamedTuple):
    """What a file holds: nested dicts with tensors at the leaves, and the metadata of safetensors."""

    path: Path
    tree: Mapping[str, Any]
    metadata: dict[str, str]

    @property
    def size(self) -> int:
        """Bytes on disk."""
        return self.path.stat().st_size

    def sha256(self) -> str:
        """Hash of the whole file."""
        with self.path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()


def open_checkpoint(path: Path) -> CheckpointFile:
    """Reads `.safetensors`, or anything else as a torch file of plain data: its code is never run.

    Raises ValueError for a file that is missing, empty, truncated, of another kind, or would need to run code.
    """
    if not path.is_file():
        kind = "a folder" if path.is_dir() else "missing"
        raise ValueError(
            f"{str(path)!r} is {kind}; an encoder's file of weights is needed here (.safetensors, .pth, .pth.tar)"
        )
    if path.stat().st_size == 0:
        raise ValueError(f"{str(path)!r} is empty (0 bytes); fetch it again")
    return _safetensors(path) if path.suffix == ".safetensors" else _pickled(path)


def _safetensors(path: Path) -> CheckpointFile:
    try:
        with safe_open(path, "pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a dict
            return CheckpointFile(path, tensors, file.metadata() or {})
    except Exception as error:  # safetensors raises its own and OS errors alike
        raise ValueError(
            f"{str(path)!r} is not a readable safetensors file ({error}); fetch it again, or give it the ending of what it is"
        ) from error


def _pickled(path: Path) -> CheckpointFile:
    try:
        # Only the zip format of torch 1.6 and later can be mapped; a training file is many times its encoder.
        tree = torch.load(path, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(path))
    except (
        Exception
    ) as error:  # bytes from anywhere raise anything: KeyError, EOFError, UnpicklingError, RuntimeError …
        raise ValueError(_told(path, error)) from error
    if not isinstance(tree, Mapping) or not all(isinstance(name, str) for name in tree):
        raise ValueError(
            f"{str(path)!r} holds a {type(tree).__name__}, not weights by name; "
            "save a state dict: torch.save(encoder.state_dict(), …)"
        )
    return CheckpointFile(path, tree, {})


def _told(path: Path, error: Exception) -> str:
    refused = re.search(r"GLOBAL (\S+)", str(error))
    if refused is None:
        return (
            f"{str(path)!r} is no file of plain tensors that torch can read ({type(error).__name__}): it is truncated, damaged, "
            "a TorchScript archive or of another kind; fetch it again, or save its state dict"
        )
    wants = f"{str(path)!r} holds a Python object beside its tensors, {refused[1]}, and was not opened: making it may run code."
    if "is blocked" in str(error):
        return f"{wants} No file of weights needs this one, so the file is probably an attack; do not open it"
    return f"{wants} If you trust whoever wrote the file, write one with its tensors only, and use that:\n{_cleaning(path)}"


def _cleaning(path: Path) -> str:
    """A shell command that runs the file's code once and keeps its weights in a new file."""
    source, target = str(path), f"{path}.clean.pth"
    code = (
        f"import torch; d = torch.load({source!r}, map_location='cpu', weights_only=False); "
        "d = d.state_dict() if hasattr(d, 'state_dict') else d; "
        f"torch.save({{k: v for k, v in d.items() if torch.is_tensor(v) or k in {SECTIONS}}}, {target!r})"
    )
    return shlex.join(["python", "-c", code])
