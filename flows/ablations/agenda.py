"""What an ablation has to do: its definition, all its members, and what is missing of each. Nothing is changed by asking."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flows import preflight, workspace
from flows.ablations import members, scope, standing, sweep
from flows.ablations.members import Member
from flows.ablations.standing import Do, OtherCode
from flows.ablations.sweep import Sweep
from flows.git import why_not

WORDS: dict[Do, str] = {
    "run": "to run",
    "continue": "to continue",
    "renew": "to run anew",
    "take": "finished before",
}


@dataclass(frozen=True)
class Agenda:
    """An ablation that may start."""

    definition: Sweep
    members: list[Member]
    todo: dict[str, Do]
    """By member."""

    @property
    def waiting(self) -> list[Member]:
        """Those that are to run."""
        return [member for member in self.members if self.todo[member.name] != "take"]

    def outline(self) -> str:
        """How many members there are, and how many of them are in which state."""
        done = list(self.todo.values())
        return f"{len(done)} members: " + ", ".join(
            f"{done.count(do)} {text}" for do, text in WORDS.items() if do in done
        )

    def listed(self) -> str:
        """Each member on a line of its own."""
        return "\n".join(f"{WORDS[self.todo[member.name]]:15} {member.name}" for member in self.members)


def read(checkout: Path, ablation: str, definition: Mapping[str, Any], other_code: OtherCode) -> Agenda:
    """The agenda of an ablation. Raises ValueError with all faults of the definition, or of the members; raw data is not looked at."""
    preflight.check_project(checkout)
    if not workspace.separable(checkout):
        raise ValueError(
            f"an ablation needs a workspace for each member, and {checkout} cannot be cloned: {why_not(checkout)}; where there is a "
            "commit, `dvc config --unset core.no_scm` lets DVC work with git"
        )
    settled = sweep.parse(ablation, definition)
    planned = members.plan(checkout, ablation, settled, scope.needs(checkout))
    return Agenda(settled, planned, standing.missing(checkout, ablation, planned, settled.stages, other_code))
