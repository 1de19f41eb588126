"""Whether DVC has a stage's results already, asked before the stage waits for GPUs: `python -m flows.kept STAGE` in its folder.

`dvc repro --dry` would not do: it looks a changed stage up in the run cache under the hashes of the last run.
"""

import subprocess
import sys
from pathlib import Path

from dvc.repo import Repo
from dvc.stage.cache import RunCacheNotFoundError

from flows import run_cache

KEPT, MISSING = 0, 3


def kept(root: Path, stage: str) -> bool:
    """Whether `dvc repro` would skip the stage or bring its results from the cache. Another process asks: DVC's locks know no threads.

    Raises RuntimeError with DVC's words where it cannot tell.
    """
    command = [sys.executable, "-m", "flows.kept", stage]
    asked = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    if asked.returncode not in (KEPT, MISSING):
        raise RuntimeError(f"DVC does not tell whether it has the results of {stage!r}: {asked.stderr.strip()}")
    return asked.returncode == KEPT


def main(name: str) -> int:
    """Changes nothing, in the tree or in the cache."""
    run_cache.share()
    with Repo(_wait_for_lock=True) as repo, repo.lock:  # as `dvc --wait-for-lock` opens it
        stage = repo.stage.load_one(name=name)
        if not stage.changed():
            return KEPT
        stage.save_deps()  # hashes, in memory
        try:
            repo.stage_cache.restore(stage, dry=True)
        except RunCacheNotFoundError:
            return MISSING
        return KEPT


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
