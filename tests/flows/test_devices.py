"""GPUs of a stage's own: two at once never have the same, and whoever is killed frees them. Real processes, and names in place of GPUs."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from uuid import uuid4

import psutil
import pytest
from prefect import flow
from prefect.client.orchestration import get_client
from prefect.client.schemas import State
from prefect.client.schemas.actions import GlobalConcurrencyLimitCreate

from flows import devices, slots
from flows.command import Lifeline
from flows.devices import VISIBLE
from flows.stage import Run, run_stage

Until = Callable[[Callable[[], object]], None]
Alive = Callable[[list[int]], list[int]]
MEMBERS = ("prepare@shapes", "prepare@shapes_video")
SHOW = f"mkdir -p data/prepared/$1; echo ${{{VISIBLE}-unset}} > data/prepared/$1/gpus\n"
# A flow's process with one stage, which hears of nothing but SIGTERM and SIGKILL.
HOLDER = f"""
import os, pathlib, sys
from flows import command, devices
log, names = pathlib.Path(sys.argv[1]), sys.argv[2]
stage = "import os, signal, time; signal.signal(2, 1); print('pid', os.getpid(), flush=True); time.sleep(600)"
with command.Lifeline() as lifeline:
    visible = os.environ | {{"{VISIBLE}": names}}
    with devices.own(names.count(",") + 1, visible, lifeline, lambda: False) as (own, sockets):
        words = [sys.executable, "-c", stage]
        command.run(words, lifeline, log.parent, visible | own, log, print, grace_s=0.5, keep=sockets)
"""


@pytest.fixture
def names() -> list[str]:
    """Four GPUs that nobody else on this machine knows."""
    return [f"GPU-{uuid4()}" for _ in range(4)]


@pytest.fixture
def limit(prefect: str) -> Iterator[None]:
    """More slots than there are GPUs, as where another server gives slots for the same machine."""
    with get_client(sync_client=True) as client:
        client.create_global_concurrency_limit(GlobalConcurrencyLimitCreate(name=slots.LIMIT, limit=16))
        yield
        client.delete_global_concurrency_limit_by_name(slots.LIMIT)


@pytest.fixture
def holder(tmp_path: Path, names: list[str], until: Until) -> Iterator[tuple[psutil.Process, int]]:
    """A process whose stage has all four GPUs; it, and the stage's pid."""
    log = tmp_path / "holder.log"
    words = [sys.executable, "-c", HOLDER, str(log), ",".join(names)]
    process = subprocess.Popen(words, stdout=subprocess.DEVNULL, cwd=Path(__file__).parents[2])
    until(lambda: log.exists() and log.read_text().endswith("\n"))
    yield psutil.Process(process.pid), int(log.read_text().split()[1])
    process.kill()
    process.wait()


def free(names: list[str]) -> bool:
    with (
        Lifeline() as lifeline,
        devices.own(len(names), {VISIBLE: ",".join(names)}, lifeline, lambda: True) as (own, _),
    ):
        return bool(own)


@flow(name="one-stage-with-gpus-of-its-own")
def one(toy: Any, name: str, gpus: int, environment: dict[str, str], lifeline: Lifeline) -> tuple[str, str]:
    """Name and message of the final state of one stage."""
    run = Run(toy.root, name, toy.root, set(), environment, lifeline)
    state: State[Any] = run_stage(name, 0, gpus, run, return_state=True)
    return str(state.name), str(state.message)


def seen(toy: Any, name: str) -> list[str]:
    return str((toy.root / "data/prepared" / name.partition("@")[2] / "gpus").read_text().strip()).split(",")


def test_two_stages_at_once_have_different_gpus(toy: Any, limit: None, names: list[str]) -> None:
    meet = f"touch {toy.root}/here-$1; until [ $(ls -d {toy.root}/here-* | wc -l) = 2 ]; do sleep 0.1; done"
    toy.script("prepare", SHOW + meet)
    with Lifeline() as lifeline, ThreadPoolExecutor(2) as pool:
        runs = [pool.submit(one, toy, name, 2, {VISIBLE: ",".join(names)}, lifeline) for name in MEMBERS]
        assert [run.result()[0] for run in runs] == ["Ran", "Ran"]
    assert sorted(seen(toy, MEMBERS[0]) + seen(toy, MEMBERS[1])) == sorted(names)
    assert free(names)


def test_a_stage_waits_says_so_and_goes_on_when_the_holder_is_killed(
    toy: Any,
    limit: None,
    names: list[str],
    holder: tuple[psutil.Process, int],
    until: Until,
    caplog: pytest.LogCaptureFixture,
) -> None:
    toy.script("prepare", SHOW)
    environment = {VISIBLE: ",".join(names[2:])}
    with Lifeline() as lifeline, ThreadPoolExecutor(1) as pool:
        run = pool.submit(one, toy, MEMBERS[0], 1, environment, lifeline)
        until(lambda: "waits for 1 of the 2 GPUs to be seen on this machine, which other stages hold" in caplog.text)
        assert not (toy.root / "logs").exists()
        holder[0].kill()
        assert run.result()[0] == "Ran"
    assert seen(toy, MEMBERS[0]) == names[2:3]


def test_a_cancelled_run_does_not_wait_on_and_a_cached_stage_not_at_all(
    toy: Any,
    limit: None,
    names: list[str],
    holder: tuple[psutil.Process, int],
    until: Until,
    caplog: pytest.LogCaptureFixture,
) -> None:
    environment = {VISIBLE: names[0]}
    with Lifeline() as lifeline, ThreadPoolExecutor(1) as pool:
        assert one(toy, MEMBERS[0], 0, environment, lifeline)[0] == "Ran"
        assert one(toy, MEMBERS[0], 1, environment, lifeline)[0] == "Cached"
        run = pool.submit(one, toy, MEMBERS[1], 1, environment, lifeline)
        until(lambda: "waits for 1 of the 1 GPUs" in caplog.text)
        lifeline.release()
        message = "error: stopped while it waited for 1 of the 1 GPUs to be seen on this machine"
        assert run.result() == ("Failed", message)


def test_the_gpus_are_the_stages_until_it_has_ended_although_the_flow_is_killed(
    names: list[str], holder: tuple[psutil.Process, int], until: Until, alive: Alive
) -> None:
    flow_process, stage = holder
    assert not free(names)
    flow_process.kill()
    until(lambda: free(names))
    assert not alive([stage])


def test_the_gpus_are_the_stages_although_its_supervisor_is_killed(
    names: list[str], holder: tuple[psutil.Process, int], until: Until, alive: Alive
) -> None:
    flow_process, stage = holder
    (supervisor,) = flow_process.children()
    supervisor.kill()
    flow_process.wait(120)
    assert alive([stage]) and not free(names)
    os.kill(stage, signal.SIGKILL)
    until(lambda: free(names))


def test_more_gpus_than_the_machine_has_are_refused(toy: Any, limit: None, names: list[str]) -> None:
    with Lifeline() as lifeline:
        state, message = one(toy, MEMBERS[0], 3, {VISIBLE: ",".join(names[:2])}, lifeline)
    assert state == "Failed"
    assert message.startswith("error: the stage takes 3 GPUs, and 2 are to be seen on this machine")


def test_nothing_is_set_without_gpus_and_for_stages_that_take_none(toy: Any, limit: None, names: list[str]) -> None:
    toy.script("prepare", SHOW)
    with Lifeline() as lifeline:
        one(toy, MEMBERS[0], 0, {VISIBLE: ",".join(names)}, lifeline)
        one(toy, MEMBERS[1], 2, {VISIBLE: ""}, lifeline)
    assert (seen(toy, MEMBERS[0]), seen(toy, MEMBERS[1])) == (names, [""])


def test_what_is_to_be_seen() -> None:
    here = devices.present({})
    assert list(here) == [str(number) for number in range(len(here))]
    for given, names in {
        "": [],
        "-1": [],
        "NoDevFiles": [],
        "97, 98,-1,99": ["97", "98"],
        "MIG-GPU-x/1/0": ["MIG-GPU-x/1/0"],
    }.items():
        assert list(devices.present({VISIBLE: given})) == names
    for number, uuid in here.items():  # by number, by UUID and by its beginning it is one and the same
        assert [*devices.present({VISIBLE: f"{number},{uuid},{uuid[:-1]}"}).values()] == [uuid] * 3


@pytest.mark.parametrize(("stage", "alone", "beside_a_cluster"), [("pretrain", 8, 0), ("linear_probe@x", 4, 1)])
def test_a_ray_cluster_gives_its_own_gpus(stage: str, alone: int, beside_a_cluster: int) -> None:
    assert devices.wanted(stage, alone, {}) == devices.wanted(stage, alone, {"RAY_ADDRESS": "local"}) == alone
    assert devices.wanted(stage, alone, {"RAY_ADDRESS": "10.0.0.1:6379"}) == beside_a_cluster
