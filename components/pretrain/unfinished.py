"""What the resume state of a fingerprint says of itself, in its `about.json`; and what other states were left unfinished.

Changed params, data or code never continue an old model by themselves: the start says which state is there, how far it came and what
differs, and `python -m components.resume` continues from it on purpose.
"""

import json
import sys
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from components.pretrain.contract import PretrainInputs, PretrainParams
from components.stage import flatten, ingredients, write_json
from components.tracking.origin import flow_tags
from components.work import in_use

ABOUT = "about.json"
SHOWN = 3
"""Unfinished states told of at a start, newest first."""

About = dict[str, Any]


def read(folder: Path) -> About | None:
    """What the state in `folder` says of itself; None where it says nothing."""
    path = folder / ABOUT
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else None


def begin(folder: Path, params: PretrainParams, inputs: PretrainInputs, steps: int) -> About:
    """Writes `about.json` of the work in `folder`, or finds the one that is there. `steps` is how many the whole of it has."""
    known = read(folder) or {"step": 0, "resumed_from": []}
    known |= {
        "stage": "pretrain",
        "fingerprint": folder.name,
        "run": flow_tags().get("pipeline.run", ""),
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "steps": steps,
        "finished": False,
        "paths": {name: str(path) for name, path in inputs},
        **ingredients(params, inputs),
    }
    write_json(folder / ABOUT, known)
    return known


def note(folder: Path, **known: Any) -> None:
    """Adds to `about.json`. A full disk costs a warning."""
    try:
        write_json(folder / ABOUT, (read(folder) or {}) | known)
    except OSError as error:
        print(f"warning: {folder / ABOUT} cannot be written: {error}", file=sys.stderr)


def origin(about: Mapping[str, Any]) -> str:
    """The states that this work went on from, oldest first, such as `5c0f… at step 400`; '' for none."""
    return ", ".join(f"{source['fingerprint']} at step {source['step']}" for source in about["resumed_from"])


def announcement(folder: Path) -> list[str]:
    """Lines on the unfinished states beside `folder`, which itself is at its start; none where there are none."""
    mine = read(folder)
    others = sorted(_unfinished(folder), key=lambda other: str(other["started"]), reverse=True)
    if mine is None or mine["step"] or not others:
        return []
    lines = []
    for other in others[:SHOWN]:
        there, run = folder.parent / other["fingerprint"], f" by run {other['run']}" if other["run"] else ""
        lines += [
            f"unfinished: {there} reached step {other['step']} of {other['steps']}{run}, started {other['started']}"
        ]
        lines += [f"  {line}" for line in differences(other, mine)]
    if len(others) > SHOWN:
        lines.append(f"  and {len(others) - SHOWN} older ones in {folder.parent}")
    newest = folder.parent / others[0]["fingerprint"]
    return [
        *lines,
        "this work differs and starts at step 0; to go on from there instead, stop it, run",
        f"  python -m components.resume {folder} --resume-from {newest}",
        "and start it again",
    ]


def differences(there: Mapping[str, Any], here: Mapping[str, Any]) -> list[str]:
    """What makes two fingerprints differ: params with both values, inputs, code files."""
    old, new = flatten(there["params"], "."), flatten(here["params"], ".")
    lines = [
        f"pretrain.{key}: {old.get(key, 'nothing')} there, {new.get(key, 'nothing')} here"
        for key in sorted(old.keys() | new.keys())
        if old.get(key) != new.get(key)
    ]
    lines += [f"input {key}: other content" for key in _changed(there["inputs"], here["inputs"])]
    code = _changed(there["code"], here["code"])
    return lines + ([f"code: {', '.join(code)}"] if code else [])


def _changed(there: Mapping[str, str], here: Mapping[str, str]) -> list[str]:
    return [key for key in sorted(there.keys() | here.keys()) if there.get(key) != here.get(key)]


def _unfinished(folder: Path) -> Iterator[About]:
    """States beside `folder` that stopped before their end, have a checkpoint, nobody works on and nothing went on from."""
    for path in folder.parent.glob(f"*/{ABOUT}"):
        about = read(path.parent)
        open_end = about and not about["finished"] and about["step"] and "continued_as" not in about
        if about and open_end and path.parent != folder and not in_use(path.parent):
            yield about
