"""What earlier runs of an ablation left of each member, and so what is missing.

Beside a member's record, `workspaces/<member>/run.json`, stands `member.json`: the values, code and stages it ran with.
"""

import hashlib
import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

from components.stage import flatten, write_json
from flows import graph, records
from flows.ablations.members import Faults, Member, Sections

OtherCode = Literal["refuse", "take", "renew"]
"""What becomes of members that other code finished: told, and nothing starts; taken as they are; or run again."""

Do = Literal["run", "continue", "renew", "take"]
"""run: no trace of it. continue: in the workspace it has. renew: in a new one. take: as it is."""


@dataclass(frozen=True)
class Note:
    """What a member ran with."""

    sections: Sections
    code: Mapping[str, str]
    """Hash of each file that the stages depend on, by its path; see `code`."""
    stages: Sequence[str]
    """As they were asked for; none means all."""


def owner(ablation: str, member: str) -> str:
    """Who a member's run belongs to."""
    return f"ablation:{ablation}/{member}"


def code(checkout: Path, stages: Sequence[str]) -> dict[str, str]:
    """sha256 of dvc.yaml and of every file that the `stages` and what they need depend on, params and raw data apart."""
    paths = {checkout / "dvc.yaml"}
    words = sorted({stage.partition("@")[0] for stage in stages})  # a member may have entries that the checkout lacks
    for source in {source for node in graph.read(checkout, words) for source in node.sources}:
        if not source.is_relative_to(checkout / "data" / "raw"):
            paths |= {source} if source.is_file() else {path for path in source.rglob("*") if path.is_file()}
    kept = sorted(path for path in paths if path.is_file() and path.parent.name != "__pycache__")
    return {str(path.relative_to(checkout)): hashlib.sha256(path.read_bytes()).hexdigest() for path in kept}


def note(checkout: Path, member: Member, stages: Sequence[str]) -> list[str]:
    """Writes down what `member` is about to run with. The stages to run: those asked for, and those that it ran before."""
    before = read(checkout, member.name)
    if before and stages:
        stages = sorted({*stages, *before.stages}) if before.stages else []
    path = records.folder(checkout, member.name) / "member.json"
    files = code(checkout, stages)
    write_json(path, {"sections": member.sections, "code": files, "stages": list(stages)})
    return list(stages)


def read(checkout: Path, name: str) -> Note | None:
    """The note of member `name`; None where no ablation has run one of that name."""
    path = records.folder(checkout, name) / "member.json"
    return Note(**json.loads(path.read_text(encoding="utf-8"))) if path.is_file() else None


def forget(checkout: Path, name: str) -> str:
    """Removes the workspace of a member that is to be made anew; its DVC experiment, which stays until there is a new one, or ''.

    Its rows in MLflow, logs and resume state stay. Raises ValueError for one that is at work again.
    """
    with records.alone(checkout):
        record = records.read(checkout, name)
        if record and records.alive(checkout, record):
            raise ValueError(f"it is {records.at_work(record)}; wait until that has ended, or cancel it first")
        shutil.rmtree(records.folder(checkout, name))
    return record.experiment if record else ""


def missing(
    checkout: Path, ablation: str, members: Sequence[Member], stages: Sequence[str], other_code: OtherCode
) -> dict[str, Do]:
    """What is to be done for each member, by name.

    Raises one ValueError for names that another run or other values have, for members at work, and, where `other_code` is
    refuse, for those that other code finished.
    """
    faults, found = Faults(), dict[str, Do]()
    present = cache(lambda asked: code(checkout, asked))
    for member in members:
        record = records.read(checkout, member.name)
        if record is None:
            found[member.name] = "run"
            continue
        known = read(checkout, member.name)
        if taken := _taken(checkout, record, owner(ablation, member.name), member, known):
            faults.add(taken, member.name)
        elif known:
            changed = _difference(known.code, present(tuple(known.stages)))
            if record.status != "FINISHED":
                found[member.name] = "renew" if changed else "continue"
            elif changed and other_code == "refuse":
                faults.add(_other(changed), member.name)
            elif changed and other_code == "renew":
                found[member.name] = "renew"
            else:
                covered = not known.stages or (stages and set(stages) <= set(known.stages))
                found[member.name] = "take" if covered else "continue"
    faults.tell()
    return found


def _taken(checkout: Path, record: records.Record, mine: str, member: Member, known: Note | None) -> str:
    """Why the name cannot be used, or ''."""
    ways_out = records.ways_out(checkout, record, "the ablation")
    if record.owner != mine or known is None:
        return f"the name is taken by another run, of {record.created[:19]} UTC; {ways_out}"
    if records.alive(checkout, record):
        return f"it is {records.at_work(record)}; wait until that has ended, or cancel it first"
    if differing := _difference(flatten(known.sections, "."), flatten(member.sections, ".")):
        values = [f"{path} is {now!r} and was {before!r}" for path, (before, now) in list(differing.items())[:3]]
        more = f" and {len(differing) - 3} more" if len(differing) > 3 else ""
        return (
            f"a run of {record.created[:19]} UTC has this name with other values: {', '.join(values)}{more}; {ways_out}"
        )
    return ""


def _other(changed: Mapping[str, Any]) -> str:
    files = ", ".join(list(changed)[:3]) + (f" and {len(changed) - 3} more" if len(changed) > 3 else "")
    return (
        f"it was finished by other code ({files}); beside members of this code it would not compare: choose OTHER_CODE=renew to run it "
        "again, OTHER_CODE=take where the change alters no result, or go back to that code"
    )


def _difference(before: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    keys = dict.fromkeys([*before, *now])
    return {key: (before.get(key), now.get(key)) for key in keys if before.get(key) != now.get(key)}
