"""The members of an ablation with all their params, checked before the first of them starts."""

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from components.stage import contract, digest, validate
from flows import preflight, presets
from flows.ablations import cells, scope
from flows.ablations.cells import Cell
from flows.ablations.sweep import Sweep

Sections = dict[str, dict[str, Any]]


@dataclass(frozen=True)
class Member:
    """One experiment: a combination of the axes with one seed."""

    name: str
    """Of its run: of the row in MLflow, the DVC experiment, the workspace and the logs."""
    cell: Cell
    seed: int
    sections: Sections
    """Complete and validated params by stage word."""


class Faults:
    """What is wrong, each fault once with all members it is of, so that one message tells everything."""

    def __init__(self) -> None:
        self._members: dict[str, list[str]] = {}

    def add(self, text: str, member: str = "") -> None:
        """Notes `text`; of the whole ablation where no member is named."""
        self._members.setdefault(text, [])
        if member:
            self._members[text].append(member)

    def tell(self) -> None:
        """Raises ValueError unless there is no fault."""
        told = []
        for text, members in self._members.items():
            more = f" and {len(members) - 3} more" if len(members) > 3 else ""
            told.append(f"{', '.join(members[:3])}{more}: {text}" if members else text)
        if told:
            raise ValueError("\n".join(told))


def plan(root: Path, ablation: str, definition: Sweep, needed: Mapping[str, set[str]]) -> list[Member]:
    """The members in order, cell by cell, their params composed and validated; `needed` from `scope.needs`.

    Raises one ValueError with the faults of all members: an unknown preset, path, stage or metric, a value that a contract
    refuses, names or values that two members share.
    """
    faults, members = Faults(), list[Member]()
    composed: dict[tuple[str, ...], Sections] = {}
    for cell in cells.cells(definition):
        for seed in definition.seeds:
            name = f"{ablation}-{cell.label}-seed-{seed}"
            try:
                if cell.presets not in composed:
                    composed[cell.presets] = presets.overlaid(root, [*definition.base, *cell.presets])
                sections = _sections(
                    composed[cell.presets],
                    {**definition.values, **cell.values, **dict.fromkeys(definition.seeded, seed)},
                )
            except ValueError as error:
                for line in str(error).splitlines():
                    faults.add(line, name)
                continue
            members.append(Member(name, cell, seed, sections))
            for fault in scope.faults(definition.stages, definition.metrics, sections, needed):
                faults.add(fault, name)
    for fault in _twice(members):
        faults.add(fault)
    faults.tell()
    return members


def check_raw(root: Path, members: Sequence[Member]) -> None:
    """ValueError naming the raw data of any member that isn't there."""
    faults = Faults()
    for member in members:
        try:
            preflight.check_raw(root, member.sections.get("prepare", {"datasets": {}}))
        except ValueError as error:
            faults.add(str(error), member.name)
    faults.tell()


def _sections(below: Sections, values: Mapping[str, Any]) -> Sections:
    """Complete params: `values` by path over those `below`, validated. Raises one ValueError with all faults."""
    params, faults = copy.deepcopy(below), list[str]()
    for path, value in values.items():
        try:
            _put(params, path, value)
        except ValueError as error:
            faults.append(str(error))
    for word, section in params.items():
        try:
            params[word] = validate(contract(word).params, section, word).model_dump()
        except ValueError as error:
            faults += str(error).splitlines()
    if faults:
        raise ValueError("\n".join(faults))
    return params


def _put(params: Sections, path: str, value: Any) -> None:
    """Replaces what stands at `path`."""
    place: Any = params
    *above, last = path.split(".")
    for depth, part in enumerate([*above, last]):
        if not isinstance(place, dict) or part not in place:
            where = ".".join(path.split(".")[:depth]) or "the params"
            legal = f"has {', '.join(map(str, place))}" if isinstance(place, dict) else "holds a value"
            raise ValueError(f"{path} is no parameter: {where} {legal}; take one of its names, as params/ has them")
        place = place if depth == len(above) else place[part]
    if not above:
        raise ValueError(f"{path} is a whole stage; name one of its parameters, as in {path}.{next(iter(place[last]))}")
    place[last] = copy.deepcopy(value)


def _twice(members: Sequence[Member]) -> list[str]:
    faults, names, values = list[str](), dict[str, Member](), dict[str, Member]()
    for member in members:
        first = values.setdefault(digest(member.sections), member)
        if first is not member:
            pair = (first.cell.label, member.cell.label) if first.seed == member.seed else (first.name, member.name)
            faults.append(
                f"{pair[0]} and {pair[1]} have the same values, so that one would be computed twice; leave one out"
                + ("" if first.seed == member.seed else ", or name in `seeded` what takes the seed")
            )
        elif names.setdefault(member.name, member) is not member:
            faults.append(f"two combinations are named {member.cell.label}; give them names in `members`")
    return faults
