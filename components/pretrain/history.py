"""The curves on the disk: one JSON line a logged step, appended as they come, and a table at the end.

So the numbers are there whatever happens. `following` reads the lines while they are written.
"""

import csv
import errno
import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from components.stage import atomic

HISTORY = "history.jsonl"
FULL = (errno.ENOSPC, errno.EDQUOT)
"""What a disk says that takes nothing more; a person must make room. What else it says may pass."""

Row = Mapping[str, float]  # not from `loop`: Ray's controller process should start without torch and timm


def append(path: Path, row: Row, ranks: Sequence[Row]) -> None:
    """Adds a logged step: its row, and each rank's own numbers. Raises ValueError where the disk is full, and OSError else."""
    line = {**row, "time": int(time.time() * 1000), "ranks": list(ranks)}
    try:
        with path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
    except OSError as error:
        if error.errno not in FULL:
            raise
        raise ValueError(
            f"the curves of step {row['step']:.0f} cannot be written to {path}: {error}; make room and start again: training goes on from "
            f"its newest checkpoint"
        ) from error


def continued(path: Path, rows: Sequence[Row]) -> None:
    """Makes the file hold `rows`, those of the checkpoint that training goes on from, and nothing that came after it."""
    known = {}
    for text in path.read_text(encoding="utf-8").splitlines() if path.is_file() else ():
        try:
            line = json.loads(text)
        except json.JSONDecodeError:  # a killed run may have left half a line
            continue
        known[line["step"]] = {"time": line["time"], "ranks": line["ranks"]}
    new = {"time": int(time.time() * 1000), "ranks": []}
    lines = [{**row, **known.get(row["step"], new)} for row in rows]
    with atomic(path) as temporary:
        temporary.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")


def write_csv(path: Path, rows: Sequence[Row]) -> None:
    """The curves as a table for DVC plots; a value that a step has not is an empty cell."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, fieldnames=list(dict.fromkeys(name for row in rows for name in row)), restval="")
        writer.writeheader()
        writer.writerows({name: f"{value:.8g}" for name, value in row.items()} for row in rows)
