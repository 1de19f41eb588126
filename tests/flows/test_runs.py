"""Runs in trees of their own: side by side, retried, broken off; each one run in Prefect, DVC and MLflow."""

import threading
from contextlib import chdir
from typing import Any

import pytest
from prefect import flow

from components.stage import read_yaml
from flows import records
from flows.pipeline import Request, StageFailedError, pipeline, run_in

from .test_pipeline import CHECKED, parents, task_states, text
from .test_workspace import git


def test_two_runs_with_different_params_at_once(tracked, prefect) -> None:
    wait = (
        "mkdir -p ../../met; touch ../../met/$here; n=0\n"
        "until [ $(ls ../../met | wc -l) = 2 ]; do n=$((n+1)); [ $n -lt 300 ] || exit 9; sleep 0.1; done\n"
    )
    radius_here = 'here=$(grep -o "radius: [0-9]*" params/davis.yaml | grep -o "[0-9]*$")\n'
    score = 'mkdir -p metrics; echo "{\\"jf_mean\\": $here.0}" > metrics/davis.json'
    tracked.script("davis", radius_here + wait + score)  # each ends only if the other runs meanwhile
    values = read_yaml(tracked.root / "params/davis.yaml")

    def go(radius: int) -> None:
        with_name = pipeline.with_options(flow_run_name=f"radius-{radius}")
        results[radius] = with_name(davis=values | {"radius": radius}, return_state=True)

    results: dict[int, Any] = {}
    with chdir(tracked.root):
        threads = [threading.Thread(target=go, args=(radius,)) for radius in (3, 4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert {radius: state.name for radius, state in results.items()} == {3: "Completed", 4: "Completed"}, results
    rows = {row.info.run_name: row.data for row in parents(tracked)}
    for radius in (3, 4):
        row = rows[f"radius-{radius}"]
        assert (row.params["davis.radius"], row.metrics["davis/jf_mean"]) == (str(radius), float(radius))
    assert git(tracked.root, "status", "--porcelain").split() == ["M", "scripts/davis.sh"]
    assert not (tracked.root / "metrics").exists() or not list((tracked.root / "metrics").iterdir())
    shown = tracked.dvc("exp", "list", "--name-only").stdout.split()
    assert set(shown) == {"radius-3", "radius-4"}
    # The doors agree: what MLflow has of a run is what its experiment brings back.
    assert tracked.dvc("exp", "apply", "radius-4").returncode == 0
    assert read_yaml(tracked.root / "params/davis.yaml")["radius"] == 4


def test_a_retry_runs_only_what_failed_and_is_one_run_in_dvc_and_mlflow(tracked, prefect) -> None:
    work = text(tracked, "davis")
    tracked.script("davis", f"[ -f ../../../lucky ] || {{ echo 'no luck' >&2; exit 1; }}\n{work}")

    def request() -> Request:
        return Request(owner="prefect:the-flow-run")

    @flow(name="retried")
    def once() -> None:
        run_in(tracked.root, "retried", request())

    with pytest.raises(StageFailedError):
        once.with_options(flow_run_name="first-try")()
    assert parents(tracked)[0].info.status == "FAILED"
    ref = records.read(tracked.root, "retried").experiment
    assert ref.endswith("/retried")
    (tracked.root / "lucky").write_text("")
    once.with_options(flow_run_name="second-try")()
    assert task_states("second-try") == CHECKED | {
        "prepare@shapes": "Cached",
        "prepare@shapes_video": "Cached",
        "clevr": "Cached",
        "davis": "Ran",
        "report": "Ran",
    }
    (row,) = parents(tracked)
    assert (row.info.status, row.data.metrics["davis/jf_mean"]) == ("FINISHED", 50.0)
    assert [
        ref
        for ref in git(tracked.root, "for-each-ref", "--format=%(refname)", "refs/exps/").split()
        if ref.endswith("/retried")
    ] == [records.read(tracked.root, "retried").experiment]
    assert tracked.dvc("exp", "apply", "retried").returncode == 0
    assert (tracked.root / "report.md").is_file()


def test_a_run_that_breaks_after_its_stages_keeps_what_they_made(tracked, prefect) -> None:
    tracked.script("davis", "mkdir -p metrics; echo 'no JSON' > metrics/davis.json")
    with chdir(tracked.root), pytest.raises(ValueError, match="Expecting value"):
        pipeline.with_options(flow_run_name="broken")()
    assert (tracked.tree("broken") / "report.md").is_file()
    record = records.read(tracked.root, "broken")
    assert (record.status, record.experiment.rpartition("/")[2]) == ("FAILED", "broken")


def test_merge_markers_are_told_with_file_and_line(tracked, prefect) -> None:
    davis = tracked.root / "params/davis.yaml"
    davis.write_text("<<<<<<< HEAD\n" + davis.read_text() + "=======\n>>>>>>> theirs\n")
    with (
        chdir(tracked.root),
        pytest.raises(ValueError, match=r"params/davis.yaml holds merge markers, in line 1 first"),
    ):
        pipeline.with_options(flow_run_name="merged")()
    assert records.every(tracked.root) == []
