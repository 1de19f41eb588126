"""The combinations of an ablation's axes, and what they are called."""

import itertools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from components.stage import digest
from flows import preflight
from flows.ablations.sweep import Axes, Sweep

PRESETS = "presets"  # the axis that is no parameter
LONGEST = 40  # characters of one value in a name


@dataclass(frozen=True)
class Cell:
    """One combination of the axes; its members differ by their seed alone."""

    label: str
    """Its name in those of its members."""
    presets: tuple[str, ...]
    values: Mapping[str, Any]
    """By path."""
    shown: Mapping[str, Any]
    """By the axis' short name, for a table: numbers as they are, else text."""


def cells(sweep: Sweep) -> list[Cell]:
    """The combinations of the grid, the last axis fastest, then those given one by one; the base alone where there are none."""
    combinations: list[tuple[str, Axes]] = []
    if sweep.grid or not sweep.members:
        combinations = [
            ("", dict(zip(sweep.grid, chosen, strict=True))) for chosen in itertools.product(*sweep.grid.values())
        ]
    combinations += sweep.members.items()
    short = _short([axis for _, combination in combinations for axis in combination])
    return [_cell(name, combination, short) for name, combination in combinations]


def _cell(name: str, combination: Axes, short: Mapping[str, str]) -> Cell:
    presets = _presets(combination.get(PRESETS, ()))
    values = {axis: value for axis, value in combination.items() if axis != PRESETS}
    parts = [f"{short[axis]}-{legal(value)}" for axis, value in values.items()] + [legal(preset) for preset in presets]
    shown = {short[axis]: _shown(value) for axis, value in values.items()}
    if PRESETS in combination:
        shown[PRESETS] = "+".join(presets) or "none"
    return Cell(legal(name) if name else "-".join(parts) or "base", presets, values, shown)


def _presets(value: Any) -> tuple[str, ...]:
    """`a+b`, [a, b] or '' as the names of overlays."""
    parts = value.split("+") if isinstance(value, str) else value if isinstance(value, list | tuple) else [value]
    return tuple(str(part).strip() for part in parts if str(part).strip())


def _shown(value: Any) -> Any:
    return value if isinstance(value, int | float) and not isinstance(value, bool) else _text(value)


def _text(value: Any) -> str:
    """One text for one value: a form sends 0 where a file has 0.0."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return ", ".join(map(_text, value))
    return f"{value:.12g}" if isinstance(value, int | float) else str(value)


def legal(value: Any) -> str:
    """A value as part of a run's name; where letters had to give way, four hexadecimal digits of it keep it apart from others."""
    text = re.sub("^-(?=[0-9.])", "minus", _text(value))  # a name has no two dashes in a row
    name = re.sub("[^A-Za-z0-9._-]", "", preflight.legal_name(text))[:LONGEST].strip("._-")
    return name if name and name == text else "-".join([*([name] if name else []), digest(_text(value))[:4]])


def _short(axes: Sequence[str]) -> dict[str, str]:
    """The last words of each path, as few as keep it apart from the others: `noise_std`, or `optimisation.epochs`."""
    paths = {axis: axis.split(".") for axis in dict.fromkeys(axes) if axis != PRESETS}
    shortened = {}
    for axis, parts in paths.items():
        others = [other for name, other in paths.items() if name != axis]
        taken = next(
            (count for count in range(1, len(parts)) if all(other[-count:] != parts[-count:] for other in others)),
            len(parts),
        )
        shortened[axis] = ".".join(parts[-taken:])
    return shortened
