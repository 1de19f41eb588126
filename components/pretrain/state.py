"""The whole state of training as one safetensors file: every tensor of a restart, the curves so far, and what it is a state of.

Nothing in it is code, so that reading it runs none; any program that reads safetensors can take the weights out of it.
"""

import json
import math
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, TypedDict

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

FORMAT = "stop pretraining state 1"
LIBRARIES = ("torch", "torchvision", "timm", "numpy", "pyarrow", "pydantic", "safetensors", "ray")

Row = Mapping[str, float]


class State(TypedDict):
    """All that a restart needs. Weights are whole tensors, whatever the number of workers and the sharding."""

    step: int
    history: list[dict[str, float]]
    """The logged rows so far; a value that a step has not is not in its row."""
    skipped: int
    """Steps that were left out because loss or gradient was no number."""
    model: dict[str, Tensor]
    target: dict[str, Tensor] | None
    optimizer: dict[str, Any]
    """As torch's `Optimizer.state_dict()`."""
    about: dict[str, Any]
    """What it is a state of: params, seed, images seen, world size, versions of libraries."""


def versions() -> dict[str, str]:
    """The installed versions of what decides numbers; those that are not installed are left out."""
    found = {}
    for name in LIBRARIES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def other_versions(state: State) -> list[str]:
    """Libraries that are others now than those that made the state, as `torch 2.13.0 there, 2.14.1 here`."""
    there, here = state["about"]["versions"], versions()
    return [
        f"{name} {there.get(name, 'nothing')} there, {here.get(name, 'nothing')} here"
        for name in LIBRARIES
        if there.get(name) != here.get(name)
    ]


def flat(state: State) -> dict[str, Tensor]:
    """The state's tensors by the names they have in the file."""
    tensors = {f"model/{name}": tensor for name, tensor in state["model"].items()}
    tensors |= {f"target/{name}": tensor for name, tensor in (state["target"] or {}).items()}
    for index, moments in state["optimizer"]["state"].items():
        tensors |= {f"optimizer/{index}/{name}": tensor for name, tensor in moments.items()}
    return tensors


def write(path: Path, state: State, tensors: Mapping[str, Tensor]) -> None:
    """Writes `state`, whose tensors are `tensors`, by the names of `flat`, on the CPU. OSError where the disk is full."""
    columns = list(dict.fromkeys(name for row in state["history"] for name in row))
    rows = [[row.get(name, math.nan) for name in columns] for row in state["history"]]
    curves = torch.tensor(rows, dtype=torch.float64).reshape(len(rows), len(columns))
    about = {
        "format": FORMAT,
        "step": state["step"],
        "skipped": state["skipped"],
        "history": columns,
        "target": state["target"] is not None,
        "param_groups": state["optimizer"]["param_groups"],
        "about": state["about"],
    }
    try:
        save_file({**tensors, "history": curves}, path, {"state": json.dumps(about)})
    except SafetensorError as error:  # its envelope of the system's error
        raise OSError(*_number(error), str(path)) from error


def read(path: Path, device: str = "cpu") -> State:
    """The state in the file, its tensors mapped and read when they are used. Raises ValueError for a file that is none."""
    try:
        with safe_open(path, framework="pt", device=device) as file:
            about = json.loads((file.metadata() or {}).get("state", "{}"))
            if about.get("format") != FORMAT:
                raise ValueError(
                    f"{str(path)!r} is no training state of this program: its format is {about.get('format')!r} and not {FORMAT!r}"
                )
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - no mapping
    except (SafetensorError, OSError) as error:
        raise ValueError(f"{str(path)!r} cannot be read as a training state: {error}") from error
    moments: dict[int, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        if name.startswith("optimizer/"):
            _, index, kind = name.split("/")
            moments.setdefault(int(index), {})[kind] = tensor
    return State(
        step=about["step"],
        history=_rows(about["history"], tensors["history"]),
        skipped=about["skipped"],
        model=_part(tensors, "model/"),
        target=_part(tensors, "target/") if about["target"] else None,
        optimizer={"state": dict(sorted(moments.items())), "param_groups": about["param_groups"]},
        about=about["about"],
    )


def _part(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}


def _rows(columns: Sequence[str], curves: Tensor) -> list[dict[str, float]]:
    return [
        {name: value for name, value in zip(columns, row, strict=True) if not math.isnan(value)}
        for row in curves.tolist()
    ]


def _number(error: SafetensorError) -> tuple[int, str]:
    """The system's number of an error such as `I/O error: No space left on device (os error 28)`, which comes as text only."""
    text = str(error)
    found = text.rpartition("os error ")[2].partition(")")[0]
    return (int(found) if found.isdigit() else 5), text
