"""A run's params, code and dvc.lock as a branch of the checkout, whose working tree, index and current branch stay as they are."""

import tempfile
from pathlib import Path

from flows.git import GitError, git
from flows.records import Record


def commit(checkout: Path, record: Record) -> str:
    """The commit of a run to promote: what its DVC experiment has, without DVC's own notes.

    Everything in it comes from the experiment, so that the same run gives the same commit each time. Raises ValueError for a run
    without an experiment in the checkout, or one that has no dvc.lock.
    """
    if not record.experiment or not _holds(
        checkout, "rev-parse", "--verify", "--quiet", f"{record.experiment}^{{commit}}"
    ):
        raise ValueError(
            f"run {record.name!r} has no DVC experiment in {checkout}, which a branch is made of: {record.experiment or 'none was saved'}; "
            "it takes a git checkout with a commit, and `dvc exp remove` takes it away: start the run again. Nothing was changed"
        )
    if "dvc.lock" not in git(checkout, "ls-tree", "--name-only", record.experiment).splitlines():
        raise ValueError(
            f"the DVC experiment of run {record.name!r} has no dvc.lock, which names its results; .gitignore must not hide that file. "
            "Nothing was changed"
        )
    with tempfile.TemporaryDirectory() as folder:
        index = {"GIT_INDEX_FILE": str(Path(folder) / "index")}
        git(checkout, "read-tree", record.experiment, environment=index)
        git(checkout, "rm", "-r", "-f", "--cached", "--quiet", "--ignore-unmatch", ".dvc/tmp", environment=index)
        tree = git(checkout, "write-tree", environment=index)
    name, email, date, parents = git(
        checkout, "show", "--no-patch", "--format=%an%n%ae%n%aI%n%P", record.experiment
    ).split("\n")
    who = dict[str, str]()
    for role in ("AUTHOR", "COMMITTER"):
        who |= {f"GIT_{role}_NAME": name, f"GIT_{role}_EMAIL": email, f"GIT_{role}_DATE": date}
    over = [word for parent in parents.split() for word in ("-p", parent)]
    return git(checkout, "commit-tree", tree, *over, "-m", f"Promote run {record.name}", environment=who)


def export(checkout: Path, commit: str, folder: Path) -> Path:
    """Writes the project's files of a commit into the new `folder`; where in it the project is, which may be a part of a repository."""
    with tempfile.TemporaryDirectory() as temporary:
        index = {"GIT_INDEX_FILE": str(Path(temporary) / "index")}
        git(checkout, "read-tree", commit, environment=index)
        git(checkout, "checkout-index", "--all", f"--prefix={folder}/", environment=index)
    return folder / git(checkout, "rev-parse", "--show-prefix")


def check(checkout: Path, branch: str, commit: str) -> None:
    """ValueError for a branch that exists and holds something else."""
    if _exists(checkout, branch) and not _holds(
        checkout, "merge-base", "--is-ancestor", commit, f"refs/heads/{branch}"
    ):
        raise ValueError(
            f"branch {branch!r} exists and does not hold commit {commit[:10]} of this run; rename it, `git branch -m {branch} NAME`, or "
            f"remove it, `git branch -D {branch}`, and promote again"
        )


def create(checkout: Path, branch: str, commit: str) -> None:
    """Puts a new `branch` at `commit`; one that `check` found good stays."""
    if not _exists(checkout, branch):
        git(checkout, "update-ref", f"refs/heads/{branch}", commit, "0" * 40)


def _exists(checkout: Path, branch: str) -> bool:
    return _holds(checkout, "rev-parse", "--verify", "--quiet", f"refs/heads/{branch}")


def _holds(checkout: Path, *question: str) -> bool:
    try:
        git(checkout, *question)
    except GitError:
        return False
    return True
