"""What the flow costs beside its stages: `make up && python benchmarks/orchestration.py`, one table, on the deployment `demo`.

Needs the project's services (`make up`). The first run fills DVC's cache; all figures are of the runs after it. The direct call and the
call through DVC and its supervisor alternate, so that a slow minute of the machine meets both.
"""

import argparse
import os
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterId
from prefect.settings import PREFECT_API_URL, temporary_settings

from flows import command, services
from flows.stage import stage_environment

ROOT = Path(__file__).parents[1]
SCRATCH = tempfile.TemporaryDirectory()
NAME = f"orchestration-{datetime.now():%Y%m%d-%H%M%S}"  # a name belongs to one run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=3)
    repeats = parser.parse_args().repeats
    up = services.running(ROOT)
    if "prefect" not in up or "deployments" not in up:
        sys.exit("error: the services are not up; `make up` starts them")
    with temporary_settings({PREFECT_API_URL: f"http://127.0.0.1:{up['prefect'].port}/api"}):
        first = submitted(0)
        cached = [submitted(number) for number in range(1, repeats + 1)]
    tree = ROOT / "workspaces" / f"{NAME}-{repeats}" / "tree"  # the newest; older ones are pruned
    direct_report(tree)  # makes the database
    direct, through = alternating(lambda: direct_report(tree), lambda: report_through_dvc(tree), repeats)
    table = {
        "first run: Submit to the first stage": [first["start"]],
        "cached runs: Submit to the first stage": [run["start"] for run in cached],
        "cached runs: Submit to the end": [run["end"] for run in cached],
        "cached stage": [seconds for run in cached for seconds in run["stages"]],
        "`report` called directly": direct,
        "`report` through supervisor and DVC": through,
        "overhead of an executed stage": [b - a for a, b in zip(direct, through, strict=True)],
    }
    print(f"\n| seconds, {os.cpu_count()} cores | minimum | median | maximum |\n|---|---:|---:|---:|")
    for name, values in table.items():
        print(f"| {name} | {min(values):.1f} | {statistics.median(values):.1f} | {max(values):.1f} |")


def submitted(number: int) -> dict[str, Any]:
    """Seconds from submitting a run of `demo` to its first stage and to its end, and those of each stage."""
    with get_client(sync_client=True) as client:
        deployment = client.read_deployment_by_name("end-to-end/demo")
        since = time.time()
        run = client.create_flow_run_from_deployment(deployment.id, name=f"{NAME}-{number}")
        while not (state := client.read_flow_run(run.id).state) or not state.is_final():
            time.sleep(0.05)
        end = time.time() - since
        if not state.is_completed():
            sys.exit(f"error: the run ended in state {state}")
        only = FlowRunFilter(id=FlowRunFilterId(any_=[run.id]))
        tasks = [task for task in client.read_task_runs(flow_run_filter=only) if task.name != "check"]
    starts: list[datetime] = [task.start_time for task in tasks if task.start_time]
    names = sorted({str(task.state_name) for task in tasks})
    print(f"run {number}: {end:.1f} s, {len(tasks)} stages {'/'.join(names)}", flush=True)
    return {
        "start": min(starts).timestamp() - since,
        "end": end,
        "stages": [task.total_run_time.total_seconds() for task in tasks],
    }


def alternating(one: Callable[[], None], other: Callable[[], None], repeats: int) -> tuple[list[float], list[float]]:
    times: tuple[list[float], list[float]] = ([], [])
    for _ in range(repeats):
        for call, kept in zip((one, other), times, strict=True):
            since = time.perf_counter()
            call()
            kept.append(time.perf_counter() - since)
    return times


def environment() -> dict[str, str]:
    """As inside a flow, which has a parent row; in a database of its own, so that no row of these calls stays in the project's."""
    return stage_environment(
        {"PIPELINE_PARENT_RUN_ID": "none", "MLFLOW_TRACKING_URI": f"sqlite:///{SCRATCH.name}/mlflow.db"}
    )


def direct_report(tree: Path) -> None:
    """The command of dvc.yaml, its outputs elsewhere."""
    from components.stage import read_yaml

    words = shlex.split(read_yaml(tree / "dvc.yaml")["stages"]["report"]["cmd"])
    with tempfile.TemporaryDirectory() as folder:
        for flag in ("--report", "--table", "--run"):
            place = words.index(flag) + 1
            words[place] = str(Path(folder) / Path(words[place]).name)
        subprocess.run(words, cwd=tree, env=environment(), check=True, capture_output=True)


def report_through_dvc(tree: Path) -> None:
    repro = [sys.executable, "-m", "dvc", "--wait-for-lock", "repro", "--single-item", "-f", "report"]
    with command.Lifeline() as lifeline:
        ended = command.run(repro, lifeline, tree, environment(), ROOT / "logs/orchestration.log", lambda line: None)
    if ended.status:
        sys.exit("\n".join(ended.tail))


if __name__ == "__main__":
    main()
