"""The whole flow on the toy: what runs, what is recorded, what a person reads, and what stops it."""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import psutil
import pytest
from mlflow import MlflowClient
from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import FlowRunFilter
from prefect.client.schemas.sorting import FlowRunSort

from components.stage import canonical_yaml, read_yaml
from flows import preflight
from flows.pipeline import StageFailedError, pipeline

MEET = (
    "mkdir started-{me}; n=0; until [ -d started-{other} ]; do n=$((n+1)); [ $n -lt 300 ] || exit 9; sleep 0.1; done\n"
)
ALONE = "mkdir busy || exit 9; sleep 0.5; rmdir busy\n"
CHECKED = {"check": "Completed"}
ALL = {"prepare@shapes", "prepare@shapes_video", "davis", "clevr", "report"}


def text(toy, word: str) -> str:
    return (toy.root / "scripts" / f"{word}.sh").read_text()


def parents(toy) -> list[Any]:
    client = MlflowClient(f"sqlite:///{toy.root / 'mlflow.db'}")
    experiments = [experiment.experiment_id for experiment in client.search_experiments()]
    return client.search_runs(experiments, order_by=["attributes.start_time DESC"])


def task_states(run_name: str) -> dict[str, str]:
    """State names by task run, of the newest flow run of this name."""
    with get_client(sync_client=True) as client:
        runs = [run for run in client.read_flow_runs(sort=FlowRunSort.START_TIME_ASC) if run.name == run_name]
        return {
            task.name: task.state_name
            for task in client.read_task_runs(flow_run_filter=FlowRunFilter(id={"any_": [runs[-1].id]}))
        }


def run(toy, name: str, targets: tuple[str, ...] = (), parallel: int = 2, force: bool = False) -> str:
    with contextlib.chdir(toy.root):
        report: str = pipeline.with_options(flow_run_name=name)(stages=list(targets), parallel=parallel, force=force)
    return report


def test_two_runs_in_parallel_then_cached(tracked, prefect) -> None:
    for me, other in (("davis", "clevr"), ("clevr", "davis")):
        tracked.script(
            me, MEET.format(me=me, other=other) + text(tracked, me)
        )  # each ends only if the other runs meanwhile
    report = run(tracked, "first")
    assert tracked.locked("first") == ALL
    assert tracked.dvc("status", run="first").stdout.strip() == "Data and pipelines are up to date."
    assert report.startswith("# The report\n")
    assert f"mlflow ui --backend-store-uri sqlite:///{tracked.root}/mlflow.db" in report
    assert "`dvc exp apply first` brings it into the checkout" in report
    assert task_states("first") == dict.fromkeys(ALL, "Ran") | CHECKED

    again = run(tracked, "second")
    assert again.count("| cached ") == 5
    assert task_states("second") == dict.fromkeys(ALL, "Cached") | CHECKED
    assert {line.split()[-1] for line in tracked.dvc("exp", "list", "--name-only").stdout.splitlines()} == {
        "first",
        "second",
    }

    second, first = parents(tracked)  # both rows are complete although the second ran nothing
    assert [row.info.run_name for row in (first, second)] == ["first", "second"]
    assert first.data.metrics == second.data.metrics == {"davis/jf_mean": 50.0, "clevr/count_top1": 25.0}
    assert first.data.params == second.data.params
    assert first.data.params["davis.radius"] == str(read_yaml(tracked.root / "params/davis.yaml")["radius"])
    assert {row.info.status for row in (first, second)} == {"FINISHED"}


def test_raw_data_that_dvc_downloaded_is_a_runs_as_well(tracked, prefect) -> None:
    published = tracked.root.parent / "published.zip"
    published.write_bytes(b"as its makers have it")
    ignored = tracked.root / ".gitignore"
    ignored.write_text(ignored.read_text().replace("/data/\n", "/data/prepared/\n/data/raw/*\n!/data/raw/*.dvc\n"))
    described = tracked.root / "dvc.yaml"
    described.write_text(described.read_text().replace("data/raw/toys", "data/raw/toys, data/raw/archive"))
    assert tracked.dvc("import-url", str(published), "data/raw/archive").returncode == 0
    for command in (["add", "-A"], ["commit", "-qm", "imported"]):
        subprocess.run(["git", *command], cwd=tracked.root, check=True)

    def clean() -> bool:
        return not subprocess.check_output(["git", "status", "--porcelain"], cwd=tracked.root)

    assert clean() and subprocess.check_output(["git", "ls-files", "data"], cwd=tracked.root, text=True).split() == [
        "data/raw/archive.dvc"
    ]
    run(tracked, "first")
    assert tracked.locked("first") == ALL
    assert tracked.dvc("status", run="first").stdout.strip() == "Data and pipelines are up to date."
    assert clean()
    (tracked.root / "data/raw/archive").unlink()  # a second clone, without its data
    source = {"datasets": {"zoo": {"source": "data/raw/archive"}}}
    with pytest.raises(
        ValueError, match="'data/raw/archive', which does not exist, but .*archive.dvc says where.*dvc pull"
    ):
        preflight.check_raw(tracked.root, source)


def test_force_is_for_the_chosen_stages_and_the_row_has_the_values_of_the_start(tracked, prefect) -> None:
    edit = "sed -i 's/^radius: .*/radius: 99/' ../../../params/davis.yaml"  # as a person does who prepares the next run
    tracked.script("clevr", text(tracked, "clevr") + edit)
    radius = str(read_yaml(tracked.root / "params/davis.yaml")["radius"])
    run(tracked, "first", ("clevr",))
    run(tracked, "forced", ("clevr",), force=True)
    assert task_states("forced") == {"prepare@shapes": "Cached", "clevr": "Ran"} | CHECKED
    forced, first = parents(tracked)
    assert (first.data.params["davis.radius"], forced.data.params["davis.radius"]) == (radius, "99")


def test_the_limit_holds_targets_select_and_git_is_not_needed(tracked, prefect) -> None:
    (tracked.root / ".git").rename(tracked.root / "no-git")
    (tracked.root / ".dvc/config.local").write_text("[core]\n    no_scm = true\n")
    tracked.script("prepare", ALONE + text(tracked, "prepare"))
    assert "not saved: no git repository with a commit" in run(tracked, "one-by-one", ("prepare",), parallel=1)
    assert tracked.locked() == {"prepare@shapes", "prepare@shapes_video"}


def test_a_failed_stage_leaves_its_sibling_and_stops_what_follows(tracked, prefect) -> None:
    tracked.script("davis", "echo 'error: short_side is 7; it must be a multiple of 8' >&2; exit 2")
    with pytest.raises(StageFailedError) as failure:
        run(tracked, "broken")
    lines = str(failure.value).splitlines()
    assert lines[0] == "davis failed: error: short_side is 7; it must be a multiple of 8"
    assert lines[-1] == "not run: report"
    assert tracked.locked("broken") == ALL - {"davis", "report"}
    assert task_states("broken") == {
        "check": "Completed",
        "prepare@shapes": "Ran",
        "prepare@shapes_video": "Ran",
        "clevr": "Ran",
        "davis": "Failed",
        "report": "NotReady",
    }
    (row,) = parents(tracked)
    assert (row.info.status, row.data.metrics) == ("FAILED", {"clevr/count_top1": 25.0})
    assert "broken" in tracked.dvc("exp", "list", "--name-only").stdout  # with the stages that finished


def test_bad_input_stops_before_any_stage(toy, prefect) -> None:
    davis = toy.root / "params/davis.yaml"
    davis.write_text(canonical_yaml(read_yaml(davis) | {"radios": 3}))
    clevr = read_yaml(toy.root / "params/clevr.yaml")
    (toy.root / "params/clevr.yaml").write_text(canonical_yaml(clevr | {"seed": "one"}))
    with pytest.raises(
        ValueError, match=r"(?s)davis.yaml: radios is not a known name.*clevr.yaml: seed is 'one'"
    ) as bad:
        run(toy, "typos")
    assert len(str(bad.value).splitlines()) == 2

    davis.write_text(canonical_yaml({key: value for key, value in read_yaml(davis).items() if key != "radios"}))
    (toy.root / "params/clevr.yaml").write_text(canonical_yaml(clevr))
    (toy.root / "data/raw/toys/one").unlink()
    (toy.root / "data/raw/toys").rmdir()
    with pytest.raises(ValueError, match="'prepare@shapes' reads 'data/raw/toys', which does not exist"):
        run(toy, "no-data")
    with pytest.raises(ValueError, match="'a run'.*wide-mask-2"):
        run(toy, "a run")
    with pytest.raises(ValueError, match="parallel is 0"):
        run(toy, "none", parallel=0)
    assert not (toy.root / "logs").exists()
    assert not (toy.root / "mlflow.db").exists()
    assert not list((toy.root / "workspaces").glob("*/"))


def test_a_stage_is_tried_again_unless_it_refused_its_input(tracked, prefect) -> None:
    graph = (tracked.root / "dvc.yaml").read_text()
    for word in ("davis", "clevr"):
        graph = graph.replace(f"outs: [metrics/{word}.json]", f"outs: [metrics/{word}.json]\n    meta: {{retries: 1}}")
    (tracked.root / "dvc.yaml").write_text(graph)
    tries = {word: tracked.tree("tried").parent / f"{word}.tries" for word in ("davis", "clevr")}
    tracked.script(
        "davis", f"echo >> {tries['davis']}; [ $(wc -l < {tries['davis']}) = 2 ] || exit 1\n{text(tracked, 'davis')}"
    )
    tracked.script("clevr", f"echo >> {tries['clevr']}; echo 'error: seed is -1; it must be at least 0' >&2; exit 2")
    with pytest.raises(StageFailedError, match="clevr failed: error: seed is -1"):
        run(tracked, "tried", ("davis", "clevr"))
    states = task_states("tried")
    assert (states["davis"], states["clevr"]) == ("Ran", "Failed")
    assert {word: len(path.read_text()) for word, path in tries.items()} == {"davis": 2, "clevr": 1}


def test_mlflow_that_is_not_there_is_told_and_the_name_stays_free(toy, prefect, monkeypatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:1")
    with pytest.raises(ValueError, match=r"MLflow at http://127.0.0.1:1 cannot be reached: .*refused; start it"):
        run(toy, "away")
    assert not list((toy.root / "workspaces").glob("*/"))


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_the_end_of_the_flow_ends_its_stages(
    tracked,
    prefect: str,
    number: signal.Signals,
    until: Callable[[Callable[[], object]], None],
    alive: Callable[[list[int]], list[int]],
) -> None:
    work = text(tracked, "prepare")
    tracked.script("prepare", "echo pid $$\nsleep 600")
    code = "from flows.pipeline import pipeline; pipeline.with_options(flow_run_name='doomed')(stages=['prepare'])"
    flow = subprocess.Popen(
        [sys.executable, "-c", code],
        cwd=tracked.root,
        env=os.environ | {"PREFECT_API_URL": prefect},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    logs = [tracked.root / "logs/doomed" / f"prepare@{name}.log" for name in ("shapes", "shapes_video")]
    until(lambda: all(log.exists() and "\npid " in log.read_text() for log in logs))
    below = psutil.Process(flow.pid).children
    until(lambda: [process.name() for process in below(recursive=True)].count("sleep") == 2)
    tree = [process.pid for process in below(recursive=True)]  # two stages, each a supervisor, dvc, shells and sleep
    flow.send_signal(number)
    assert flow.wait(120) != 0
    until(lambda: not alive(tree))
    if number != signal.SIGKILL:
        assert parents(tracked)[0].info.status == "KILLED"

    (tracked.tree("doomed") / "scripts/prepare.sh").write_text(work + "\n")
    again = tracked.dvc("repro", "--single-item", "prepare@shapes", run="doomed")  # without waiting: no lock is left
    assert again.returncode == 0, again.stderr
    assert tracked.locked("doomed") == {"prepare@shapes"}
