"""One stage as a Prefect task: what DVC did is what a person sees."""

import logging
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from prefect import flow
from prefect.client.schemas import State

from flows.command import Lifeline
from flows.stage import Run, failure_message, run_stage, stage_environment


@pytest.fixture
def stage(toy, prefect) -> Callable[..., State]:
    """Runs one stage of the toy and returns the final state of its task."""

    states: list[State] = []

    @flow(name="one-stage")
    def one(name: str, force: bool) -> None:
        with Lifeline() as lifeline:
            run = Run(toy.root, "try", toy.root, {name} if force else set(), {"FROM_RUN": "1"}, lifeline)
            states.append(run_stage(name, 0, 0, run, return_state=True))

    def run(name: str, force: bool = False) -> State:
        one(name, force)
        return states[-1]

    return run


def test_ran_then_cached_then_forced(toy, stage) -> None:
    first, second, forced = stage("prepare@shapes"), stage("prepare@shapes"), stage("prepare@shapes", force=True)
    assert [state.name for state in (first, second, forced)] == ["Ran", "Cached", "Ran"]
    assert [state.is_completed() for state in (first, second, forced)] == [True] * 3
    result = first.result()
    assert result.pop("seconds") > 0
    assert result == {"stage": "prepare@shapes", "state": "ran", "log": "logs/try/prepare@shapes.log"}
    assert second.result()["state"] == "cached"
    assert toy.locked() == {"prepare@shapes"}


def test_a_result_from_the_run_cache_shows_as_cached(toy, stage) -> None:
    stage("prepare@shapes")
    (toy.root / "dvc.lock").unlink()
    assert stage("prepare@shapes").name == "Cached"
    assert toy.locked() == {"prepare@shapes"}


def test_a_failed_stage_shows_its_own_and_dvcs_message(toy, stage) -> None:
    toy.script(
        "prepare", "echo working; echo 'error: seed is -1; it must be at least 0' >&2; echo '  so there' >&2; exit 2"
    )
    state = stage("prepare@shapes")
    assert state.is_failed()
    own, more, dvc = state.message.splitlines()
    assert (own, more) == ("error: seed is -1; it must be at least 0", "  so there")
    assert dvc.startswith("ERROR: failed to reproduce 'prepare@shapes'") and dvc.endswith("exited with 2")
    assert "working" in (toy.root / "logs/try/prepare@shapes.log").read_text().splitlines()
    assert state.result(raise_on_failure=False)["state"] == "failed"
    assert toy.locked() == set()


def test_lines_reach_the_terminal_with_the_stage_before_them(toy, stage, caplog: pytest.LogCaptureFixture) -> None:
    toy.script("prepare", "echo 'step 1/2'; mkdir -p data/prepared/$1; echo > data/prepared/$1/x")
    with caplog.at_level(logging.INFO, logger="flows"):
        stage("prepare@shapes")
    lines = [record.getMessage() for record in caplog.records if record.name == "flows"]
    assert lines == [
        "[prepare@shapes] Running stage 'prepare@shapes':",
        "[prepare@shapes] step 1/2",
    ]


def test_the_stage_sees_this_python_and_the_run_but_no_foreign_mlflow_run(toy, stage, monkeypatch) -> None:
    monkeypatch.setenv("MLFLOW_RUN_ID", "foreign")
    code = "import os, sys; print(sys.executable, os.environ['FROM_RUN'], os.environ.get('MLFLOW_RUN_ID'))"
    toy.script("prepare", f'mkdir -p data/prepared/$1; python -c "{code}" > data/prepared/$1/x')
    stage("prepare@shapes")
    executable, from_run, run_id = (toy.root / "data/prepared/shapes/x").read_text().split()
    assert Path(executable).parent == Path(sys.executable).parent
    assert (from_run, run_id) == ("1", "None")
    assert stage_environment({})["DO_NOT_TRACK"] == "1"


def test_the_message_of_a_crash_is_its_traceback_and_of_bad_input_the_error_on() -> None:
    crash = ["old"] * 30 + [
        "Traceback (most recent call last):",
        "  File …",
        "KeyError: 'x'",
        "ERROR: failed to reproduce",
    ]
    assert failure_message(crash).splitlines()[-4:] == crash[-4:]
    assert len(failure_message(crash).splitlines()) == 15
    assert (
        failure_message(["noise", "error: a", "b", "", "Use `dvc push` to send", "ERROR: c"]) == "error: a\nb\nERROR: c"
    )
