"""What an ablation is: a sweep over any parameters, as a file of params/ablations and as the form of its flow."""

import inspect
import itertools
from collections.abc import Callable, Mapping
from itertools import takewhile
from pathlib import Path
from typing import Annotated, Any, ParamSpec, TypeVar

from pydantic import Field

from components.stage import Params, read_yaml, validate
from flows import preflight

P = ParamSpec("P")
R = TypeVar("R")
Axes = dict[str, Any]


class Sweep(Params):
    """Axes over a base, seeds, and what to run and show of each member."""

    base: list[str] = Field(
        description="Presets, names of params/presets/*.yaml, over the params files: what all members share."
    )
    values: Axes = Field(default={}, description="Values by parameter path that all members share, over the base.")
    grid: dict[str, list[Any]] = Field(
        default={},
        description="Axes, of which every combination is taken: a parameter's path with its values, as in "
        '{"pretrain.stop.noise_std": [0.0, 0.25]}, or `presets` with names of overlays, several joined by +, none as "".',
    )
    members: dict[str, Axes] = Field(
        default={},
        description="Combinations one by one, beside those of the grid: by a name of your choice, one value for each axis.",
    )
    seeds: list[Annotated[int, Field(ge=0)]] = Field(
        min_length=1, description="Each combination is run once with each."
    )
    seeded: list[str] = Field(description="Paths of the parameters that take the seed, such as pretrain.seed.")
    stages: list[str] = Field(description="Stages to run in each member, with what they need. None means all.")
    metrics: list[str] = Field(
        min_length=1, description="What the figure and the table show, by MLflow's names: linear_probe/digits/top1."
    )
    members_at_a_time: int = Field(ge=1, le=64, description="How many members run side by side.")
    parallel: int = Field(ge=1, le=64, description="Most stages that run at a time in one member.")


def parameters(function: Callable[P, R]) -> Callable[P, R]:
    """Gives a flow's function the fields of a definition as parameters, behind its own first one and before its others."""
    keyword, given = inspect.Parameter.KEYWORD_ONLY, list(inspect.signature(function).parameters.values())
    own = [parameter.replace(kind=keyword) for parameter in given if parameter.kind != inspect.Parameter.VAR_KEYWORD]
    fields = [
        inspect.Parameter(
            name,
            keyword,
            default=inspect.Parameter.empty if field.is_required() else field.default,
            annotation=Annotated[field.annotation, field],
        )
        for name, field in Sweep.model_fields.items()
    ]
    function.__signature__ = inspect.Signature([own[0], *fields, *own[1:]])  # type: ignore[attr-defined]
    about = "".join(f"\n        {name}: {field.description}" for name, field in Sweep.model_fields.items())
    function.__doc__ = f"{function.__doc__}{about}\n    "
    return function


def folder(root: Path) -> Path:
    """Where the definitions are."""
    return root / "params" / "ablations"


def names(root: Path) -> list[str]:
    """The ablations that have a definition."""
    return sorted(path.stem for path in folder(root).glob("*.yaml"))


def values(root: Path, name: str) -> dict[str, Any]:
    """The definition of `name` as its file holds it. Raises ValueError for an unknown name."""
    if name not in names(root):
        raise ValueError(f"ablation is {name!r}; those in params/ablations are: {', '.join(names(root)) or 'none'}")
    return read_yaml(folder(root) / f"{name}.yaml")


def description(root: Path, name: str) -> str:
    """What the comment at the top of the definition says."""
    lines = (folder(root) / f"{name}.yaml").read_text(encoding="utf-8").splitlines()
    return " ".join(line.removeprefix("#").strip() for line in takewhile(lambda line: line.startswith("#"), lines))


def parse(name: str, given: Mapping[str, Any]) -> Sweep:
    """The definition, its own rules checked. Raises one ValueError with all faults."""
    preflight.check_name(name)
    sweep = validate(Sweep, given, f"ablation {name!r}")
    assert isinstance(sweep, Sweep)
    faults = [
        f"grid: axis {axis!r} has no value; give it one or more, or leave it out"
        for axis in sweep.grid
        if not sweep.grid[axis]
    ]
    entries: dict[str, list[Any]] = {"seeds": sweep.seeds, "seeded": sweep.seeded, "metrics": sweep.metrics}
    for kind, listed in entries.items():
        twice = [entry for entry in dict.fromkeys(listed) if listed.count(entry) > 1]
        faults += [f"{kind} has {entry!r} twice; keep one of them" for entry in twice]
    axes = list(dict.fromkeys([*sweep.grid, *(axis for member in sweep.members.values() for axis in member)]))
    places = {"axes": axes, "values": list(sweep.values), "seeded": sweep.seeded}
    for (one, paths), (other, others) in itertools.combinations(places.items(), 2):
        both = [path for path in paths if path in others]
        faults += [f"{path!r} is given by {one} and by {other}; its value cannot be both" for path in both]
    if faults:
        raise ValueError("\n".join(f"ablation {name!r}: {fault}" for fault in faults))
    return sweep
