"""Two runs from the pages at once, with different values: both finish, each with its own, on both of Prefect's databases."""

import os
import pwd
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from mlflow import MlflowClient
from prefect.client.orchestration import get_client
from prefect.settings import PREFECT_API_URL, temporary_settings

from components.stage import canonical_yaml, read_yaml
from flows import server

pytestmark = pytest.mark.faults

WORDS = ("prepare", "davis", "clevr", "report")
# Each run's stage ends only when the other run's is at work, too.
MEET = """\
radius=$(sed -n 's/^radius: //p' params/davis.yaml)
mkdir {root}/met-$radius; n=0
until [ $(ls -d {root}/met-* | wc -l) = 2 ]; do n=$((n+1)); [ $n -lt 900 ] || exit 9; sleep 0.1; done
mkdir -p metrics; echo "{{\\"jf_mean\\": $radius.0}}" > metrics/davis.json
"""


@pytest.fixture(params=["sqlite", "postgresql"])
def address(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A Prefect server of its own with that database."""
    monkeypatch.setenv("PREFECT_HOME", str(tmp_path / "prefect"))
    if request.param == "postgresql":
        monkeypatch.setenv("PREFECT_SERVER_DATABASE_CONNECTION_URL", request.getfixturevalue("postgres"))
    with server.temporary(tmp_path) as found, temporary_settings({PREFECT_API_URL: f"{found}/api"}):
        yield f"{found}/api"


@pytest.fixture
def postgres() -> Iterator[str]:
    """The address of an empty PostgreSQL, which refuses to be root's."""
    binaries = sorted(Path("/usr/lib/postgresql").glob("*/bin"))
    found = shutil.which("initdb")
    if not found and not binaries:
        pytest.skip("needs PostgreSQL's initdb and pg_ctl")
    where = Path(found).resolve().parent if found else binaries[-1]
    other = "postgres" if "postgres" in {one.pw_name for one in pwd.getpwall()} else "nobody"
    start = ["runuser", "-u", other, "--"] if os.getuid() == 0 else []
    folder = Path(tempfile.mkdtemp(prefix="pg-", dir="/tmp"))
    if start:
        shutil.chown(folder, other)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    control = [*start, str(where / "pg_ctl"), "-D", str(folder / "data"), "-w"]
    options = f"-p {port} -k {folder} -c listen_addresses=127.0.0.1"
    initdb = [*start, str(where / "initdb"), "-D", str(folder / "data"), "--username=stop", "--auth=trust"]
    subprocess.run(initdb, check=True, cwd="/", stdout=subprocess.DEVNULL)
    log = ["-l", str(folder / "log"), "-o", options]
    subprocess.run([*control, *log, "start"], check=True, cwd="/", stdout=subprocess.DEVNULL)
    try:
        yield f"postgresql+asyncpg://stop@127.0.0.1:{port}/postgres"
    finally:
        subprocess.run([*control, "-m", "fast", "stop"], check=True, cwd="/", stdout=subprocess.DEVNULL)
        shutil.rmtree(folder)


@pytest.fixture
def served(tracked: Any, address: str, until: Callable[..., None]) -> Iterator[Any]:
    """The toy, its recipe served; gives the toy and the deployment."""
    (tracked.root / "params/presets").mkdir()
    sections = {word: read_yaml(tracked.root / f"params/{word}.yaml") for word in WORDS}
    (tracked.root / "params/presets/toy.yaml").write_text(canonical_yaml(sections))
    tracked.script("davis", MEET.format(root=tracked.root.parent))
    command = [sys.executable, "-m", "flows.deploy"]
    with (tracked.root.parent / "deploy.log").open("w") as log:
        environment = os.environ | {"PREFECT_API_URL": address}
        process = subprocess.Popen(command, cwd=tracked.root, env=environment, stdout=log, stderr=log)
    try:
        with get_client(sync_client=True) as client:

            def ready() -> list[Any]:
                assert process.poll() is None, (tracked.root.parent / "deploy.log").read_text()
                return [one for one in client.read_deployments() if one.name == "toy" and one.status == "READY"]

            until(ready)
            yield tracked, ready()[0]
    finally:
        process.terminate()
        process.wait(60)


def test_both_finish_right(served: Any, until: Callable[..., None]) -> None:
    toy, deployment = served
    before = {path: path.read_text() for path in (toy.root / "params").glob("*.yaml")}
    with get_client(sync_client=True) as client:
        runs = {
            radius: client.create_flow_run_from_deployment(
                deployment.id,
                parameters={"davis": deployment.parameters["davis"] | {"radius": radius}, "stages": ["davis"]},
                name=f"radius-{radius}",
            )
            for radius in (3, 5)
        }
        until(lambda: all(client.read_flow_run(run.id).state.is_final() for run in runs.values()))
        states = {radius: client.read_flow_run(run.id).state for radius, run in runs.items()}
    assert {radius: state.name for radius, state in states.items()} == {3: "Completed", 5: "Completed"}, states
    assert {path: path.read_text() for path in before} == before  # the checkout is nobody's

    client = MlflowClient(f"sqlite:///{toy.root / 'mlflow.db'}")
    rows = {
        row.info.run_name: row
        for row in client.search_runs([one.experiment_id for one in client.search_experiments()])
        if "trigger" in row.data.tags and "mlflow.parentRunId" not in row.data.tags
    }
    assert set(toy.dvc("exp", "list", "--name-only").stdout.split()) >= {"radius-3", "radius-5"}
    for radius in (3, 5):
        row = rows[f"radius-{radius}"]
        assert read_yaml(toy.tree(row.info.run_name) / "params/davis.yaml")["radius"] == radius
        assert (row.info.status, row.data.params["davis.radius"]) == ("FINISHED", str(radius))
        assert row.data.metrics["davis/jf_mean"] == radius
