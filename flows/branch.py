"""A run's params, code and dvc.lock as a branch of the checkout, whose working tree, index and current branch stay as they are."""

import os
import subprocess
import tempfile
from pathlib import Path

from flows.records import Record


def commit(checkout: Path, record: Record) -> str:
    """The commit of a run to promote: what its DVC experiment has, without DVC's own notes.

    Everything in it comes from the experiment, so that the same run gives the same commit each time. Raises ValueError for a run
    without an experiment in the checkout, or one that has no dvc.lock.
    """
    if not record.experiment or not _succeeds(
        checkout, "rev-parse", "--verify", "--quiet", f"{record.experiment}^{{commit}}"
    ):
        raise ValueError(
            f"run {record.name!r} has no DVC experiment in {checkout}, which a branch is made of: {record.experiment or 'none was saved'}; "
            "it takes a git checkout with a commit, and `dvc exp remove` takes it away: start the run again. Nothing was changed"
        )
    files = _git(checkout, "ls-tree", "-r", "--name-only", record.experiment).splitlines()
    if "dvc.lock" not in files:
        raise ValueError(
            f"the DVC experiment of run {record.name!r} has no dvc.lock, which names its results; .gitignore must not hide that file. "
            "Nothing was changed"
        )
    with tempfile.TemporaryDirectory() as folder:
        index = {"GIT_INDEX_FILE": str(Path(folder) / "index")}
        _git(checkout, "read-tree", record.experiment, **index)
        _git(checkout, "rm", "-r", "-f", "--cached", "--quiet", "--ignore-unmatch", ".dvc/tmp", **index)
        tree = _git(checkout, "write-tree", **index)
    known = _git(checkout, "show", "--no-patch", "--format=%an%n%ae%n%aI%n%P", record.experiment).splitlines()
    names = ("NAME", "EMAIL", "DATE")
    who = {
        f"GIT_{role}_{key}": value for role in ("AUTHOR", "COMMITTER") for key, value in zip(names, known, strict=False)
    }
    parents = [word for parent in known[3].split() for word in ("-p", parent)]
    return _git(checkout, "commit-tree", tree, *parents, "-m", f"Promote run {record.name}", **who)


def export(checkout: Path, commit: str, tree: Path) -> None:
    """Writes the files of a commit into the folder `tree`."""
    with tempfile.TemporaryDirectory() as folder:
        index = {"GIT_INDEX_FILE": str(Path(folder) / "index")}
        _git(checkout, "read-tree", commit, **index)
        _git(checkout, "checkout-index", "--all", f"--prefix={tree}/", **index)


def check(checkout: Path, branch: str, commit: str) -> None:
    """ValueError for a branch that exists and holds something else."""
    if _exists(checkout, branch) and not _succeeds(
        checkout, "merge-base", "--is-ancestor", commit, f"refs/heads/{branch}"
    ):
        raise ValueError(
            f"branch {branch!r} exists and does not hold commit {commit[:10]} of this run; rename it, `git branch -m {branch} NAME`, or "
            f"remove it, `git branch -D {branch}`, and promote again"
        )


def create(checkout: Path, branch: str, commit: str) -> None:
    """Puts a new `branch` at `commit`; one that `check` found good stays."""
    if not _exists(checkout, branch):
        _git(checkout, "update-ref", f"refs/heads/{branch}", commit, "0" * 40)


def _exists(checkout: Path, branch: str) -> bool:
    return _succeeds(checkout, "rev-parse", "--verify", "--quiet", f"refs/heads/{branch}")


def _git(checkout: Path, *arguments: str, **environment: str) -> str:
    command = ["git", *arguments]
    done = subprocess.run(
        command, cwd=checkout, env=os.environ | environment, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise RuntimeError(f"`{' '.join(command)}` failed in {checkout}: {done.stderr.strip()}")
    return done.stdout.strip()


def _succeeds(checkout: Path, *arguments: str) -> bool:
    return subprocess.run(["git", *arguments], cwd=checkout, capture_output=True, check=False).returncode == 0
