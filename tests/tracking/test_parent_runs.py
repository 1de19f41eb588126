"""The rows of pipeline runs: begun safely by a crowd, found again, compared only under one protocol."""

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from components import parent_runs

Runs = Callable[[Path], list[Any]]


def test_a_fresh_database_bears_four_processes_at_once(fresh: Path, runs: Runs) -> None:
    """MLflow's own first use crashes here: each process migrates the file."""
    code = (
        "import sys; from pathlib import Path; from components import parent_runs; "
        "root = Path(sys.argv[1]); parent_runs.start_pipeline(root, root, 'x', {'trigger': 'dvc'})"
    )
    crowd = [
        subprocess.Popen([sys.executable, "-c", code, str(fresh)], stderr=subprocess.PIPE, text=True) for _ in range(4)
    ]
    for process in crowd:
        _, errors = process.communicate(timeout=240)
        assert process.returncode == 0, errors
    assert len(runs(fresh)) == 4


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
