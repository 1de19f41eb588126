"""A deployment triggered through Prefect's API: served from the toy, as a person's button would start it."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from mlflow import MlflowClient
from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import ArtifactFilter, FlowRunFilter, FlowRunFilterId
from prefect.client.schemas.objects import FlowRun
from prefect.exceptions import PrefectHTTPStatusError

from components.stage import canonical_yaml, read_yaml
from flows import deploy

WORDS = ("prepare", "davis", "clevr", "report")


@pytest.fixture
def served(tracked, prefect: str, until: Callable[..., None]) -> Iterator[Any]:
    """The toy's one recipe, served by a process of its own; gives its deployment."""
    sections = {word: read_yaml(tracked.root / f"params/{word}.yaml") for word in WORDS}
    (tracked.root / "params/presets").mkdir()
    (tracked.root / "params/presets/toy.yaml").write_text("# Toys.\n# No more.\n" + canonical_yaml(sections))
    log = (tracked.root / "deploy.log").open("w")
    environment = os.environ | {"PREFECT_API_URL": prefect, "MLFLOW_UI_URL": "http://127.0.0.1:5000"}
    command = [sys.executable, "-m", "flows.deploy"]
    process = subprocess.Popen(command, cwd=tracked.root, env=environment, stdout=log, stderr=log)
    with get_client(sync_client=True) as client:

        def ready() -> Any:
            assert process.poll() is None, (tracked.root / "deploy.log").read_text()
            return [one for one in client.read_deployments() if one.name == "toy" and one.status == "READY"]

        until(ready)
        yield ready()[0]
        process.terminate()
        process.wait(60)
        client.delete_deployment(next(one.id for one in client.read_deployments() if one.name == "toy"))


def trigger(deployment: Any, name: str, until: Callable[..., None], **parameters: Any) -> FlowRun:
    """Starts a run and waits for its end."""
    with get_client(sync_client=True) as client:
        run = client.create_flow_run_from_deployment(deployment.id, parameters=parameters, name=name)

        def ended() -> bool:
            state = client.read_flow_run(run.id).state
            # The server records tasks after their events: the name of a state may be there before its message.
            recorded = client.read_task_runs(flow_run_filter=FlowRunFilter(id=FlowRunFilterId(any_=[run.id])))
            return bool(state and state.is_final()) and all(
                task.state is not None and task.state.name == task.state_name for task in recorded
            )

        until(ended)
        return client.read_flow_run(run.id)


def tasks(run: FlowRun) -> dict[str, tuple[str, str]]:
    with get_client(sync_client=True) as client:
        found = client.read_task_runs(flow_run_filter=FlowRunFilter(id=FlowRunFilterId(any_=[run.id])))
    return {task.name: (task.state_name or "", (task.state and task.state.message) or "") for task in found}


def artifacts(run: FlowRun) -> dict[str, str]:
    with get_client(sync_client=True) as client:
        found = client.read_artifacts(
            flow_run_filter=FlowRunFilter(id=FlowRunFilterId(any_=[run.id])), artifact_filter=ArtifactFilter()
        )
    return {str(artifact.key): str(artifact.data) for artifact in found}


def test_the_button(served: Any, tracked, until: Callable[..., None]) -> None:
    assert served.description == "Toys. No more."
    assert served.parameters == deploy.parameters(tracked.root, "toy")
    tracked.script(
        "davis", "echo 'davis: 3/4 frames, 12 frames/s, 1 s left'\n" + (tracked.root / "scripts/davis.sh").read_text()
    )

    # A value changed in the form goes into the run's params, into DVC and into MLflow's row, under one name.
    davis = served.parameters["davis"] | {"radius": 5}
    first = trigger(served, "Wide masks (2)", until, davis=davis)
    assert (first.state_name, first.name) == ("Completed", "Wide-masks-2")
    assert read_yaml(tracked.tree("Wide-masks-2") / "params/davis.yaml")["radius"] == 5
    assert read_yaml(tracked.root / "params/davis.yaml")["radius"] == 12
    assert tracked.locked("Wide-masks-2") == {"prepare@shapes", "prepare@shapes_video", "davis", "clevr", "report"}
    assert "Wide-masks-2" in tracked.dvc("exp", "list", "--name-only").stdout.split()
    client = MlflowClient(f"sqlite:///{tracked.root / 'mlflow.db'}")
    experiment = client.get_experiment_by_name("stop").experiment_id
    (row,) = client.search_runs([experiment])
    assert (row.info.run_name, row.data.params["davis.radius"]) == ("Wide-masks-2", "5")
    assert row.data.tags["prefect.url"].endswith(str(first.id))
    assert {name: state for name, (state, _) in tasks(first).items()} == {
        "check": "Completed",
        **dict.fromkeys(tracked.locked("Wide-masks-2"), "Ran"),
    }
    left = artifacts(first)
    assert left.keys() == {"report", "stages", "progress-davis", "mlflow-run"}
    assert left["progress-davis"] == "75"
    assert f"/experiments/{experiment}/runs/{row.info.run_id}" in left["mlflow-run"]
    assert "# The report" in left["report"]

    # Only the chosen stage; what differs from the run before stands beside it, with a link to MLflow's comparison.
    tracked.script("clevr", "mkdir -p metrics; echo '{\"count_top1\": 40.0}' > metrics/clevr.json")
    second = trigger(served, "second", until, davis=davis, stages=["clevr"])
    assert {name: state for name, (state, _) in tasks(second).items()} == {
        "check": "Completed",
        "prepare@shapes": "Cached",
        "clevr": "Ran",
    }
    left = artifacts(second)
    assert "| clevr/count_top1 | 40 | 25 | +15 |" in " ".join(left["report"].split())
    assert "compare-runs?runs=" in left["mlflow-comparison"] and row.info.run_id in left["mlflow-comparison"]


def test_what_is_wrong_is_told_before_anything_starts(served: Any, tracked, until: Callable[..., None]) -> None:
    before = {path: path.read_text() for path in (tracked.root / "params").glob("*.yaml")}
    with pytest.raises(PrefectHTTPStatusError, match="409|422") as refused:
        trigger(served, "negative", until, davis=served.parameters["davis"] | {"radius": -1})
    assert "-1 is less than the minimum of 1" in refused.value.response.text
    with get_client(sync_client=True) as client:
        assert "negative" not in {run.name for run in client.read_flow_runs()}

    # Rules across fields, of two sections at once, are beyond a schema: the first task tells both, and nothing is written.
    sections = {word: served.parameters[word] for word in WORDS}
    clevr = sections["clevr"] | {"test_split": sections["clevr"]["train_split"]}
    cards = [card | {"scenes": 1} for card in sections["prepare"]["datasets"]]
    run = trigger(served, "crossed", until, clevr=clevr, prepare={"datasets": cards})
    assert run.state_name == "Failed"
    told = tasks(run)
    assert set(told) == {"check"}
    assert told["check"][0] == "Failed"
    for message in (told["check"][1], run.state.message if run.state else ""):
        assert "clevr: train_split and test_split are both 'train'" in message
        assert "prepare: datasets.shapes: scenes is 1; with format 'shapes' it must be at least 32" in message
    assert {path: path.read_text() for path in before} == before

    # What only the graph can tell, after the files were written: they are as before.
    cards = [card | {"name": "shapez"} for card in sections["prepare"]["datasets"][:1]]
    run = trigger(served, "nowhere", until, prepare={"datasets": cards})
    assert (run.state_name, set(tasks(run))) == ("Failed", {"check"})
    assert "reads 'data/prepared/shapes" in (run.state.message or "" if run.state else "")
    assert {path: path.read_text() for path in before} == before
    assert not (tracked.root / "logs").exists()


def test_retry_of_a_served_run_does_only_what_failed(
    served: Any, tracked, prefect: str, until: Callable[..., None]
) -> None:
    work = (tracked.root / "scripts/davis.sh").read_text()
    tracked.script("davis", f"[ -e ../../../lucky ] || {{ echo no luck; exit 1; }}\n{work}")
    run = trigger(served, "retried", until)
    assert (run.state_name, run.run_count, tasks(run)["davis"][0]) == ("Failed", 1, "Failed")
    (tracked.root / "lucky").touch()
    (tracked.root / "scripts/clevr.sh").write_text("exit 9\n")  # an edit since: a retry does the same work again
    retry = [sys.executable, "-m", "prefect", "--no-prompt", "flow-run", "retry", str(run.id)]  # as the button does
    subprocess.run(retry, env=os.environ | {"PREFECT_API_URL": prefect}, check=True, capture_output=True)
    with get_client(sync_client=True) as client:
        until(lambda: (state := client.read_flow_run(run.id).state) and state.is_final() and state.name != "Failed")
        again = client.read_flow_run(run.id)
        found = client.read_task_runs(flow_run_filter=FlowRunFilter(id=FlowRunFilterId(any_=[run.id])))
    assert (again.state_name, again.run_count) == ("Completed", 2)
    newest = {task.name: task.state_name for task in sorted(found, key=lambda task: task.start_time or task.created)}
    cached = dict.fromkeys(("prepare@shapes", "prepare@shapes_video", "clevr"), "Cached")
    assert newest == {"check": "Completed", **cached, "davis": "Ran", "report": "Ran"}
    client = MlflowClient(f"sqlite:///{tracked.root / 'mlflow.db'}")
    (row,) = client.search_runs([client.get_experiment_by_name("stop").experiment_id])
    assert (row.info.status, row.data.metrics["davis/jf_mean"]) == ("FINISHED", 50.0)
    assert tracked.dvc("exp", "list", "--name-only").stdout.split().count("retried") == 1


@pytest.mark.parametrize("wrong", ["no server", "nobody there", "no recipe"])
def test_bad_input_is_one_message(toy, prefect: str, wrong: str) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "PREFECT_API_URL"}
    if wrong != "no server":
        environment["PREFECT_API_URL"] = prefect if wrong == "no recipe" else "http://127.0.0.1:1/api"
    command = [sys.executable, "-m", "flows.deploy"]
    done = subprocess.run(command, cwd=toy.root, env=environment, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (2, "")
    expected = {
        "no server": "error: PREFECT_API_URL is not set",
        "nobody there": "'http://127.0.0.1:1/api', where no Prefect server answers: [Errno 111] Connection refused; start it",
        "no recipe": "holds no whole recipe",
    }
    assert expected[wrong] in done.stderr and len(done.stderr.splitlines()) == 1
