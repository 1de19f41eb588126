"""A run's own tree: what it takes from the checkout, what it leaves alone, and what happens to it afterwards."""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from dvc.repo import Repo

from components.stage import canonical_yaml, read_yaml
from flows import experiment, hashes, records, workspace

from .test_pipeline import ALL


def git(folder: Path, *arguments: str) -> str:
    return subprocess.run(["git", "-C", str(folder), *arguments], capture_output=True, text=True, check=True).stdout


def opened(toy, name: str = "one", owner: str = "me", **options: Any) -> workspace.Workspace:
    return workspace.open_workspace(
        toy.root, name, owner, options.get("changes", "carry"), options.get("in_place", False)
    )


def edit(toy) -> None:
    """What a person may have left uncommitted: an edit, a new file, a deleted one, one that is staged, bytes, a name in Greek."""
    davis = toy.root / "params/davis.yaml"
    davis.write_text(canonical_yaml(read_yaml(davis) | {"radius": 7}))
    (toy.root / "scripts/new.bin").write_bytes(bytes(range(256)) * 9)
    (toy.root / "πρόσθετο αρχείο.txt").write_text("α\n")
    (toy.root / "gone.txt").unlink()
    (toy.root / "staged.txt").write_text("staged\n")
    git(toy.root, "add", "staged.txt")


@pytest.fixture
def edited(toy) -> Any:
    (toy.root / "gone.txt").write_text("here\n")
    git(toy.root, "add", ".")
    git(toy.root, "commit", "-qm", "more")
    edit(toy)
    return toy


def files(root: Path) -> dict[str, bytes]:
    """What git sees of a folder: tracked and untracked files that are there."""
    names = git(root, "ls-files", "-z", "--cached", "--others", "--exclude-standard").split("\0")
    return {name: (root / name).read_bytes() for name in names if name and (root / name).is_file()}


def test_it_has_what_the_checkout_has_and_the_checkout_stays_as_it_is(edited) -> None:
    before, status = files(edited.root), git(edited.root, "status", "--porcelain")
    index = (edited.root / ".git/index").read_bytes()
    space = opened(edited)
    assert files(space.root) == before == files(edited.root)
    assert git(edited.root, "status", "--porcelain") == status
    assert (edited.root / ".git/index").read_bytes() == index
    assert (space.record.dirty, space.record.commit) == (True, git(edited.root, "rev-parse", "HEAD").strip())
    assert space.patch and b"radius: 7" in space.patch.read_bytes()
    assert (space.root / "work").resolve() == edited.root / "work"
    assert (space.root / "data/raw/toys").resolve() == edited.root / "data/raw/toys"
    with Repo(str(edited.root)) as ours, Repo(str(space.root)) as theirs:
        assert ours.cache.local.path == theirs.cache.local.path


def test_the_experiment_brings_code_and_params_back(edited) -> None:
    space = opened(edited)
    done = edited.dvc("repro", run="one")
    assert done.returncode == 0, done.stderr
    ref, why = experiment.save(space.root, edited.root, "one", sorted(ALL))
    assert (ref.rpartition("/")[2], why) == ("one", "")
    # A second save of the same run replaces the first.
    assert experiment.save(space.root, edited.root, "one", sorted(ALL)) == (ref, "")
    assert git(edited.root, "for-each-ref", "--format=%(refname)", "refs/exps/").split().count(ref) == 1
    git(edited.root, "stash", "--include-untracked", "--quiet")
    assert edited.dvc("exp", "apply", "one").returncode == 0
    assert read_yaml(edited.root / "params/davis.yaml")["radius"] == 7
    assert (edited.root / "scripts/new.bin").read_bytes() == bytes(range(256)) * 9
    assert edited.dvc("status").stdout.strip() == "Data and pipelines are up to date."


def test_changes_can_be_refused_and_the_name_stays_free(edited) -> None:
    with pytest.raises(
        ValueError, match=r"uncommitted is 'refuse', and 5 files of .* differ from commit .*commit or stash them"
    ):
        opened(edited, changes="refuse")
    assert records.every(edited.root) == []
    git(edited.root, "stash", "--include-untracked", "--quiet")
    assert not opened(edited, changes="refuse").record.dirty


@pytest.mark.parametrize("configured", ["diff.noprefix", "diff.mnemonicPrefix", "core.quotePath"])
def test_a_persons_git_settings_do_not_spoil_the_patch(edited, configured: str) -> None:
    git(edited.root, "config", configured, "true")
    git(edited.root, "config", "color.ui", "always")
    assert files(opened(edited).root) == files(edited.root)


def test_a_detached_head_a_folder_of_a_larger_repository_and_nobody_named(toy, monkeypatch, tmp_path: Path) -> None:
    for who in ("AUTHOR", "COMMITTER"):
        monkeypatch.delenv(f"GIT_{who}_NAME"), monkeypatch.delenv(f"GIT_{who}_EMAIL")
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", os.devnull)
    git(toy.root, "checkout", "--quiet", "--detach")
    space = opened(toy)
    assert toy.dvc("repro", "prepare", run="one").returncode == 0
    ref, why = experiment.save(space.root, toy.root, "one", ["prepare@shapes"])
    assert (ref.rpartition("/")[2], why) == ("one", "")

    larger = tmp_path / "larger"
    subprocess.run(["git", "init", "-q", str(larger)], check=True)
    toy.root.rename(larger / "project")
    (larger / "project/.git").rename(tmp_path / "git")
    (larger / "beside.txt").write_text("beside\n")
    commit = ["-c", "user.name=t", "-c", "user.email=t@localhost", "commit", "-qm", "all"]
    inside = larger / "project"
    (inside / "workspaces/one").rename(tmp_path / "old")
    with (inside / ".dvc/config").open("w") as file:
        file.write("[core]\n    analytics = false\n")
    git(larger, "add", ".")
    git(larger, *commit)
    space = workspace.open_workspace(inside, "two", "me", "carry", False)
    assert space.root == inside / "workspaces/two/tree/project"
    assert (space.root.parent / "beside.txt").is_file() and (space.root / "data/raw/toys").is_symlink()


def test_credentials_and_relative_remotes_go_along(toy) -> None:
    assert toy.dvc("remote", "add", "--default", "store", "../store").returncode == 0
    assert toy.dvc("remote", "add", "far", "ssh://user@far/store").returncode == 0
    assert toy.dvc("remote", "modify", "--local", "far", "password", "secret").returncode == 0
    git(toy.root, "commit", "-qam", "a store")
    space = opened(toy)
    with Repo(str(space.root)) as theirs:
        remotes, chosen = theirs.config["remote"], theirs.config["core"]["remote"]
    assert remotes["store"]["url"] == str(toy.root.parent / "store")
    assert (remotes["far"]["password"], chosen) == ("secret", "store")


def test_raw_data_is_hashed_once_for_all_runs(toy) -> None:
    opened(toy)
    assert toy.dvc("repro", "prepare@shapes", run="one").returncode == 0
    assert hashes.share(toy.tree("one"), toy.root) == 1
    opened(toy, "two")
    assert hashes.share(toy.tree("two"), toy.tree("one")) == 1  # it was told when the tree was made
    (toy.root / "data/raw/toys/one").write_text("2\n")
    assert toy.dvc("repro", "prepare@shapes", run="two").returncode == 0
    locks = [read_yaml(toy.tree(run) / "dvc.lock")["stages"]["prepare@shapes"]["deps"] for run in ("one", "two")]
    raw = [next(dep["md5"] for dep in deps if dep["path"] == "data/raw/toys") for deps in locks]
    assert raw[0] != raw[1]  # a file that has changed is read again


def test_the_oldest_finished_trees_go_and_a_retry_makes_one_anew(edited, monkeypatch) -> None:
    monkeypatch.setenv("KEEP_TREES", "2")
    for name, status in (("a", "FINISHED"), ("b", "FAILED"), ("c", "FINISHED"), ("d", "FINISHED"), ("e", "RUNNING")):
        opened(edited, name).end(status)
    before = files(edited.tree("a"))
    (edited.root / "scripts/new.bin").write_bytes(b"edited since")
    assert workspace.prune(edited.root) == ["a"]
    assert [record.name for record in records.every(edited.root)] == ["a", "b", "c", "d", "e"]
    again = opened(edited, "a")
    assert again.again and files(again.root) == before  # what it started from, not what is there now


def test_a_tree_that_alone_knows_what_was_made_stays(tracked, monkeypatch) -> None:
    monkeypatch.setenv("KEEP_TREES", "0")
    opened(tracked, "cancelled")
    assert tracked.dvc("repro", "prepare@shapes", run="cancelled").returncode == 0
    records.write(tracked.root, replace(records.read(tracked.root, "cancelled"), status="KILLED"))
    assert workspace.prune(tracked.root) == []
    ref, unsaved = experiment.save(tracked.tree("cancelled"), tracked.root, "cancelled", ["prepare@shapes"])
    records.write(tracked.root, replace(records.read(tracked.root, "cancelled"), experiment=ref))
    assert not unsaved and workspace.prune(tracked.root) == ["cancelled"]


def test_runs_that_end_together_prune_one_after_the_other(toy, monkeypatch) -> None:
    monkeypatch.setenv("KEEP_TREES", "0")
    names = ["a", "b", "c"]
    for name in names:
        opened(toy, name).end("FINISHED")
    command = [
        sys.executable,
        "-c",
        "from pathlib import Path; from flows import workspace; print(*workspace.prune(Path()))",
    ]
    crowd = [subprocess.Popen(command, cwd=toy.root, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    told = [process.communicate()[0].split() for process in crowd]
    assert [process.returncode for process in crowd] == [0, 0, 0] and sorted(sum(told, [])) == names


def test_a_name_is_one_runs_only(toy) -> None:
    opened(toy).end("FINISHED")
    with pytest.raises(ValueError, match=r"run name 'one' is taken by the run of .* \(finished\)"):
        opened(toy, owner="somebody else")
    assert records.read(toy.root, "one").status == "FINISHED"


def test_nobody_is_told_to_remove_a_run_that_is_not_done(toy) -> None:
    for name, owner, status in (
        ("done", "prefect:1", "FINISHED"),
        ("big", "prefect:1", "FAILED"),
        ("trial-seed-1", "ablation:trial/trial-seed-1", "KILLED"),
    ):
        opened(toy, name, owner).end(status)
    (held := opened(toy, "held")).know(process=7, host="far")
    told = {}
    for name in ("done", "big", "trial-seed-1", "held"):
        with pytest.raises(ValueError, match="is taken by the run of") as refusal:
            opened(toy, name, "prefect:2")
        told[name] = str(refusal.value)
    held.end("FINISHED")
    assert [name for name, text in told.items() if "REMOVE" in text] == ["done"]
    assert "(failed)" in told["big"] and "give this run another name, and what has the same values" in told["big"]
    assert told["big"].endswith("or go on with that run itself: Retry on its page in Prefect, if it was started there")
    assert told["trial-seed-1"].endswith("`make ablation NAME=trial` with its values")
    assert told["held"].endswith("give this run another name; that run is at work in process 7 of far")


def test_who_is_at_work_is_known_from_elsewhere(toy) -> None:
    hold = "import sys; from pathlib import Path; from flows import records; records.claim(Path(sys.argv[1]), 'far', 'me'); "
    command = [sys.executable, "-c", hold + "print('here', flush=True); sys.stdin.read()", str(toy.root)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout and process.stdout.readline() == "here\n"
        record = records.write(toy.root, replace(records.read(toy.root, "far"), host="a-container", process=1))
        assert records.alive(toy.root, record) and records.settle_killed(toy.root) == []
        with pytest.raises(ValueError, match=r"run 'far' is at work in process 1 of a-container; wait until"):
            opened(toy, "far")
        process.kill()
        process.wait()
    assert not records.alive(toy.root, record)
    (killed,) = records.settle_killed(toy.root)
    assert killed.status == "KILLED" and opened(toy, "far").again


def test_a_name_of_any_bytes(toy) -> None:
    name = os.fsencode(toy.root) + b"/caf\xe9.txt"
    with open(name, "wb") as file:
        file.write(b"latin")
    assert os.path.exists(os.fsencode(opened(toy).root) + b"/caf\xe9.txt")


def test_without_git_runs_take_turns_in_the_checkout(toy) -> None:
    (toy.root / ".git").rename(toy.root / "no-git")
    toy.dvc("config", "--local", "core.no_scm", "true")
    space = opened(toy)
    assert (space.root, space.record.in_place, space.record.commit) == (toy.root, True, "")


def test_a_run_from_this_python_finds_the_code_of_its_tree(toy) -> None:
    (toy.root / "components").mkdir()
    (toy.root / "components/__init__.py").write_text("HERE = __file__\n")
    space = opened(toy)
    told = subprocess.run(
        [sys.executable, "-c", "import components; print(components.HERE)"],
        cwd=space.root,
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": ""},
    )
    assert told.stdout.strip() == str(space.root / "components/__init__.py")
