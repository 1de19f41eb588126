"""A finished run as a DVC experiment of the checkout, which `dvc exp show` lists and `dvc exp apply` brings back."""

import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from flows import run_cache
from flows.git import GitError, git, head, why_not
from flows.stage import stage_environment


def save(root: Path, checkout: Path, name: str, stages: Sequence[str]) -> tuple[str, str]:
    """Saves what the `stages` made in `root` as experiment `name` of `checkout`, in the place of an older one.

    The experiment's git ref, and '' or why there is none. A run's results stand in its tree and in DVC's cache in any case, so
    this is told rather than raised.
    """
    if not stages:
        return "", "no stage finished"
    if not shutil.which("git") or not head(root):
        return "", why_not(root)
    # Only finished stages are named: DVC refuses to save when an output is missing.
    untracked = [
        option for path in (_new(root) if root != checkout else ()) for option in ("--include-untracked", path)
    ]
    command = run_cache.command("exp", "save", "--force", "--name", name, *untracked, "--", *stages)
    saved = subprocess.run(command, cwd=root, env=stage_environment({}), capture_output=True, text=True, check=False)
    if saved.returncode:
        return "", saved.stderr.strip() or f"dvc exp save ended with status {saved.returncode}"
    try:
        ref = reference(root, name)
        if ref and root != checkout:
            git(root, "push", "--quiet", "--force", str(git(checkout, "rev-parse", "--show-toplevel")), f"{ref}:{ref}")
    except GitError as error:
        return "", str(error)
    return ref, "" if ref else f"DVC saved no experiment {name!r}"


def _new(root: Path) -> list[str]:
    """Files that came along uncommitted and new: DVC would leave them out, staged or not."""
    staged = git(root, "diff", "--relative", "--name-only", "--no-renames", "--diff-filter=A", "-z", "--cached", "HEAD")
    others = git(root, "ls-files", "--others", "--exclude-standard", "-z")
    return sorted({name for name in f"{staged}\0{others}".split("\0") if name} - {"dvc.lock"})


def reference(folder: Path, name: str) -> str:
    """The full git ref of experiment `name` in the repository of `folder`, the newest where several have it; '' without one."""
    listed = git(folder, "for-each-ref", "--sort=-committerdate", "--format=%(refname)", "refs/exps")
    return next((ref for ref in listed.splitlines() if ref.endswith(f"/{name}")), "")
