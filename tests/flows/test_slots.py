"""GPUs as slots of a limit of Prefect's server: never more stages than slots, nobody waits for ever, a killed holder's slots return."""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest
from prefect import flow
from prefect.client.orchestration import get_client
from prefect.client.schemas import State
from prefect.client.schemas.actions import GlobalConcurrencyLimitCreate, GlobalConcurrencyLimitUpdate
from prefect.settings import PREFECT_API_URL, temporary_settings

from flows import devices, graph, server, slots
from flows.command import Lifeline
from flows.stage import Run, run_stage

Until = Callable[[Callable[[], object]], None]
MEMBERS = ("prepare@shapes", "prepare@shapes_video")


@pytest.fixture
def limit(prefect: str) -> Iterator[Any]:
    """A client and the limit, with one slot."""
    with get_client(sync_client=True) as client:
        client.create_global_concurrency_limit(GlobalConcurrencyLimitCreate(name=slots.LIMIT, limit=1))
        yield client
        client.delete_global_concurrency_limit_by_name(slots.LIMIT)


def taken(client: Any) -> int:
    return int(client.read_global_concurrency_limit_by_name(slots.LIMIT).active_slots)


@flow(name="one-stage-with-a-gpu")
def one(toy: Any, name: str, lifeline: Lifeline) -> tuple[str, str]:
    """Name and message of the final state of one stage that takes one slot."""
    state: State[Any] = run_stage(name, 0, 1, Run(toy.root, name, toy.root, set(), {}, lifeline), return_state=True)
    return str(state.name), str(state.message)


def alone(toy: Any, moment: str) -> None:
    """The stage fails if another one of its kind is at work; it ends when `moment` is there."""
    here, work = toy.root, (toy.root / "scripts/prepare.sh").read_text()
    toy.script(
        "prepare",
        f"mkdir {here}/busy || exit 9\nuntil [ -e {here}/{moment} ]; do sleep 0.1; done\n{work}rmdir {here}/busy",
    )


def test_stages_of_two_runs_take_turns_and_a_cached_one_does_not_wait(toy: Any, limit: Any, until: Until) -> None:
    alone(toy, "go")
    logs = [toy.root / "logs" / name / f"{name}.log" for name in MEMBERS]
    with Lifeline() as lifeline, ThreadPoolExecutor(2) as pool:
        runs = [pool.submit(one, toy, name, lifeline) for name in MEMBERS]
        until(lambda: (toy.root / "busy").is_dir())
        assert taken(limit) == 1
        assert [log.exists() for log in logs].count(True) == 1  # the other one has not begun
        (toy.root / "go").touch()
        assert [run.result()[0] for run in runs] == ["Ran", "Ran"]
        until(lambda: taken(limit) == 0)

        limit.update_global_concurrency_limit(slots.LIMIT, GlobalConcurrencyLimitUpdate(active_slots=1))
        assert one(toy, MEMBERS[0], lifeline)[0] == "Cached"
        (toy.root / "dvc.lock").unlink()
        assert one(toy, MEMBERS[0], lifeline)[0] == "Cached"  # from the run cache


def test_a_cancelled_run_does_not_wait_on(toy: Any, limit: Any, until: Until, caplog: pytest.LogCaptureFixture) -> None:
    limit.update_global_concurrency_limit(slots.LIMIT, GlobalConcurrencyLimitUpdate(active_slots=1))
    with Lifeline() as lifeline, ThreadPoolExecutor(1) as pool:
        run = pool.submit(one, toy, MEMBERS[0], lifeline)
        until(lambda: "waits for 1 of the slots 'gpu', which other stages hold" in caplog.text)
        lifeline.release()
        assert run.result() == ("Failed", "error: stopped while it waited for 1 of the slots 'gpu'")
    assert not (toy.root / "logs").exists()


def test_what_would_wait_for_ever_is_refused(toy: Any, limit: Any) -> None:
    text = (toy.root / "dvc.yaml").read_text()
    (toy.root / "dvc.yaml").write_text(
        text.replace("cmd: sh scripts/davis.sh", "cmd: sh scripts/davis.sh\n    meta: {gpu: 2}")
    )
    with pytest.raises(
        ValueError, match="(?s)stage 'davis' takes 2 GPUs.*has 1 slot\n.*prefect gcl update gpu --limit 2"
    ):
        slots.check(graph.read(toy.root))
    limit.update_global_concurrency_limit(slots.LIMIT, GlobalConcurrencyLimitUpdate(limit=2))
    slots.check(graph.read(toy.root))
    assert slots.ensure() == 2  # a person's value stays


def test_the_first_stage_that_needs_it_makes_the_limit(prefect: str) -> None:
    slots.check([])
    with get_client(sync_client=True) as client:
        assert client.read_global_concurrency_limits() == []
        assert slots.ensure() == max(1, len(devices.present(os.environ)))
        client.delete_global_concurrency_limit_by_name(slots.LIMIT)


@pytest.mark.faults
def test_the_slots_of_a_killed_run_come_back(tracked: Any, monkeypatch: pytest.MonkeyPatch, until: Until) -> None:
    """Even if Prefect's server is started anew meanwhile."""
    monkeypatch.setenv("PREFECT_HOME", str(tracked.root / ".prefect"))
    hint = "cmd: sh scripts/davis.sh\n    meta: {gpu: 1}"
    (tracked.root / "dvc.yaml").write_text(
        (tracked.root / "dvc.yaml").read_text().replace("cmd: sh scripts/davis.sh", hint)
    )
    tracked.script("davis", "sleep 600")
    code = "from flows.pipeline import pipeline; pipeline.with_options(flow_run_name='doomed')(stages=['davis'])"
    with server.temporary(tracked.root) as address, asked(address) as client:
        environment = os.environ | {"PREFECT_API_URL": f"{address}/api"}
        with (tracked.root / "run.log").open("w") as log:
            run = subprocess.Popen(
                [sys.executable, "-c", code], cwd=tracked.root, env=environment, stdout=log, stderr=log
            )
        until(lambda: (tracked.root / "logs/doomed/davis.log").exists())
        assert taken(client) == 1
        run.kill()
        run.wait()
    killed = time.monotonic()
    with server.temporary(tracked.root) as address, asked(address) as client:
        assert taken(client) == 1
        until(lambda: taken(client) == 0)
    assert time.monotonic() - killed < slots.LEASE_S + 30


@contextmanager
def asked(address: str) -> Iterator[Any]:
    """A client of the server there."""
    with temporary_settings({PREFECT_API_URL: f"{address}/api"}), get_client(sync_client=True) as client:
        yield client
