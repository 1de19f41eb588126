"""Housekeeping: what goes, goes from everywhere; what stays, works as before."""

import contextlib
import hashlib
import json
import os
import shutil
import subprocess
import sys
import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from dvc.repo import Repo
from mlflow import MlflowClient
from mlflow.entities import ViewType
from prefect import flow

from components import work
from components.stage import write_json
from components.tracking import removal
from components.tracking.database import database
from components.tracking.journal import journals
from components.tracking.run import Run
from flows import gc, records, retention
from flows.pipeline import Request, StageFailedError, pipeline, run_in
from flows.records import Record

RADIUS = "r=$(sed -n 's/^radius: //p' params/davis.yaml); mkdir -p metrics; echo '{\"jf_mean\": '$r'}' > metrics/davis.json\n"
"""A result that is each value's own."""
HOLDER = """
import sys
from pathlib import Path
from flows.workspace import open_workspace

space = open_workspace(Path(sys.argv[1]), sys.argv[2], "prefect:holder", "carry", False)
print("open", flush=True)
input()
"""


def run(toy, name: str, radius: int) -> None:
    values = toy.root / "params" / "davis.yaml"
    lines = [f"radius: {radius}" if line.startswith("radius:") else line for line in values.read_text().splitlines()]
    values.write_text("\n".join(lines) + "\n")
    with contextlib.chdir(toy.root):
        pipeline.with_options(flow_run_name=name)()


def files(root: Path) -> dict[str, str]:
    """Everything below `root` but locks that say nothing, by content."""
    found = sorted(path for path in root.rglob("*") if path.is_file() and not path.is_symlink())
    return {
        str(path.relative_to(root)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in found
        if "tmp" not in path.parts and path.suffix not in (".lock", ".db-shm", ".db-wal", ".db")
    }


def everywhere(toy, name: str) -> list[str]:
    """The places that know a run of that name."""
    refs = subprocess.run(["git", "-C", str(toy.root), "for-each-ref", "refs/exps"], capture_output=True, text=True)
    client = MlflowClient(f"sqlite:///{toy.root / 'mlflow.db'}")
    rows = client.search_runs(["1"], f"attributes.run_name = '{name}'", run_view_type=ViewType.ALL)
    places = {
        "workspace": (toy.root / "workspaces" / name).exists(),
        "logs": (toy.root / "logs" / name).exists(),
        "experiment": f"/{name}\n" in refs.stdout,
        "row": bool(rows),
    }
    return [place for place, there in places.items() if there]


@pytest.mark.faults
def test_what_goes_is_gone_everywhere_and_what_stays_works(
    tracked, prefect, capsys: pytest.CaptureFixture[str]
) -> None:
    toy = tracked
    toy.script("davis", RADIUS)
    run(toy, "old", 7)
    with Repo(str(toy.tree("old"))) as repo:
        index = Path(repo.site_cache_dir)
    toy.script(
        "clevr", "test -e ../../../mended && mkdir -p metrics && echo '{\"count_top1\": 5.0}' > metrics/clevr.json"
    )
    with pytest.raises(StageFailedError):
        run(toy, "broken", 8)
    toy.script("clevr", "mkdir -p metrics && echo '{\"count_top1\": 6.0}' > metrics/clevr.json")
    run(toy, "kept", 9)
    (sevens,) = (
        path
        for path in (toy.root / ".dvc/cache").rglob("*")
        if path.is_file() and path.read_bytes() == b'{"jf_mean": 7}\n'
    )
    old = records.read(toy.root, "old")
    assert old is not None
    artefacts = toy.root / "mlartifacts" / old.parent / "artifacts"
    assert (artefacts / "dvc.lock").exists()
    before = files(toy.root)

    assert gc.main(["--root", str(toy.root), "--keep", "1"]) == 0
    told = capsys.readouterr().out
    assert "old: goes (finished)\n" in told and "kept: stays, it is one of the newest 1\n" in told
    assert "broken: stays, it can be continued" in told and "1 rows in MLflow" in told
    assert told.endswith("Nothing was removed. The same command with APPLY=1 does it\n")
    assert files(toy.root) == before

    assert gc.main(["--root", str(toy.root), "--keep", "1", "--apply"]) == 0
    assert everywhere(toy, "old") == [] and not index.exists() and not sevens.exists()
    assert not artefacts.exists()
    assert everywhere(toy, "broken") == everywhere(toy, "kept") == ["workspace", "logs", "experiment", "row"]
    entries = [path.read_text() for path in (toy.root / ".dvc/cache/runs").glob("*/*/*")]
    assert sum("davis.sh" in text for text in entries) == 2  # of three values

    assert gc.main(["--root", str(toy.root), "--keep", "1", "--apply"]) == 0  # nothing is left to do
    capsys.readouterr()
    applied = toy.dvc("exp", "apply", "kept")
    assert applied.returncode == 0, applied.stderr
    assert (toy.root / "metrics/davis.json").read_bytes() == b'{"jf_mean": 9}\n'
    assert toy.dvc("status").stdout.strip() == "Data and pipelines are up to date."
    assert "Running stage" not in toy.dvc("repro").stdout

    (toy.root / "mended").touch()
    record = records.read(toy.root, "broken")
    assert record is not None

    @flow
    def again() -> str:
        return run_in(toy.root, "broken", Request(record.owner)).record.status

    shutil.rmtree(toy.tree("broken"))  # as the pruning of trees does: then the run cache has what was done
    assert again() == "FINISHED"
    assert json.loads((toy.tree("broken") / "metrics/davis.json").read_text()) == {"jf_mean": 8}
    assert "Stage 'davis' is cached" in (toy.root / "logs/broken/davis.log").read_text()


def test_a_run_at_work_is_left_alone_and_so_is_the_cache(toy, capsys: pytest.CaptureFixture[str]) -> None:
    assert toy.dvc("repro").returncode == 0
    garbage = toy.root / ".dvc/cache/files/md5/00" / ("0" * 30)
    garbage.parent.mkdir(exist_ok=True)
    garbage.write_text("nobody's")
    command = [sys.executable, "-c", HOLDER, str(toy.root), "working"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        try:
            assert holder.stdout and holder.stdout.readline() == "open\n"
            before = files(toy.root / "workspaces/working")
            assert gc.main(["--root", str(toy.root), "--keep", "0", "--apply"]) == 0
            told = capsys.readouterr().out
            assert f"working: stays, it is at work in process {holder.pid}" in told
            assert "DVC's cache stays as it is: run working is at work, and may need any of it" in told
            assert files(toy.root / "workspaces/working") == before and garbage.exists()
            assert gc.main(["--root", str(toy.root), "--remove", "working", "--apply"]) == 2
            assert "run 'working' is at work in process" in capsys.readouterr().err
        finally:
            holder.kill()
    subprocess.run(["git", "-C", str(toy.root), "branch", "promoted/working"], check=True)
    assert gc.main(["--root", str(toy.root), "--remove", "working", "--apply"]) == 2
    assert "run 'working' is promoted, and stays" in capsys.readouterr().err
    subprocess.run(["git", "-C", str(toy.root), "branch", "-D", "promoted/working"], check=True)
    assert gc.main(["--root", str(toy.root), "--remove", "working", "--apply"]) == 0  # killed: then it may go
    assert not (toy.root / "workspaces/working").exists() and not garbage.exists()
    assert toy.dvc("status").stdout.strip() == "Data and pipelines are up to date."


def test_data_of_a_stage_that_runs_outside_of_any_flow_is_left_alone(toy, until, capsys) -> None:
    toy.script("davis", "mkdir at-work; until [ -e go ]; do sleep 0.05; done; echo 1 > metrics/davis.json")
    with subprocess.Popen(
        [sys.executable, "-m", "dvc", "repro", "davis"], cwd=toy.root, stdout=subprocess.DEVNULL
    ) as repro:
        try:
            until((toy.root / "at-work").is_dir)
            assert gc.main(["--root", str(toy.root), "--apply"]) == 0
            assert f"DVC is at work in {toy.root} (process {repro.pid})" in capsys.readouterr().out
        finally:
            (toy.root / "go").touch()
    assert repro.returncode == 0
    assert gc.main(["--root", str(toy.root), "--apply"]) == 0 and "DVC is at work" not in capsys.readouterr().out


def test_what_is_made_between_the_look_and_the_removal_stays(toy, until, capsys: pytest.CaptureFixture[str]) -> None:
    garbage = toy.root / ".dvc/cache/files/md5/00" / ("0" * 30)
    garbage.parent.mkdir(parents=True)
    garbage.write_text("nobody's")
    found = gc.plan(toy.root, 20, [])
    assert found.data is not None
    (toy.root / "new").write_text("new")
    added, ran = toy.dvc("add", "new"), toy.dvc("repro")
    assert added.returncode == ran.returncode == 0, added.stderr + ran.stderr
    assert gc.apply(toy.root, found) == [] and not garbage.exists()
    shutil.rmtree(toy.root / "data/prepared")
    (toy.root / "new").unlink()
    assert toy.dvc("checkout").returncode == 0 and (toy.root / "new").read_text() == "new"
    assert toy.dvc("status").stdout.strip() == "Data and pipelines are up to date."

    garbage.parent.mkdir(parents=True, exist_ok=True)
    garbage.write_text("nobody's")
    found = gc.plan(toy.root, 20, [])
    toy.script("clevr", "mkdir at-work; until [ -e go ]; do sleep 0.05; done; echo 1 > metrics/clevr.json")
    command = [sys.executable, "-m", "dvc", "repro", "clevr"]
    with subprocess.Popen(command, cwd=toy.root, stdout=subprocess.DEVNULL) as repro:
        try:
            until((toy.root / "at-work").is_dir)
            why_not = f"DVC's cache stays as it is: DVC is at work in {toy.root} (process {repro.pid})"
            assert gc.apply(toy.root, found) == [why_not] and garbage.exists()
        finally:
            (toy.root / "go").touch()


def test_without_git(toy, capsys: pytest.CaptureFixture[str]) -> None:
    (toy.root / ".git").rename(toy.root / "no-git")
    (toy.root / ".dvc/config.local").write_text("[core]\n    no_scm = true\n")
    assert toy.dvc("repro", "davis").returncode == 0
    record = Record("one", "prefect:1", records.now(), root=str(toy.root), in_place=True, status="FINISHED")
    records.write(toy.root, record)
    (unused := toy.root / ".dvc/cache/files/md5/00" / ("0" * 30)).parent.mkdir(exist_ok=True)
    unused.touch()
    assert gc.main(["--root", str(toy.root), "--keep", "0", "--apply"]) == 0, capsys.readouterr().err
    assert not (toy.root / "workspaces/one").exists() and not unused.exists()
    assert toy.dvc("status", "davis").stdout.strip() == "Data and pipelines are up to date."


def test_a_cache_that_others_may_share_stays(toy, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "shared/files/md5/00").mkdir(parents=True)
    (theirs := tmp_path / "shared/files/md5/00" / ("0" * 30)).write_text("another project's")
    toy.dvc("cache", "dir", "--local", str(tmp_path / "shared"))
    assert gc.main(["--root", str(toy.root), "--apply"]) == 0
    assert "it is not in this project's folder, so others may use it" in capsys.readouterr().out and theirs.exists()


def test_rows_that_another_run_links_to_move_to_it_and_a_persons_bin_stays(tracked) -> None:
    root, store = tracked.root, database(tracked.root)
    going, staying = (Run.begin(store, "pipeline", name, "", {"trigger": "prefect"}) for name in ("going", "staying"))
    shared, alone = (Run.begin(store, name, name, going.run_id, {"stage": name}) for name in ("pretrain", "davis"))
    staying.tags({"linked.pretrain": shared.run_id})
    alone.artifact(root / "dvc.yaml")
    client = store.client()
    binned = client.create_run(store.experiment(client), run_name="binned").info.run_id
    client.delete_run(binned)
    experiment = client.create_experiment("binned")
    client.delete_experiment(experiment)
    artefacts = Path(client.get_run(alone.run_id).info.artifact_uri.removeprefix("file://"))
    assert (artefacts / "dvc.yaml").exists()

    rows = removal.doomed(root, {going.run_id})
    assert rows == {going.run_id: "", alone.run_id: "", shared.run_id: staying.run_id}
    assert removal.remove(root, rows) == ""
    removal.forget_journals(root, {going.run_id}, rows)
    left = {row.info.run_name: row for row in client.search_runs(["1"], run_view_type=ViewType.ALL)}
    assert set(left) == {"staying", "pretrain", "binned"} and not artefacts.exists()
    assert left["pretrain"].data.tags["mlflow.parentRunId"] == staying.run_id
    assert client.get_experiment(experiment).lifecycle_stage == "deleted"
    assert {one.id for one in journals(store.journals, finished=True)} == {shared.journal.id, staying.journal.id}


def test_a_run_that_mlflow_never_got_is_not_sent_later(tracked, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as away:
        away.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
        away.setenv("PIPELINE_JOURNALS", str(tracked.root / "logs/tracking"))
        parents = [Run.begin(database(tracked.root), "pipeline", name, "", {}) for name in ("going", "staying")]
        for parent in parents:
            Run.begin(database(tracked.root), "davis", "davis", parent.run_id, {})
    going = parents[0].run_id
    assert going.startswith("pending-") and removal.doomed(tracked.root, {going}) == {}
    removal.forget_journals(tracked.root, {going}, {})
    left = journals(tracked.root / "logs/tracking")
    assert {one.state().parent or one.id for one in left} == {parents[1].run_id, parents[1].journal.id}
    assert len(list((tracked.root / "logs/tracking").glob("*.jsonl"))) == 2


Names = tuple[str, ...]


def test_who_stays_and_why() -> None:
    now = datetime(2026, 3, 1, tzinfo=UTC)
    owners = ["prefect:0", "ablation:a/1", "ablation:a/2", "prefect:3", "prefect:4"]
    states = ["FINISHED", "FINISHED", "FAILED", "KILLED", "FINISHED"]
    every = [
        Record(f"r{i}", owner, (now - timedelta(days=30 - i)).isoformat(), status=status)
        for i, (owner, status) in enumerate(zip(owners, states, strict=True))
    ]

    def names(keep: int, remove: Names = (), promoted: Names = (), working: Names = (), runs=every) -> str:
        decisions = retention.decide(runs, keep, remove, promoted, working, now)
        return " ".join(one.record.name for one in decisions if not one.stays)

    assert names(4) == "" and names(3) == "r0"  # the ablation is one
    assert names(2) == "r0 r1 r2" and names(0) == "r0 r1 r2 r3 r4"
    assert names(0, promoted=("r0",)) == "r1 r2 r3 r4" and names(0, remove=("r4",)) == names(5, remove=("r4",)) == "r4"
    recent = [*every[:3], replace(every[3], ended=(now - timedelta(days=13)).isoformat()), every[4]]
    assert names(0, runs=recent) == "r0 r1 r2 r4"
    with pytest.raises(ValueError, match=r"run 'r0' is promoted, and stays; nothing was removed"):
        names(0, ("r0",), ("r0",))
    with pytest.raises(ValueError, match=r"no run is called 'r9'; the runs are: r0, r1, r2, r3, r4"):
        names(0, ("r9",))
    running = replace(every[0], status="RUNNING", process=7, host="far")
    with pytest.raises(ValueError, match="run 'r0' is at work in process 7 of far, and stays"):
        names(0, ("r0",), runs=[running], working=("r0",))
    assert names(0, runs=[running]) == "r0" and names(0, runs=[running], working=("r0",)) == ""


def test_resume_state_stays_while_a_run_may_go_on_with_it(toy, monkeypatch: pytest.MonkeyPatch) -> None:
    root, folders = toy.root, {}
    tree = {name: root / "workspaces" / name / "tree" for name in ("failed", "finished", "removed")}
    for name, users in {
        "failed": ["failed", "removed"],
        "finished": ["finished"],
        "removed": ["removed"],
        "by-hand": [""],
        "trained-by-hand": [""],
        "trained": ["failed"],
        "stored": ["finished"],
        "old": [""],
        "old-trained": [""],
    }.items():
        folders[name] = root / "work/pretrain" / name
        for user in users:
            monkeypatch.setenv("DVC_ROOT", str(tree.get(user, root)))
            with work.alone(folders[name], "busy"):
                (folders[name] / "checkpoint").touch()
    for name in ("trained-by-hand", "trained", "stored", "old-trained"):
        work.finish(folders[name])
    for name, days in {"trained-by-hand": 3, "trained": 40, "stored": 3, "old": 15, "old-trained": 15}.items():
        for path in folders[name].iterdir():
            os.utime(path, (time.time() - days * 86400,) * 2)
    for name, status in (("failed", "FAILED"), ("finished", "FINISHED")):
        tree[name].mkdir(parents=True)
        records.write(
            root, Record(name, "prefect:1", records.now(), root=str(tree[name]), status=status, ended=records.now())
        )
    assert gc.main(["--root", str(root), "--apply"]) == 0
    left = ["by-hand", "failed", "trained", "trained-by-hand"]
    assert sorted(path.name for path in (root / "work/pretrain").iterdir()) == left
    assert json.loads((root / "workspaces/failed/run.json").read_text())["status"] == "FAILED"


def test_what_naming_an_unfinished_run_would_cost_is_told(
    toy, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tree := toy.root / "workspaces/big/tree").mkdir(parents=True)
    monkeypatch.setenv("DVC_ROOT", str(tree))
    for name, about in {
        "pretrain/half": {"step": 400, "steps": 1000},
        "pretrain/unstored": {"step": 9, "steps": 9},
        "finetune/half": {},
        "davis/done": {},
        "analysis/features/toy": {},
    }.items():
        with work.alone(toy.root / "work" / name, "busy"):
            if about:
                write_json(toy.root / "work" / name / "about.json", about)
    for name in ("pretrain/unstored", "davis/done"):
        work.finish(toy.root / "work" / name)
    records.write(toy.root, Record("big", "prefect:1", records.now(), root=str(tree), status="KILLED"))
    assert gc.main(["--root", str(toy.root), "--remove", "big"]) == 0
    told = capsys.readouterr().out.splitlines()
    assert told[0] == "big: goes (killed)"
    assert told[1:5] == [
        "work/davis/done: goes, all done",
        "work/finetune/half: goes, not done",
        "work/pretrain/half: goes, step 400 of 1000",
        "work/pretrain/unstored: goes, step 9 of 9",
    ]
    assert not any("work/" in line for line in told[5:])
    assert told[-1] == "Nothing was removed. The same command with APPLY=1 does it"
    assert (toy.root / "work/pretrain/half/about.json").is_file()
