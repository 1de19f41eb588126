"""Ablations of the toy: members as experiments, what a failing one leaves, what a second run does, figure and table."""

import contextlib
import csv
import dataclasses
import io
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mlflow import MlflowClient
from PIL import Image
from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterParentFlowRunId
from prefect.client.schemas.sorting import FlowRunSort
from prefect.exceptions import PrefectHTTPStatusError

from components.stage import canonical_yaml, read_yaml
from flows import records
from flows.ablation import ablation
from flows.ablations import standing
from flows.ablations.cells import Cell
from flows.ablations.members import Member

PROJECT = Path(__file__).parents[2]
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


def experiments(toy) -> set[str]:
    """The names of the DVC experiments in the checkout."""
    return {line.split()[-1] for line in toy.dvc("exp", "list", "--name-only").stdout.splitlines()}


def artifacts(of: str) -> set[str]:
    """Keys of the artefacts on the pages of ablation `of`."""
    with get_client(sync_client=True) as client:
        runs = {run.id for run in client.read_flow_runs(flow_run_filter=FlowRunFilter(name={"any_": [of]}))}
        return {str(one.key) for one in client.read_artifacts() if one.flow_run_id in runs}


def table(toy, file: str, name: str = "trial") -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO((toy.root / "ablations" / name / file).read_text())))


def pages(of: str) -> dict[str, str]:
    """Prefect's pages of the members below the newest run of ablation `of`, with their states."""
    with get_client(sync_client=True) as client:
        newest = client.read_flow_runs(
            flow_run_filter=FlowRunFilter(name={"any_": [of]}), sort=FlowRunSort.START_TIME_DESC, limit=1
        )
        below = FlowRunFilter(parent_flow_run_id=FlowRunFilterParentFlowRunId(any_=[newest[0].id]))
        return {run.name: run.state_name for run in client.read_flow_runs(flow_run_filter=below)}


def mlflow_rows(toy) -> tuple[Any, list[Any]]:
    """The row of the ablation, and those below it, the oldest first."""
    client = MlflowClient(f"sqlite:///{toy.root / 'mlflow.db'}")
    found = client.search_runs(["1"], order_by=["attributes.start_time ASC"])
    above = [row for row in found if row.data.tags.get("ablation") and "trigger" not in row.data.tags]
    assert len(above) == 1, "a second run of an ablation opens the same row again"
    return above[0], [row for row in found if row.data.tags.get("mlflow.parentRunId") == above[0].info.run_id]


def test_one_member_fails_and_the_next_run_does_it_alone(ready, prefect) -> None:
    (ready.root / "notes" / "broken").write_text("16 2\n")
    state = run(ready, members_at_a_time=2)
    assert state.is_failed()
    assert state.message.splitlines()[:2] == [
        "1 of 4 members have no result; run the ablation again for them alone",
        "trial-height-16-seed-2: clevr failed: error: 16 and 2 do not go together",
    ]
    assert ran(ready) == ["16 1", "16 2", "8 1", "8 2"]
    members = dict.fromkeys(["trial-height-8-seed-1", "trial-height-8-seed-2", "trial-height-16-seed-1"], "FINISHED")
    members["trial-height-16-seed-2"] = "FAILED"
    assert {one.name: one.status for one in records.every(ready.root)} == members
    assert pages("trial") == {
        name: "Completed" if status == "FINISHED" else "Failed" for name, status in members.items()
    }
    assert experiments(ready) == members.keys()
    above, below = mlflow_rows(ready)
    assert {row.info.run_name: row.info.status for row in below} == members
    assert (above.info.run_name, above.info.status) == ("trial", "FAILED")
    assert above.data.metrics == {"members": 4, "members_failed": 1}

    eight, sixteen = table(ready, "table.csv")
    scores = [score(8, 1), score(8, 2)]
    assert float(eight[f"{SCORE} mean"]) == pytest.approx(np.mean(scores))
    assert float(eight[f"{SCORE} sd"]) == pytest.approx(np.std(scores, ddof=1))
    assert (sixteen[f"{SCORE} n"], float(sixteen[f"{SCORE} mean"]), sixteen[f"{SCORE} sd"]) == ("1", score(16, 1), "")
    assert [row["state"] for row in table(ready, "members.csv")] == ["finished", "finished", "finished", "failed"]

    (ready.root / "notes" / "broken").write_text("")
    (ready.root / "README.md").write_text("what no stage depends on may change\n")
    assert run(ready).is_completed()
    assert ran(ready) == ["16 2"]
    assert pages("trial") == {"trial-height-16-seed-2": "Completed"}
    assert [row["state"] for row in table(ready, "members.csv")] == ["taken", "taken", "taken", "finished"]
    above, below = mlflow_rows(ready)
    assert {row.info.run_name: row.info.status for row in below} == dict.fromkeys(members, "FINISHED")
    assert len(below) == 4
    assert above.info.status == "FINISHED"
    assert above.data.tags["mlflow.note.content"].startswith("# Ablation trial\n")
    kept = {
        file.path for file in MlflowClient(f"sqlite:///{ready.root / 'mlflow.db'}").list_artifacts(above.info.run_id)
    }
    assert kept == {"report.md", "table.csv", "members.csv", "definition.yaml", "figure.png"}
    assert Image.open(ready.root / "ablations/trial/figure.png").format == "PNG"
    assert {"ablation-trial", "members"} <= artifacts("trial")


@pytest.mark.faults
def test_more_seeds_and_more_stages_run_what_is_missing(ready, prefect) -> None:
    assert run(ready, grid={HEIGHT: [8]}, seeds=[1]).is_completed()
    assert ran(ready) == ["8 1"]
    assert run(ready, grid={HEIGHT: [8, 16]}, seeds=[1, 2]).is_completed()
    assert ran(ready) == ["16 1", "16 2", "8 2"]
    assert run(
        ready, grid={HEIGHT: [8]}, seeds=[1], stages=["clevr", "davis"], metrics=["davis/jf_mean"]
    ).is_completed()
    assert ran(ready) == []  # davis alone was missing
    (row,) = table(ready, "table.csv")
    assert row["davis/jf_mean mean"] == "50.0"
    assert run(ready, grid={HEIGHT: [8]}, seeds=[1]).is_completed()  # fewer stages than it has
    assert [row["state"] for row in table(ready, "members.csv")] == ["taken"]


@pytest.mark.faults
def test_a_name_with_other_values_or_of_another_run_is_refused_before_anything_starts(ready, prefect) -> None:
    one = {"grid": {HEIGHT: [8]}, "seeds": [1]}
    assert run(ready, **one).is_completed()
    text = (ready.root / "params/clevr.yaml").read_text()
    (ready.root / "params/clevr.yaml").write_text(text.replace("width: 48", "width: 32"))
    records.claim(ready.root, "trial-height-16-seed-1", "prefect:of-somebody")
    ran(ready)
    state = run(ready, grid={HEIGHT: [8, 16, 24]}, seeds=[1])
    assert state.is_failed()
    other, taken = state.message.splitlines()
    assert other.startswith("trial-height-8-seed-1: a run of 20")
    assert (
        "has this name with other values: clevr.width is 32 and was 48; give the ablation another name, or remove"
        in other
    )
    assert taken.startswith("trial-height-16-seed-1: the name is taken by another run, of 20")
    assert ran(ready) == []
    assert records.read(ready.root, "trial-height-24-seed-1") is None


@pytest.mark.faults
def test_members_of_other_code_are_told_taken_or_run_again(ready, prefect) -> None:
    one = {"grid": {HEIGHT: [8]}}
    (ready.root / "notes" / "broken").write_text("8 2\n")
    assert run(ready, **one).is_failed()
    assert ran(ready) == ["8 1", "8 2"]
    (ready.root / "notes" / "broken").write_text("")
    ready.script("clevr", CLEVR.format(notes=ready.root / "notes", protocol="new"))

    refused = run(ready, **one)
    assert refused.message.startswith(
        "trial-height-8-seed-1: it was finished by other code (scripts/clevr.sh); beside "
    )
    assert ran(ready) == []

    assert run(ready, **one, other_code="take").is_completed()
    assert ran(ready) == ["8 2"]  # it had failed, so it starts anew, by the code of now
    (row,) = table(ready, "table.csv")
    assert [float(row[f"{SCORE} [{protocol}] mean"]) for protocol in ("abc", "new")] == [score(8, 1), score(8, 2)]

    assert run(ready, **one, other_code="renew").is_completed()
    assert ran(ready) == ["8 1"]
    (row,) = table(ready, "table.csv")
    assert float(row[f"{SCORE} mean"]) == np.mean([score(8, 1), score(8, 2)])


@pytest.mark.faults
def test_two_members_run_side_by_side(ready, prefect) -> None:
    notes = ready.root / "notes"
    meet = f"mkdir {notes}/at-$seed; n=0; until [ -d {notes}/at-$((3 - seed)) ]; do n=$((n+1)); [ $n -lt 600 ] || exit 9; sleep 0.1; done"
    first, rest = CLEVR.format(notes=notes, protocol="abc").split("\n", 1)
    ready.script("clevr", f"{first}\n{meet}\n{rest}")  # each ends only if the other runs meanwhile
    assert run(ready, grid={HEIGHT: [8]}, members_at_a_time=2).is_completed()
    assert ran(ready) == ["8 1", "8 2"]


@pytest.mark.faults
def test_the_deployment_of_an_ablation_runs_what_the_form_says(ready, prefect, until) -> None:
    definition = {"base": [], "grid": {HEIGHT: [8]}, "seeds": [1], "seeded": ["clevr.seed"], "stages": ["clevr"]}
    definition |= {"metrics": [SCORE], "members_at_a_time": 1, "parallel": 2}
    (ready.root / "params/ablations").mkdir()
    (ready.root / "params/ablations/trial.yaml").write_text("# Toys.\n" + canonical_yaml(definition))
    (ready.root / "params/presets").mkdir()
    recipe = {word: read_yaml(ready.root / f"params/{word}.yaml") for word in ("prepare", "davis", "clevr", "report")}
    (ready.root / "params/presets/toy.yaml").write_text(canonical_yaml(recipe))
    environment, log = os.environ | {"PREFECT_API_URL": prefect}, (ready.root / "notes/deploy.log").open("w")
    command = [sys.executable, "-m", "flows.deploy"]
    with (
        subprocess.Popen(command, cwd=ready.root, env=environment, stdout=log, stderr=log) as process,
        get_client(sync_client=True) as client,
    ):
        until(lambda: [one for one in client.read_deployments() if one.name == "trial" and one.status == "READY"])
        deployment = client.read_deployment_by_name("ablation/trial")
        assert deployment.description == "Toys."
        assert deployment.parameters == definition | {"ablation": "trial", "values": {}, "members": {}}
        with pytest.raises(PrefectHTTPStatusError, match="409|422"):  # what a schema can tell
            client.create_flow_run_from_deployment(deployment.id, parameters={"seeds": []})
        started = client.create_flow_run_from_deployment(deployment.id, parameters={"seeds": [1, 2]})
        until(lambda: (state := client.read_flow_run(started.id).state) and state.is_final())
        assert client.read_flow_run(started.id).state_name == "Completed"
        process.terminate()
        process.wait(60)
        for one in client.read_deployments():
            client.delete_deployment(one.id)
    assert ran(ready) == ["8 1", "8 2"]


@pytest.mark.faults
@pytest.mark.parametrize("at_a_time", [1, 2])
def test_ctrl_c_ends_the_members_and_the_next_run_goes_on(ready, prefect, until, alive, at_a_time) -> None:
    notes = ready.root / "notes"
    text = CLEVR.format(notes=notes, protocol="abc")
    ready.script("clevr", f"if [ -e {notes}/slow ]; then echo $$ >> {notes}/pids; sleep 300; fi\n{text}")
    (notes / "slow").touch()
    definition = {"base": [], "grid": {HEIGHT: [8]}, "seeds": [1, 2], "seeded": ["clevr.seed"], "stages": ["clevr"]}
    definition |= {"metrics": [SCORE], "members_at_a_time": at_a_time, "parallel": 2}
    (ready.root / "params/ablations").mkdir()
    (ready.root / "params/ablations/trial.yaml").write_text(canonical_yaml(definition))
    command = [sys.executable, "-m", "flows.ablate", "trial", "--root", str(ready.root)]
    environment = os.environ | {"PREFECT_API_URL": prefect}
    process = subprocess.Popen(command, cwd=PROJECT, env=environment, stderr=subprocess.PIPE, text=True)
    pids = notes / "pids"
    until(lambda: process.poll() is not None or (pids.exists() and len(pids.read_text().split()) == at_a_time))
    process.send_signal(signal.SIGINT)
    _, told = process.communicate(timeout=120)
    assert process.returncode == 130
    assert "stopped; `make ablation NAME=trial` continues with what is missing" in told
    assert not alive([int(pid) for pid in pids.read_text().split()])
    assert {one.status for one in records.every(ready.root)} == {"KILLED"}
    above, below = mlflow_rows(ready)
    assert {row.info.status for row in (above, *below)} == {"KILLED"}

    (notes / "slow").unlink()
    done = subprocess.run(command, cwd=PROJECT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert ran(ready) == ["8 1", "8 2"]


def test_a_run_that_is_not_done_is_not_offered_for_removal(toy) -> None:
    names = {"trial-a": "FINISHED", "trial-b": "FAILED"}
    for name, status in names.items():
        record, _ = records.claim(toy.root, name, "prefect:of-somebody")
        records.write(toy.root, dataclasses.replace(record, status=status))
    cell = Cell("", (), {}, {})
    with pytest.raises(ValueError) as refusal:
        standing.missing(toy.root, "trial", [Member(name, cell, 1, {}) for name in names], [], "refuse")
    done, failed = str(refusal.value).splitlines()
    assert done.endswith("remove that run with `make gc REMOVE=trial-a APPLY=1`")
    assert "REMOVE" not in failed and "give the ablation another name, and what has the same values, data" in failed


def test_a_member_that_is_at_work_again_keeps_its_workspace(tmp_path) -> None:
    (tmp_path / records.FOLDER).mkdir()
    record, _ = records.claim(tmp_path, "trial-seed-1", "ablation:trial/trial-seed-1")
    with pytest.raises(ValueError, match="it is at work in process"):
        standing.forget(tmp_path, record.name)
    records.write(tmp_path, dataclasses.replace(record, status="FINISHED", experiment="refs/exps/ab/cd/trial-seed-1"))
    assert standing.forget(tmp_path, record.name) == "refs/exps/ab/cd/trial-seed-1"
    assert records.read(tmp_path, record.name) is None
