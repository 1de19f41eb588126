"""The one Prefect task: a stage of dvc.yaml, which DVC runs or skips."""

import errno
import logging
import os
import sys
import time
from collections.abc import Mapping, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prefect import get_run_logger, task
from prefect.cache_policies import NO_CACHE
from prefect.client.schemas import State
from prefect.states import Completed, Failed

from flows import artifacts, command, devices, run_cache, slots
from flows.kept import kept

terminal = logging.getLogger("flows")
"""What a person at a terminal reads; silent unless the caller gives it a handler."""

FULL = os.strerror(errno.ENOSPC)
UNSTORED = "ERROR: failed to transfer"
"""DVC (3.67) says so of a file of a folder, and still ends with 0; its next repro finds the folder missing and runs the stage again."""
UI_LINES_PER_S = 20  # more would fill Prefect's database; the log file has every line
DVC_CHATTER = (  # hints for a person typing commands, after each stage
    "Generating lock file",
    "Updating lock file",
    "To track the changes with git",
    "\tgit add",
    "To enable auto staging",
    "\tdvc config core.autostage",
    "Use `dvc push`",
    "Data and pipelines are up to date",
)


@dataclass(frozen=True)
class Run:
    """One pipeline run in the folder `root`: what all its stages share."""

    root: Path
    name: str
    checkout: Path
    forced: Set[str]
    """Stages that run even if DVC would skip them."""
    environment: Mapping[str, str]
    """Added to this process's environment for the stages."""
    lifeline: command.Lifeline

    @property
    def logs(self) -> Path:
        """Absolute folder of the stages' lines."""
        return self.checkout / "logs" / self.name

    def close_killed(self, stage: str) -> None:
        """In MLflow, the run of a stage that had no time to close it."""
        from components import parent_runs  # imports mlflow

        parent_runs.close_killed(self.checkout, self.environment.get("PIPELINE_PARENT_RUN_ID", ""), stage)


@task(cache_policy=NO_CACHE, persist_result=False)
def run_stage(stage: str, timeout_s: float, gpus: int, run: Run) -> State[dict[str, Any]]:
    """Completed under the name `Ran`, or `Cached` where DVC skipped it; or Failed with the stage's and DVC's last words.

    Each holds {stage, state: ran | cached | failed, seconds, log: `logs/<run>/<stage>.log`}. It runs no upstream: the caller
    submits a stage after its upstreams. Neither `timeout_s` nor the seconds count the wait for `gpus`.
    """
    log = run.logs / f"{stage}.log"
    lines = _Lines(stage)
    repro = run_cache.command("repro", "--single-item", *["-f"] * (stage in run.forced), stage)
    environment = stage_environment(run.environment)
    own = devices.wanted(stage, gpus, environment)

    def spare() -> bool:
        return stage not in run.forced and kept(run.root, stage)

    try:
        with (
            slots.held(gpus, run.lifeline, spare),
            devices.own(own, environment, run.lifeline, spare) as (visible, sockets),
        ):
            started = time.monotonic()
            ended = command.run(
                repro, run.lifeline, run.root, environment | visible, log, lines, timeout_s, keep=sockets
            )
    except (devices.ReleasedError, devices.TooFewError) as error:
        return Failed(message=f"error: {error}", data={"stage": stage, "state": "failed", "seconds": 0.0, "log": ""})
    lines.progress.end()
    if ended.status:  # the memory's end kills a stage as well
        run.close_killed(stage)
    state = "failed" if ended.status or lines.unstored else "ran" if lines.ran else "cached"
    result = {
        "stage": stage,
        "state": state,
        "seconds": round(time.monotonic() - started, 1),
        "log": str(Path("logs", run.name, log.name)),
    }
    if state == "failed":
        return Failed(message=failure_message([*lines.unstored, *ended.tail]), data=result)
    return Completed(name=state.title(), data=result)


def stage_environment(added: Mapping[str, str]) -> dict[str, str]:
    """This process's environment for a `python …` command of dvc.yaml, with `added` over it."""
    environment = os.environ | added
    environment["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), environment.get("PATH", os.defpath)])
    environment["PYTHONUNBUFFERED"] = "1"  # progress lines arrive when they are printed
    environment.pop("MLFLOW_RUN_ID", None)  # it would win over the parent run
    return environment


def failure_message(tail: list[str]) -> str:
    """The last lines from the stage's own `error: …` on; without one the last 15, as a traceback needs. Of a full disk, the way out."""
    lines = [line for line in tail if line and not line.startswith(DVC_CHATTER)]
    unstored = next((line for line in lines if line.startswith(UNSTORED)), "")
    if full := next((line for line in lines if FULL in line), ""):
        return (
            f"error: the disk is full: {full.removeprefix('ERROR: ')}\nMake room (`make gc` shows what no kept run needs), then retry "
            "this run, or start it again: what is recorded stays, and the stage goes on from its resume state"
        )
    if unstored:
        return f"error: DVC could not store what the stage made: {unstored.removeprefix('ERROR: ')}"
    errors = [number for number, line in enumerate(lines) if line.startswith("error: ")]
    return "\n".join(lines[errors[0] :] if errors else lines[-15:])


class _Lines:
    """Passes a stage's lines on to the terminal and to Prefect's log, and notes whether DVC ran the stage."""

    def __init__(self, stage: str) -> None:
        self.ran = False
        self.unstored = list[str]()
        self._stage, self._last = stage, ""
        self.progress = artifacts.Progress(stage)
        self._logger = get_run_logger()
        self._second, self._sent = 0, 0

    def __call__(self, line: str) -> None:
        running = f"Running stage '{self._stage}':"
        last, self._last = self._last, line
        self.ran |= line == running
        self.unstored += [line] if line.startswith(UNSTORED) and not self.unstored else []
        if not line or line.startswith(DVC_CHATTER) or last == running:  # then comes the long command of dvc.yaml
            return
        terminal.info("[%s] %s", self._stage, line)
        self.progress.line(line)
        artifacts.dashboard(self._stage, line)
        if self._second != int(time.monotonic()):
            self._second, self._sent = int(time.monotonic()), 0
        self._sent += 1
        if self._sent <= UI_LINES_PER_S:
            self._logger.info("%s", line)
