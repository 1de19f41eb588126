"""A finished run becomes champion, its files a branch, its data goes to a folder that a second clone needs nothing else from."""

import os
import shutil
import socket
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import chdir, closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import mlflow
import numpy as np
import pytest
import torch
from dvc.repo import Repo
from mlflow import MlflowClient

from components import parent_runs
from components.images.transforms import square
from components.mim import weights
from components.mim.encoder import Encoder, EncoderConfig
from components.mim.initialise import initialise
from components.probe.extraction import columns, encode
from components.stage import read_yaml
from flows import records
from flows.promote import main
from flows.promotions.promotion import Request, promote, rollback
from flows.records import Record

SCORES = '{"jf_mean": %s, "jf_mean_untrained": 40.0, "jf_mean_gain": 9.0, "protocol": "%s"}'
PRETRAIN = """
  pretrain:
    cmd: cp data/raw/encoder.safetensors models/encoder.safetensors
    deps: [data/raw/encoder.safetensors]
    outs: [models/encoder.safetensors]
"""


def git(root: Path, *arguments: str) -> str:
    done = subprocess.run(["git", "-C", str(root), *arguments], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def dvc(root: Path, *arguments: str) -> str:
    done = subprocess.run([sys.executable, "-m", "dvc", *arguments], cwd=root, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def finish(toy: Any, name: str, jf: float, protocol: str, seed: int) -> None:
    """A run of the toy as a pipeline run leaves it: results in the cache, a row in MLflow, an experiment, a record."""
    made = Encoder(EncoderConfig(image_size=16, patch_size=8, width=8, layers=1, heads=1))
    initialise(made, seed, "fan_in")
    about = {"fingerprint": f"f{seed}"} | ({"licence": "CC-BY-NC-4.0", "source_sha256": "beef"} if seed == 3 else {})
    weights.save(toy.root / "data/raw/encoder.safetensors", made, about)
    toy.script("davis", f"echo '{SCORES % (jf, protocol)}' > metrics/davis.json")
    with chdir(toy.root), Repo() as repo:
        repo.reproduce()
        repo.experiments.save(name=name, force=True)
    parent = parent_runs.start_pipeline(toy.root, toy.root, name, {"trigger": "prefect"})
    parent_runs.finish_pipeline(toy.root, toy.root, parent, "FINISHED")
    reference = git(toy.root, "for-each-ref", "--format=%(refname)", f"refs/exps/**/{name}")
    commit, now = git(toy.root, "rev-parse", "HEAD"), records.now()
    records.write(
        toy.root,
        Record(name, f"prefect:{name}", now, commit, True, str(toy.root), status="FINISHED", parent=parent, experiment=reference),
    )  # fmt: skip


@pytest.fixture(scope="module", autouse=True)
def _environment() -> Iterator[None]:
    """Somebody who commits, and no MLflow but the toy's own."""
    with pytest.MonkeyPatch.context() as patch:
        for who in ("AUTHOR", "COMMITTER"):
            patch.setenv(f"GIT_{who}_NAME", "toy")
            patch.setenv(f"GIT_{who}_EMAIL", "toy@localhost")
        patch.delenv("MLFLOW_TRACKING_URI", raising=False)
        yield


@pytest.fixture(scope="module")
def finished(
    tmp_path_factory: pytest.TempPathFactory, database: Path, make_toy: Callable[[Path], Any], _environment: None
) -> Path:
    """The toy after four runs: `a`, a better one, a worse one, and one of another protocol."""
    toy = make_toy(tmp_path_factory.mktemp("finished") / "toy")
    shutil.copy(database, toy.root / "mlflow.db")
    (toy.root / "dvc.yaml").write_text((toy.root / "dvc.yaml").read_text() + PRETRAIN)
    (toy.root / ".gitignore").write_text((toy.root / ".gitignore").read_text() + "/models/\n/workspaces/\n")
    (toy.root / "models").mkdir()
    git(toy.root, "commit", "-qam", "with an encoder")
    for seed, (name, jf, protocol) in enumerate(
        [("a", 50.0, "p"), ("better", 60.0, "p"), ("worse", 49.0, "p"), ("other", 70.0, "q")]
    ):
        finish(toy, name, jf, protocol, seed)
    return toy.root


@pytest.fixture
def project(finished: Path, tmp_path: Path) -> Path:
    """The same for one test, with a remote."""
    root = tmp_path / "project"
    shutil.copytree(finished, root, symlinks=True)
    with (root / ".dvc/config.local").open("w") as file:
        file.write(f"[core]\n    remote = store\n['remote \"store\"']\n    url = {tmp_path / 'store'}\n")
    return root


def client(root: Path) -> MlflowClient:
    return MlflowClient(f"sqlite:///{root / 'mlflow.db'}")


def champion(root: Path) -> str:
    found = client(root).search_registered_models("name = 'encoder'")
    return str(found[0].aliases.get("champion", "")) if found else ""


def state(root: Path) -> dict[str, Any]:
    """All that a promotion may change, and what it must not."""
    return {
        "head": git(root, "rev-parse", "HEAD"),
        "status": git(root, "status", "--porcelain"),
        "refs": git(root, "for-each-ref"),
        "versions": len(client(root).search_model_versions("name = 'encoder'")),
        "champion": champion(root),
        "pushed": (root.parent / "store").exists(),
    }


def test_promote_load_and_roll_back(project: Path) -> None:
    before = state(project)
    text = promote(project, Request("a"))
    assert text.startswith("version 1 of encoder (run a, new) is the champion now; branch promoted/a has its params")
    after = state(project)
    assert (after["versions"], after["champion"], after["pushed"]) == (1, "1", True)
    assert (after["head"], after["status"]) == (before["head"], before["status"])
    assert set(git(project, "ls-tree", "--name-only", "-r", "promoted/a").split()) >= {"dvc.lock", "params/davis.yaml"}
    assert ".dvc/tmp" not in git(project, "ls-tree", "--name-only", "-r", "promoted/a")

    tags = client(project).get_model_version("encoder", "1").tags
    lock = read_yaml(project / "dvc.lock")["stages"]  # of the last run, but for the encoder the stages are those of all
    assert (tags["metric.davis/jf_mean"], tags["protocol.davis"], tags["fingerprint"]) == ("50.0", "p", "f0")
    assert (tags["licence"], tags["git.branch"]) == ("Apache-2.0", "promoted/a")
    assert tags["git.commit"] == git(project, "rev-parse", "promoted/a") and tags["git.base"] == before["head"]
    assert tags["dvc.data/prepared/shapes"] == lock["prepare@shapes"]["outs"][0]["md5"]
    md5 = subprocess.run(["md5sum", "-"], stdin=(project / "models/encoder.safetensors").open(), capture_output=True)
    assert tags["dvc.models/encoder.safetensors"] != md5.stdout.split()[0].decode()  # which is of the last run

    version = client(project).get_model_version_by_alias("encoder", "champion")
    model = mlflow.pyfunc.load_model(version.source)
    assert model.predict(np.zeros((2, 16, 16, 3), np.uint8)).shape == (2, 8)

    assert "is the champion now, after version 1 (run a)" in promote(project, Request("better"))
    assert champion(project) == "2"
    assert "champion is again version 1 (run a), no longer version 2 (run better)" in rollback(project)
    assert champion(project) == "1"
    with pytest.raises(ValueError, match=r"version 1 \(run a\) is the first champion of 'encoder', there is none"):
        rollback(project)
    assert "version 2 of encoder (run better, registered before) is the champion now" in promote(
        project, Request("better")
    )


@pytest.mark.faults
def test_twice_is_once(project: Path) -> None:
    promote(project, Request("a", push=False))
    once = state(project)
    assert not once["pushed"]
    assert "version 1 of encoder (run a, registered before) was the champion already" in promote(project, Request("a"))
    assert state(project) == once | {"pushed": True}


def test_what_may_not_follow_is_refused_and_changes_nothing(project: Path) -> None:
    promote(project, Request("better", push=False))
    before = state(project)
    for asked, message in (
        (Request("worse"), r"davis/jf_mean: 49, the champion has 60; worse by 11, more than the tolerance 0.5\nCompare on other"),
        (Request("other"), "davis/jf_mean: 70 and the champion's 60 do not compare: protocol q and p"),
        (Request("other", ["davis/x"]), "'davis/x', which is no score of run 'other'; its scores are: davis/jf_mean"),
        (Request("worse", tolerance=-1), "tolerance is -1; it must be at least 0"),
        (Request("lost"), "run is 'lost', of which .* has no record; finished runs, the newest last: a, better, worse, other"),
        (Request("../a"), "run name is '../a'; it must be letters and digits"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=message):
            promote(project, asked)
    assert state(project) == before


@pytest.mark.faults
def test_tolerance_and_force(project: Path) -> None:
    promote(project, Request("a", push=False))
    promote(project, Request("worse", tolerance=1.0, push=False))  # 49 after 50
    assert champion(project) == "2" and "forced" not in client(project).get_model_version("encoder", "2").tags
    promote(project, Request("other", push=False, force="the other protocol is the paper's"))
    tags = client(project).get_model_version("encoder", "3").tags
    assert tags["forced"] == "the other protocol is the paper's" and "do not compare: protocol q" in tags["forced.over"]
    assert (tags["licence"], tags["source_sha256"]) == ("CC-BY-NC-4.0", "beef")


def test_a_run_that_is_not_whole_is_told(project: Path) -> None:
    record, before = records.read(project, "a"), state(project)
    assert record
    for fields, message in (
        ({"status": "FAILED"}, r"run 'a' is not finished \(failed\); a run is promoted when all its stages are done"),
        ({"status": "RUNNING", "process": (os.getpid(), 1.0)}, r"run 'a' is not finished \(running\)"),
        ({"parent": ""}, "run 'a' has no row in MLflow"),
        ({"parent": "0" * 32}, "no pipeline run of sqlite:.* has the id or name '0000"),
        ({"experiment": ""}, "run 'a' has no DVC experiment in .*: none was saved"),
        ({"experiment": "refs/exps/00/00/a"}, "run 'a' has no DVC experiment in .*: refs/exps/00/00/a"),
    ):
        records.write(project, replace(record, **fields))
        with pytest.raises(ValueError, match=message):
            promote(project, Request("a"))
    assert state(project) == before


def test_no_remote_no_encoder_no_database_and_a_taken_branch_are_told_before_anything_changes(project: Path) -> None:
    (project / ".dvc/config.local").unlink()
    before = state(project)
    with pytest.raises(
        ValueError, match="DVC has no default remote in .*dvc remote add -d store .* Nothing was changed"
    ):
        promote(project, Request("a"))
    git(project, "branch", "promoted/a")
    with pytest.raises(
        ValueError, match="branch 'promoted/a' exists and does not hold commit .*git branch -m promoted/a NAME"
    ):
        promote(project, Request("a", push=False))
    git(project, "branch", "-D", "promoted/a")
    shutil.move(project / ".dvc/cache", project / "away")
    with pytest.raises(ValueError, match="DVC cannot bring models/encoder.safetensors of this run"):
        promote(project, Request("a", push=False))
    shutil.move(project / "away", project / ".dvc/cache")
    assert state(project) == before
    (project / "mlflow.db").unlink()
    for act in (lambda: promote(project, Request("a", push=False)), lambda: rollback(project)):
        with pytest.raises(ValueError, match="there is no MLflow database"):
            act()
    assert not (project / "mlflow.db").exists()
    with socket.socket() as closed, pytest.MonkeyPatch.context() as patch:
        closed.bind(("127.0.0.1", 0))  # and does not listen
        patch.setenv("MLFLOW_TRACKING_URI", f"http://127.0.0.1:{closed.getsockname()[1]}")
        with pytest.raises(ValueError, match="MLflow at http://127.0.0.1:.* cannot be reached"):
            promote(project, Request("a", push=False))


@pytest.mark.faults
@pytest.mark.parametrize("table", ["model_versions", "registered_model_tags", "registered_model_aliases"])
def test_a_promotion_that_ends_in_the_middle_leaves_the_champion_and_goes_on_when_run_again(
    project: Path, table: str
) -> None:
    """A database that refuses to write one table: what a full disk does at that point."""
    promote(project, Request("a", push=False))
    with closing(sqlite3.connect(project / "mlflow.db")) as connection:
        for event in ("INSERT", "UPDATE"):
            refusal = f"CREATE TRIGGER full_{event} BEFORE {event} ON {table} BEGIN SELECT RAISE(ABORT, 'full'); END"
            connection.execute(refusal)
        connection.commit()
    with pytest.raises(RuntimeError, match="MLflow at sqlite:.* refused: .*what was done before stays"):
        promote(project, Request("better"))
    assert champion(project) == "1"
    with pytest.raises(ValueError, match="is the first champion"):  # what never reigned is nothing to go back to
        rollback(project)
    with closing(sqlite3.connect(project / "mlflow.db")) as connection:
        for event in ("INSERT", "UPDATE"):
            connection.execute(f"DROP TRIGGER full_{event}")
        connection.commit()
    promote(project, Request("better"))
    assert (state(project)["versions"], champion(project)) == (2, "2")
    assert client(project).get_registered_model("encoder").tags["champions"] == "1 2"
    rollback(project)
    assert champion(project) == "1"


@pytest.mark.faults
def test_a_remote_that_refuses_is_told_and_tried_again(project: Path) -> None:
    store = project.parent / "store"
    store.write_text("a file, where a folder should be")
    with pytest.raises(
        RuntimeError, match="`dvc push --run-cache` failed; what was pushed stays, promote again to go on"
    ):
        promote(project, Request("a"))
    assert champion(project) == "" and git(project, "branch", "--list", "promoted/a")
    store.unlink()
    promote(project, Request("a"))
    assert champion(project) == "1" and (store / "runs").is_dir()


@pytest.mark.faults
def test_results_that_are_gone_are_not_pushed_in_silence(project: Path) -> None:
    md5 = read_yaml(project / "dvc.lock")["stages"]["davis"]["outs"][0]["md5"]
    (project / ".dvc/cache/files/md5" / md5[:2] / md5[2:]).unlink()
    with pytest.raises(ValueError, match="neither in DVC's cache nor on the remote"):
        promote(project, Request("other"))
    assert champion(project) == ""


@pytest.mark.faults
def test_a_detached_head_and_local_edits_stay(project: Path) -> None:
    git(project, "checkout", "-q", "--detach")
    (project / "params/davis.yaml").write_text("seed: 7\n")
    git(project, "add", "params/davis.yaml")
    before = state(project)
    promote(project, Request("a", push=False))
    after = state(project)
    assert (after["head"], after["status"]) == (before["head"], before["status"])
    assert subprocess.run(["git", "-C", project, "symbolic-ref", "-q", "HEAD"]).returncode == 1


@pytest.mark.faults
def test_a_second_clone_has_everything_without_running_anything(project: Path, tmp_path: Path) -> None:
    promote(project, Request("better"))
    second = tmp_path / "second"
    git(tmp_path, "clone", "-q", "-b", "promoted/better", str(project), str(second))
    shutil.move(project, tmp_path / "gone")  # nothing but the branch and the remote is left
    for command in (["remote", "add", "-d", "store", str(tmp_path / "store")], ["pull", "--run-cache"]):
        dvc(second, *command)
    assert '"jf_mean": 60.0' in (second / "metrics/davis.json").read_text()
    assert weights.read_about(second / "models/encoder.safetensors")[1] == {"fingerprint": "f1"}
    told = dvc(second, "repro", "--allow-missing")  # raw data stands behind links and is not DVC's
    assert "Running stage" not in told and told.count("didn't change, skipping") == 6
    (second / "dvc.lock").unlink()
    shutil.copytree(tmp_path / "gone/data/raw/toys", second / "data/raw/toys")
    told = dvc(second, "repro", "report")
    assert "Running stage" not in told and told.count("is cached - skipping run, checking out outputs") == 5


def test_the_command_and_the_flows_say_the_same(
    project: Path, prefect: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from flows.promote import promote as flow
    from flows.promote import rollback as flow_back

    monkeypatch.chdir(project)
    assert main(["a", "--no-push"]) == 0
    assert capsys.readouterr().out.startswith("version 1 of encoder (run a, new) is the champion now")
    assert main(["worse", "--no-push", "--metrics", "davis/jf_mean"]) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: run 'worse' may not follow the champion, version 1 (run 'a'):\ndavis/jf_mean: 49,")
    assert flow("worse", push=False, return_state=True).message == error.removeprefix("error: ").strip()
    assert "is the champion now, after version 1" in flow("better", push=False)
    assert "champion is again version 1" in flow_back()
    assert main(["--rollback"]) == 2
    assert "there is none to go back to" in capsys.readouterr().err


@pytest.mark.faults
def test_a_real_run_is_promoted_loaded_and_reproduced_elsewhere(
    checkout: Path, prefect: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The committed graph at toy size, from the flow to a second clone that trains nothing."""
    from flows.pipeline import pipeline

    monkeypatch.chdir(checkout)
    pipeline.with_options(flow_run_name="real")()
    dvc(checkout, "remote", "add", "--local", "-d", "store", str(tmp_path / "store"))
    before = state(checkout)
    promote(checkout, Request("real"))
    after = state(checkout)
    assert (after["head"], after["status"], after["champion"]) == (before["head"], before["status"], "1")
    version = client(checkout).get_model_version_by_alias("encoder", "champion")
    assert {"dvc.models/encoder.safetensors", "dvc.data/prepared/shapes", "metric.davis/jf_mean"} <= version.tags.keys()
    assert len([key for key in version.tags if key.startswith("protocol.")]) == 4

    second = tmp_path / "second"
    git(tmp_path, "clone", "-q", "-b", "promoted/real", str(checkout), str(second))
    shutil.move(checkout / ".dvc", tmp_path / "gone")
    dvc(second, "remote", "add", "-d", "store", str(tmp_path / "store"))
    dvc(second, "pull", "--run-cache")
    told = dvc(second, "repro")
    assert "Running stage" not in told and "didn't change, skipping" in told
    assert "real" not in git(second, "status", "--porcelain") and (second / "report.html").is_file()

    images = np.random.default_rng(0).integers(0, 256, (4, 40, 32, 3), np.uint8)
    np.save(tmp_path / "images.npy", images)
    code = (
        "import mlflow, numpy as np; model = mlflow.pyfunc.load_model('models:/encoder@champion'); "
        "np.save('embeddings.npy', model.predict(np.load('images.npy')))"
    )
    where = {"MLFLOW_TRACKING_URI": f"sqlite:///{checkout / 'mlflow.db'}"}
    environment = {key: text for key, text in os.environ.items() if key != "PYTHONPATH"} | where
    subprocess.run([sys.executable, "-P", "-c", code], cwd=tmp_path, env=environment, check=True)
    encoder, view = (
        weights.load_encoder(second / "models/encoder.safetensors"),
        square(32, "short_side_center_crop", 32),
    )
    pixels = torch.from_numpy(np.stack([view(torch.from_numpy(image).permute(2, 0, 1)) for image in images]))
    own = encode(encoder, pixels, 4)[:, columns(encoder, 4)["last"]].numpy()
    np.testing.assert_allclose(np.load(tmp_path / "embeddings.npy"), own, atol=1e-6, rtol=0)
