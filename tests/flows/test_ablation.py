"""Ablations of the toy: members as experiments, what a failing one leaves, what a second run does, figure and table."""

import contextlib
import csv
import io
from typing import Any

import numpy as np
import pytest

from flows import records
from flows.ablation import ablation

HEIGHT = "clevr.height"
SCORE = "clevr/count_top1"

# The score is known in closed form; `ran` counts the members that ran, `broken` names one that fails.
CLEVR = """\
height=$(sed -n 's/^height: //p' params/clevr.yaml); seed=$(sed -n 's/^seed: //p' params/clevr.yaml)
echo "$height $seed" >> {notes}/ran
if grep -qx "$height $seed" {notes}/broken; then echo "error: $height and $seed do not go together"; exit 3; fi
mkdir -p metrics; echo "{{\\"count_top1\\": $((height + seed * seed)), \\"protocol\\": \\"{protocol}\\"}}" > metrics/clevr.json
"""


def score(height: int, seed: int) -> float:
    return height + seed**2


@pytest.fixture
def ready(tracked):
    """A toy whose clevr stage scores by `score`."""
    (tracked.root / "notes").mkdir()
    with (tracked.root / ".gitignore").open("a") as file:
        file.write("/notes/\n/workspaces/\n/work/\n/ablations/\n")
    (tracked.root / "notes" / "broken").touch()
    tracked.script("clevr", CLEVR.format(notes=tracked.root / "notes", protocol="abc"))
    return tracked


def ran(toy) -> list[str]:
    """`height seed` of the members that ran since the last question."""
    path = toy.root / "notes" / "ran"
    lines = path.read_text().splitlines() if path.exists() else []
    path.unlink(missing_ok=True)
    return sorted(lines)


def run(toy, name: str = "trial", **changed: Any) -> Any:
    """The final state of an ablation over clevr.height."""
    asked = {
        "base": [],
        "grid": {HEIGHT: [8, 16]},
        "seeds": [1, 2],
        "seeded": ["clevr.seed"],
        "stages": ["clevr"],
        "metrics": [SCORE],
        "members_at_a_time": 1,
        "parallel": 2,
    }
    with contextlib.chdir(toy.root):
        return ablation(ablation=name, **(asked | changed), return_state=True)


def table(toy, file: str, name: str = "trial") -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO((toy.root / "ablations" / name / file).read_text())))


def test_one_member_fails_and_the_next_run_does_it_alone(ready, prefect) -> None:
    (ready.root / "notes" / "broken").write_text("16 2\n")
    state = run(ready, members_at_a_time=2)
    assert state.is_failed()
    print(state.message)
    assert "1 of 4 members have no result" in state.message
    assert "trial-height-16-seed-2: clevr failed: error: 16 and 2 do not go together" in state.message
    assert ran(ready) == ["16 1", "16 2", "8 1", "8 2"]
    assert {one.name: one.status for one in records.every(ready.root)} == {
        "trial-height-8-seed-1": "FINISHED",
        "trial-height-8-seed-2": "FINISHED",
        "trial-height-16-seed-1": "FINISHED",
        "trial-height-16-seed-2": "FAILED",
    }
    eight, sixteen = table(ready, "table.csv")
    scores = [score(8, 1), score(8, 2)]
    assert float(eight[f"{SCORE} mean"]) == pytest.approx(np.mean(scores))
    assert float(eight[f"{SCORE} sd"]) == pytest.approx(np.std(scores, ddof=1))
    assert (sixteen[f"{SCORE} n"], float(sixteen[f"{SCORE} mean"]), sixteen[f"{SCORE} sd"]) == ("1", score(16, 1), "")
    print((ready.root / "ablations/trial/report.md").read_text())

    (ready.root / "notes" / "broken").write_text("")
    again = run(ready)
    print(again.message)
    assert again.is_completed()
    assert ran(ready) == ["16 2"]
    assert [row["state"] for row in table(ready, "members.csv")] == ["taken", "taken", "taken", "finished"]
