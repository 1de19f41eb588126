"""The promise of the doors: whatever ends a run, its stages' whole process trees end within 10 s and DVC's locks are clean."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml
from mlflow import MlflowClient
from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterName
from prefect.client.schemas.objects import FlowRun
from prefect.settings import PREFECT_API_URL, temporary_settings
from prefect.states import Cancelling

from components.stage import canonical_yaml, read_yaml
from flows import killed, server, zombies
from flows.pipeline import pipeline

PROJECT = Path(__file__).parents[2]
LIMIT_S = 10.0
WORDS = ("prepare", "davis", "clevr", "report")
# One member says goodbye on SIGINT; the other one ignores all but SIGKILL and hides a child in a session of its own.
POLITE = """import os, time
print('pid', os.getpid(), flush=True)
try: time.sleep(600)
except KeyboardInterrupt: print('saved', flush=True)"""
HANG = f"""
if [ $1 = shapes ]; then exec python -c "{POLITE}"; fi
trap '' INT TERM
setsid sleep 600 &
echo pid $$
sleep 600
"""


@pytest.fixture
def recipe(tracked: Any) -> Any:
    """The toy with one whole recipe, named toy, and a stage that hangs."""
    (tracked.root / "params/presets").mkdir()
    sections = {word: read_yaml(tracked.root / f"params/{word}.yaml") for word in WORDS}
    (tracked.root / "params/presets/toy.yaml").write_text(canonical_yaml(sections))
    tracked.works = (tracked.root / "scripts/prepare.sh").read_text()
    tracked.script("prepare", HANG)
    return tracked


class Door:
    """A process that starts runs, and the deployment that it takes them from."""

    def __init__(self, toy: Any, process: subprocess.Popen[bytes], until: Callable[..., None]) -> None:
        self.toy, self.process, self.until = toy, process, until

    def hanging(self, name: str) -> tuple[FlowRun, psutil.Process, list[psutil.Process]]:
        """A run in the middle of two stages: it, its flow's process, and every process below the door."""
        with get_client(sync_client=True) as client:
            (deployment,) = [one for one in client.read_deployments() if one.name == "toy"]
            run = client.create_flow_run_from_deployment(deployment.id, name=name)
        logs = [self.toy.root / "logs" / name / f"prepare@{member}.log" for member in ("shapes", "shapes_video")]
        self.until(lambda: all(log.exists() and "\npid " in log.read_text() for log in logs))
        below = psutil.Process(self.process.pid).children
        self.until(lambda: [one.name() for one in below(recursive=True)].count("sleep") == 2)
        tree = below(recursive=True)
        (flow,) = [one for one in tree if any("supervisor.py" in " ".join(child.cmdline()) for child in one.children())]
        return run, flow, tree


@pytest.fixture
def served(recipe: Any, prefect: str, until: Callable[..., None]) -> Iterator[Door]:
    with door(recipe, prefect, until, [sys.executable, "-m", "flows.deploy"]) as opened:
        yield opened


@pytest.fixture
def worker(recipe: Any, prefect: str, until: Callable[..., None]) -> Iterator[Door]:
    """A process worker, with the project's own prefect.yaml but for the recipe's name."""
    config = yaml.safe_load((PROJECT / "prefect.yaml").read_text())
    first = config["deployments"][0] | {
        "name": "toy",
        "build": [{"flows.deploy.recipe": {"id": "it", "name": "toy"}}],
    }
    (recipe.root / "prefect.yaml").write_text(canonical_yaml(config | {"deployments": [first]}))
    environment = os.environ | {"PREFECT_API_URL": prefect, "PREFECT_WORKER_QUERY_SECONDS": "2"}
    words = [sys.executable, "-m", "prefect", "--no-prompt"]
    for command in (["work-pool", "create", "stop", "--type", "process", "--overwrite"], ["deploy", "--all"]):
        done = subprocess.run([*words, *command], cwd=recipe.root, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
    start = [*words, "worker", "start", "--pool", "stop", "--type", "process"]
    with door(recipe, prefect, until, start, PREFECT_WORKER_QUERY_SECONDS="2") as opened:
        yield opened


@contextmanager
def door(toy: Any, prefect: str, until: Callable[..., None], command: list[str], **settings: str) -> Iterator[Door]:
    """Starts the command that takes runs; a killed one is not missed."""
    environment = os.environ | {"PREFECT_API_URL": prefect, "MLFLOW_UI_URL": "http://127.0.0.1:5000"} | settings
    with (toy.root / "door.log").open("w") as log:
        process = subprocess.Popen(command, cwd=toy.root, env=environment, stdout=log, stderr=log)
    with get_client(sync_client=True) as client:

        def ready() -> list[Any]:
            assert process.poll() is None, (toy.root / "door.log").read_text()
            return [one for one in client.read_deployments() if one.name == "toy" and one.status == "READY"]

        try:
            until(ready)
            yield Door(toy, process, until)
        finally:
            process.kill()
            process.wait()
            for one in client.read_deployments():
                client.delete_deployment(one.id)


def all_end(tree: list[psutil.Process], started: float) -> float:
    """Seconds from `started` until no process of the tree is left; printed, to be read with -s."""
    while left := [one for one in tree if runs(one)]:
        assert time.monotonic() < started + 60, left
        psutil.wait_procs(left, timeout=0.05)
    took = time.monotonic() - started
    print(f"{len(tree)} processes ended after {took:.1f} s")
    return took


def runs(one: psutil.Process) -> bool:
    """Not of one that has ended and whose parent died before it: how soon it disappears is a matter of the machine's init."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return bool(one.is_running() and one.status() != psutil.STATUS_ZOMBIE)
    return False


def statuses(toy: Any) -> dict[str, str]:
    client = MlflowClient(f"sqlite:///{toy.root / 'mlflow.db'}")
    experiments = [experiment.experiment_id for experiment in client.search_experiments()]
    return {str(row.info.run_name): row.info.status for row in client.search_runs(experiments)}


def state_of(run: FlowRun) -> str:
    with get_client(sync_client=True) as client:
        state = client.read_flow_run(run.id).state
    return state.name if state and state.name else ""


def locks_are_clean(toy: Any, name: str) -> None:
    """DVC works in the run's tree at once, without waiting for a lock."""
    (toy.tree(name) / "scripts/prepare.sh").write_text(toy.works)
    again = toy.dvc("repro", "--single-item", "prepare@shapes", run=name)
    assert again.returncode == 0, again.stderr
    assert toy.locked(name) == {"prepare@shapes"}


@pytest.fixture(params=["served", "worker"])
def entrance(request: pytest.FixtureRequest) -> Door:
    """Both doors, one after the other."""
    door: Door = request.getfixturevalue(request.param)
    return door


@pytest.mark.faults
def test_cancel(entrance: Door, recipe: Any, until: Callable[..., None]) -> None:
    run, flow, tree = entrance.hanging("cancelled")
    stages = flow.children(recursive=True)
    with get_client(sync_client=True) as client:
        started = time.monotonic()
        client.set_flow_run_state(run.id, Cancelling())  # what the button does
    assert all_end(stages, started) < LIMIT_S
    all_end(tree, started)
    until(lambda: state_of(run) == "Cancelled")
    assert statuses(recipe)["cancelled"] == "KILLED"
    assert "saved" in (recipe.root / "logs/cancelled/prepare@shapes.log").read_text()
    locks_are_clean(recipe, run.name)


@pytest.mark.faults
def test_the_door_dies(entrance: Door, recipe: Any, until: Callable[..., None]) -> None:
    run, _, tree = entrance.hanging("orphaned")
    started = time.monotonic()
    entrance.process.send_signal(signal.SIGKILL)
    assert all_end(tree, started) < LIMIT_S
    until(lambda: state_of(run) == "Crashed")
    assert statuses(recipe)["orphaned"] == "KILLED"
    locks_are_clean(recipe, run.name)


@pytest.mark.faults
def test_the_flow_dies(entrance: Door, recipe: Any, until: Callable[..., None]) -> None:
    run, flow, tree = entrance.hanging("shot")
    started = time.monotonic()
    flow.send_signal(signal.SIGKILL)
    assert all_end(tree, started) < LIMIT_S
    until(lambda: state_of(run) == "Crashed")
    until(lambda: statuses(recipe)["shot"] == "KILLED")  # by the door, which is alive
    locks_are_clean(recipe, run.name)


@pytest.mark.faults
def test_the_time_limit_passes(recipe: Any, prefect: str, until: Callable[..., None]) -> None:
    text = (recipe.root / "dvc.yaml").read_text()
    prepare = "cmd: sh scripts/prepare.sh ${key}"
    assert prepare in text
    (recipe.root / "dvc.yaml").write_text(text.replace(prepare, f"{prepare}\n      meta: {{timeout_s: 4}}"))
    with contextlib.chdir(recipe.root):
        state = pipeline.with_options(flow_run_name="late")(stages=["prepare"], return_state=True)
    assert "error: stopped: it ran longer than its limit of 4 s" in state.message
    log = recipe.root / "logs/late/prepare@shapes_video.log"
    assert not psutil.pid_exists(int(log.read_text().partition("\npid ")[2].split()[0]))
    with get_client(sync_client=True) as client:
        late = FlowRunFilter(name=FlowRunFilterName(any_=["late"]))  # other tests have tasks of these names
        found = client.read_task_runs(flow_run_filter=late)
        tasks = {task.name: task for task in found if task.name.startswith("prepare")}
    took = {name: task.total_run_time.total_seconds() - 4 for name, task in tasks.items()}
    assert took.keys() == {"prepare@shapes", "prepare@shapes_video"} and max(took.values()) < LIMIT_S
    assert statuses(recipe)["late"] == "FAILED"
    locks_are_clean(recipe, "late")


@pytest.mark.faults
def test_all_die_at_once_and_the_server_notices(
    recipe: Any, prefect: str, until: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    start = [sys.executable, "-m", "flows.deploy"]
    with door(recipe, prefect, until, start, PREFECT_FLOWS_HEARTBEAT_FREQUENCY="30") as entrance:  # as often as can be
        with get_client(sync_client=True) as client:
            zombies.register(silence_s=45)
            (automation,) = client.read_automations()  # the served one, brought up to date
            assert automation.trigger.within.total_seconds() == 45
        run, flow, tree = entrance.hanging("gone")
        for one in (psutil.Process(entrance.process.pid), flow):
            one.send_signal(signal.SIGKILL)
        assert all_end(tree, time.monotonic()) < LIMIT_S
        assert state_of(run) == "Running"
        until(lambda: state_of(run) == "Crashed")
        assert statuses(recipe)["gone"] == "RUNNING"
        killed.close(recipe.root)  # as the next run does
        assert statuses(recipe)["gone"] == "KILLED"


@pytest.mark.browser
def test_cancel_on_the_page(
    recipe: Any, page: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, until: Callable[..., None]
) -> None:
    monkeypatch.setenv("PREFECT_HOME", str(tmp_path / "prefect"))
    start = [sys.executable, "-m", "flows.deploy"]
    with (
        server.temporary(tmp_path) as address,
        temporary_settings({PREFECT_API_URL: f"{address}/api"}),
        door(recipe, f"{address}/api", until, start) as entrance,
    ):
        run, flow, tree = entrance.hanging("pressed")
        stages = flow.children(recursive=True)
        page.goto(f"{address}/runs/flow-run/{run.id}")
        page.get_by_role("button", name="Cancel", exact=True).click()
        page.get_by_role("button", name="Confirm", exact=True).click()
        started = time.monotonic()
        assert all_end(stages, started) < LIMIT_S
        all_end(tree, started)
        page.get_by_text("Cancelled", exact=True).first.wait_for()
        assert statuses(recipe)["pressed"] == "KILLED"
        locks_are_clean(recipe, "pressed")
