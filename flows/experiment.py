"""A finished run as a DVC experiment, which `dvc exp show` lists and `dvc exp apply` brings back."""

import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from flows.stage import stage_environment


def save(root: Path, name: str, stages: Sequence[str]) -> str:
    """Saves what the `stages` made as experiment `name`, replacing an older one; '' on success, else why not.

    A run's results stand in the workspace and in DVC's cache in any case, so this is told rather than raised.
    """
    if not stages:
        return "no stage finished"
    if not shutil.which("git"):
        return "git is not installed"
    head = ["git", "rev-parse", "--verify", "--quiet", "HEAD"]
    if subprocess.run(head, cwd=root, capture_output=True, check=False).returncode:
        return "no git repository with a commit is here; `git init && git add . && git commit -m start` makes one"
    # Only finished stages are named: DVC refuses to save when an output is missing.
    command = [sys.executable, "-m", "dvc", "--wait-for-lock", "exp", "save", "--force", "--name", name, *stages]
    saved = subprocess.run(command, cwd=root, env=stage_environment({}), capture_output=True, text=True, check=False)
    return saved.stderr.strip() or f"dvc exp save ended with status {saved.returncode}" if saved.returncode else ""
