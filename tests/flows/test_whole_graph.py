"""The committed graph at toy size through the flow, then through `dvc repro`: three doors, the same numbers."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from mlflow import MlflowClient

from components.parent_runs import headline_metrics
from flows import graph
from flows.pipeline import pipeline

PROJECT = Path(__file__).parents[2]


def dvc(root: Path, *arguments: str) -> str:
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    done = subprocess.run(
        [sys.executable, "-m", "dvc", *arguments],
        cwd=root,
        capture_output=True,
        text=True,
        env={**os.environ, "PATH": path},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def dvc_metrics(root: Path) -> dict[str, float]:
    """The numbers that `dvc metrics show` shows, by MLflow's names. Beside them it shows the hashes of protocols."""
    shown = json.loads(dvc(root, "metrics", "show", "--json"))[""]["data"]
    return {
        f"{Path(path).relative_to('metrics').with_suffix('').as_posix()}/{name}": float(value)
        for path, entry in shown.items()
        for name, value in entry["data"].items()
        if not isinstance(value, str)  # a protocol's hash
    }


def newest_parent(root: Path) -> Any:
    client = MlflowClient(f"sqlite:///{root / 'mlflow.db'}")
    experiment = client.get_experiment_by_name("stop")
    rows = client.search_runs([experiment.experiment_id], order_by=["attributes.start_time DESC"])
    return next(row for row in rows if "mlflow.parentRunId" not in row.data.tags)


def children(root: Path, parent: str) -> dict[str, Any]:
    client = MlflowClient(f"sqlite:///{root / 'mlflow.db'}")
    experiment = client.get_experiment_by_name("stop")
    rows = client.search_runs([experiment.experiment_id], f"tags.mlflow.parentRunId = '{parent}'")
    return {row.info.run_name: row for row in rows}


def test_flow_dvc_and_mlflow_agree_on_every_number(checkout: Path, prefect: str, monkeypatch) -> None:
    monkeypatch.chdir(checkout)
    text = pipeline.with_options(flow_run_name="toy")()
    assert not (checkout / "metrics").exists() and not (checkout / "dvc.lock").exists()
    dvc(checkout, "exp", "apply", "toy")  # what the run made, in the checkout from here on
    stages = {node.name.replace("@", "/") for node in graph.read(checkout)}
    shown, parent = dvc_metrics(checkout), newest_parent(checkout)
    assert {name.rpartition("/")[0] for name in shown} == stages - {"report"}
    assert shown == headline_metrics(checkout) == parent.data.metrics
    assert (parent.info.status, parent.info.run_name, parent.data.tags["trigger"]) == ("FINISHED", "toy", "prefect")
    assert parent.data.params["pretrain.stop.noise_std"] == "0.25"
    assert parent.data.params["prepare.datasets.shapes.scenes"] == "128"

    rows = json.loads((checkout / "report.json").read_text())
    compared = {row["metric"] for row in rows}
    assert {
        "linear_probe/digits/top1",
        "finetune/digits/top1",
        "clevr/count_top1",
        "clevr/distance_top1",
        "davis/jf_mean",
    } <= compared
    page, words = (checkout / "report.html").read_text(), " ".join(text.split())
    for row in rows:
        assert row["pretrained"] == shown[row["metric"]]
        assert row["untrained"] == shown[f"{row['metric']}_untrained"]
        assert row["difference"] == pytest.approx(row["pretrained"] - row["untrained"])
        assert (
            f"| {row['metric']} | {row['pretrained']:.2f} | {row['untrained']:.2f} | {row['difference']:+.2f} |"
            in words
        )
        assert f"<td>{row['metric']}</td>" in page and not row["published"]  # no real data, so nothing of the paper
    assert "no comparison with the paper" in words and page.count("<img ") >= 8
    assert "Small print" not in text and "Small print" in (checkout / "report.md").read_text()
    attached = MlflowClient(f"sqlite:///{checkout / 'mlflow.db'}").list_artifacts(parent.info.run_id)
    assert {"report.md", "report.html", "dvc.lock"} <= {file.path for file in attached}
    made = children(checkout, parent.info.run_id)
    assert set(made) == stages
    assert all(child.info.status == "FINISHED" for child in made.values())
    for name, value in shown.items():
        stage = name.rpartition("/")[0]
        assert made[stage].data.metrics[name] == pytest.approx(value, rel=1e-12), name
    assert "toy" in dvc(checkout, "exp", "show", "--csv")

    # The second door finds nothing to do; the same flow again has a complete row although every stage was cached.
    assert "Data and pipelines are up to date." in dvc(checkout, "repro")
    pipeline.with_options(flow_run_name="again")()
    again = newest_parent(checkout)
    assert again.info.run_name == "again" and again.data.metrics == shown
    assert not children(checkout, again.info.run_id)
    assert again.data.tags["linked.pretrain"] == made["pretrain"].info.run_id

    # One change in one file runs that stage and the report, nothing else, and `dvc repro` writes a row of its own.
    path = checkout / "params/davis.yaml"
    path.write_text(path.read_text().replace("top_k: 5", "top_k: 3"))
    assert set(dvc(checkout, "status").split()) >= {"davis:"}
    ran = [line for line in dvc(checkout, "repro").splitlines() if line.startswith("Running stage")]
    assert ran == ["Running stage 'davis':", "Running stage 'report':"]
    third = newest_parent(checkout)
    assert third.data.tags["trigger"] == "dvc"
    assert third.data.metrics == dvc_metrics(checkout)
    assert third.data.params["davis.top_k"] == "3"
    assert set(children(checkout, third.info.run_id)) == {"davis", "report"}
    assert "davis.top_k" in dvc(checkout, "params", "diff") or "top_k" in dvc(checkout, "params", "diff")
