"""The rows of pipeline runs: begun safely by a crowd, found again, compared only under one protocol."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from components import parent_runs
from components.tracking.database import database

Runs = Callable[[Path], list[Any]]


STAGE = """
import os, sys
from pathlib import Path
from components import tracking
from components.report.contract import ReportInputs, ReportOutputs, ReportParams
from components.stage import contract
root = Path(os.environ["DVC_ROOT"])
inputs = ReportInputs(metrics=root, values=root, protocols=root, plots=root)
outputs = ReportOutputs(report=root / "r.md", page=root / "p", table=root / "t", run=root / "run.json")
with tracking.stage_run("report", contract("report"), ReportParams(decimals=2, picture_pixels=1200), inputs, outputs):
    tracking.log_metrics({"report/curve": 1.0}, 1)
"""


def test_three_workspaces_at_once_on_a_fresh_database(fresh: Path, runs: Runs) -> None:
    """MLflow's own first use crashes here: each process migrates the file."""
    workspaces = [fresh / "workspaces" / name / "tree" for name in ("a", "b", "c")]
    crowd = []
    for root in workspaces:
        root.mkdir(parents=True)
        known = {"DVC_ROOT": str(root), "MLFLOW_TRACKING_URI": f"sqlite:///{fresh / 'mlflow.db'}"}
        crowd.append(
            subprocess.Popen(
                [sys.executable, "-c", STAGE], env=os.environ | known, cwd=root, stderr=subprocess.PIPE, text=True
            )
        )
    for process in crowd:
        _, errors = process.communicate(timeout=240)
        assert process.returncode == 0 and "warning: " not in errors, errors
    found = runs(fresh)
    assert [(run.info.status, run.data.metrics) for run in found] == [("FINISHED", {"report/curve": 1.0})] * 3
    assert all(run.info.artifact_uri.startswith(f"file://{fresh}/mlartifacts/") for run in found)
    assert len(list((fresh / "logs/tracking/finished").glob("report.*.jsonl"))) == 3
    assert [list(root.iterdir()) for root in workspaces] == [[], [], []]


def ended(root: Path, name: str, protocol: str) -> str:
    """A pipeline run whose one evaluation left a score with a protocol."""
    (root / "params/davis.yaml").write_text("seed: 0\n")
    (root / "metrics/davis.json").write_text(f'{{"jf_mean": 50.0, "protocol": "{protocol}"}}')
    run_id = parent_runs.start_pipeline(root, root, name, {"trigger": "dvc"})
    parent_runs.finish_pipeline(root, root, run_id, "FINISHED")
    return run_id


def test_a_row_knows_the_protocol_of_each_of_its_metrics(project: Path) -> None:
    first, second, newest = (ended(project, name, hash) for name, hash in (("one", "aa"), ("two", "bb"), ("one", "cc")))
    rows = parent_runs.beside_previous(project, newest)
    assert [(row.run_id, row.name, row.protocols) for row in rows] == [
        (newest, "one", {"davis": "cc"}),
        (second, "two", {"davis": "bb"}),
    ]
    assert rows[0].metrics == {"davis/jf_mean": 50.0}
    assert rows[0].protocol("davis/jf_mean") == ("davis", "cc") and rows[0].protocol("clevr/top1") == ("", "")
    by_id, by_name = parent_runs.pipeline_rows(project, [first, "one"])
    assert (by_id.run_id, by_name.run_id) == (first, newest)
    for wrong in ("three", "it's", ""):
        with pytest.raises(ValueError, match="no pipeline run of sqlite:.* has the id or name"):
            parent_runs.pipeline_rows(project, ["one", wrong])


def test_a_row_below_one_that_began_while_mlflow_was_away_is_below_it_in_mlflow(
    project: Path, database: Path, runs: Runs
) -> None:
    (project / "mlflow.db").write_bytes(b"this is no database" * 100)
    above = parent_runs.begin_row(project, "sweep", {"ablation": "sweep"})
    with pytest.raises(ValueError, match=f"MLflow did not give row '{above}': .* file is not a database"):
        parent_runs.pipeline_row(project, above)
    shutil.copy(database, project / "mlflow.db")
    below = parent_runs.begin_row(project, "member", {"mlflow.parentRunId": above})
    row = parent_runs.pipeline_row(project, above)
    assert row.name == "sweep" and row.run_id != above
    assert {run.info.run_name: run.data.tags.get("mlflow.parentRunId") for run in runs(project)} == {
        "sweep": None,
        "member": row.run_id,
    }
    assert parent_runs.pipeline_row(project, below).name == "member"
    with pytest.raises(ValueError, match="MLflow did not give row '0123': "):
        parent_runs.pipeline_row(project, "0123")
    with pytest.raises(ValueError, match="MLflow has no row 'pending-0123', and no journal on this machine holds it"):
        parent_runs.pipeline_row(project, "pending-0123")


def test_the_longest_name_owns_a_metric() -> None:
    row = parent_runs.Row("id", "0", "run", {}, {"linear_probe.a": "1", "linear_probe.a.b": "2"})
    assert row.protocol("linear_probe/a.b/top1") == ("linear_probe.a.b", "2")
    assert row.protocol("linear_probe/a/top1") == ("linear_probe.a", "1")
    assert row.protocol("linear_probe/ab/top1") == ("", "")


def test_a_run_killed_before_it_had_a_row_closes_no_other(project: Path) -> None:
    alive = parent_runs.begin_row(project, "alive", {"trigger": "prefect"})
    parent_runs.close_killed(project, "")
    (row,) = database(project).client().search_runs([database(project).experiment(database(project).client())])
    assert (row.info.run_id, row.info.status) == (alive, "RUNNING")


@pytest.mark.parametrize("known", [True, False])
def test_a_cached_stage_is_linked_only_where_its_row_is(
    project: Path, runs: Runs, capsys: pytest.CaptureFixture[str], known: bool
) -> None:
    """A server and its sqlite file share rows, so the address alone says nothing."""
    store = database(project)
    client = store.client()
    made = client.create_run(store.experiment(client), run_name="davis").info.run_id if known else "0" * 32
    (project / "params/davis.yaml").write_text("seed: 0\n")
    (project / "runs").mkdir()
    about = {"stage": "davis", "mlflow_run_id": made, "tracking_uri": "http://mlflow:5000"}
    (project / "runs/davis.json").write_text(json.dumps(about))
    row = parent_runs.start_pipeline(project, project, "run", {"trigger": "prefect"})
    parent_runs.finish_pipeline(project, project, row, "FINISHED", ["davis"])
    told = capsys.readouterr().err
    found = {run.info.run_id: run for run in runs(project)}
    assert found[row].info.status == "FINISHED"
    assert found[row].data.tags.get("linked.davis") == (made if known else None)
    if known:
        assert found[made].data.tags["mlflow.parentRunId"] == row and not told
    else:
        where = f"MLflow at http://mlflow:5000, not at {store.uri}"
        assert told == f"warning: davis has its row {made} in {where}; it is not linked\n"
