"""What the flows ask git for. A failing command raises GitError with git's own words."""

import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path


class GitError(RuntimeError):
    """Git refused; the message holds the command and what it said."""


def git(folder: Path, *arguments: str, environment: Mapping[str, str] | None = None) -> str:
    """What `git -C folder …` prints, without the last line end. Raises GitError when it fails."""
    done = subprocess.run(
        ["git", "-C", str(folder), *arguments],
        capture_output=True,
        text=True,
        errors="surrogateescape",  # names of files may be any bytes
        check=False,
        env=os.environ | {"LC_ALL": "C"} | dict(environment or {}),
    )
    if done.returncode:
        raise GitError(f"git {' '.join(arguments)} in {folder} failed: {done.stderr.strip() or done.stdout.strip()}")
    return done.stdout.rstrip("\n")


def head(folder: Path) -> str:
    """The commit that the repository of `folder` stands at; '' without git, a repository or a commit."""
    if not shutil.which("git"):
        return ""
    try:
        return git(folder, "rev-parse", "--verify", "--quiet", "HEAD^{commit}")
    except GitError:
        return ""


def why_not(folder: Path) -> str:
    """Why `folder` has no commit to start from, and the way out."""
    if not shutil.which("git"):
        return "git is not installed"
    return "no git repository with a commit is here; `git init && git add . && git commit -m start` makes one"
