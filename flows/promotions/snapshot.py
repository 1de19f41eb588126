"""The files of one commit in a folder of their own, where DVC has the checkout's cache and remotes."""

import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dvc.config import Config

from flows import run_cache
from flows.command import Lifeline, run
from flows.promotions import branch
from flows.stage import stage_environment


@dataclass(frozen=True)
class Remote:
    """A place that DVC pushes to."""

    name: str
    url: str


def default_remote(checkout: Path) -> Remote:
    """The checkout's default remote. Raises ValueError where it has none."""
    settings = Config(str(checkout / ".dvc"))
    name = settings["core"].get("remote", "")
    if name not in settings["remote"]:
        told = (
            f"the default remote of DVC is {name!r}, which is not configured" if name else "DVC has no default remote"
        )
        raise ValueError(
            f"{told} in {checkout}, so data and checkpoints have nowhere to go; name a place, `dvc remote add -d store /path/to/store`, "
            "or promote without pushing (PUSH=0, or `push` off in the form). Nothing was changed"
        )
    return Remote(name, str(settings["remote"][name]["url"]))


class Snapshot:
    """The folder `tree` with the files of a commit, none of what DVC tracks, and no git."""

    def __init__(self, checkout: Path, tree: Path) -> None:
        self.checkout, self.tree = checkout, tree

    def fetch(self, path: str) -> Path:
        """Brings one file that DVC tracks from the cache. Raises ValueError where it is not there."""
        ended = self._dvc("checkout", path)
        if ended.returncode or not (self.tree / path).is_file():
            raise ValueError(
                f"DVC cannot bring {path} of this run ({_last(ended.stderr)}); if it was pushed, `dvc fetch --all-commits` brings it back, "
                "else start the run again. Nothing was changed"
            )
        return self.tree / path

    def push(self, log: Path) -> None:
        """Pushes all that the commit's dvc.lock names, and the run cache, to the default remote; what DVC says is kept in `log`.

        Raises ValueError for results that are neither in the cache nor there, and RuntimeError when DVC fails.
        """
        command, quiet = run_cache.command("push", "--run-cache"), list[str]().append
        with Lifeline() as lifeline:
            ended = run(command, lifeline, self.tree, self._environment(), log, quiet)
        told = "\n".join(ended.tail)
        if ended.status:
            raise RuntimeError(
                f"`dvc push --run-cache` failed; what was pushed stays, promote again to go on ({log}):\n{told}"
            )
        if "Missing cache files" in told:  # of which DVC only warns
            raise ValueError(
                f"results of this run are neither in DVC's cache nor on the remote; `dvc gc` may have removed them: start the run again, "
                f"which makes what is missing, and promote it then ({log}):\n{told}"
            )

    def _dvc(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        command, environment = run_cache.command(*arguments), self._environment()
        return subprocess.run(command, cwd=self.tree, env=environment, capture_output=True, text=True, check=False)

    def _environment(self) -> dict[str, str]:
        return stage_environment(
            {"DVC_SITE_CACHE_DIR": str(self.tree.parent / "site")}
        )  # else it would outlive this folder


@contextmanager
def snapshot(checkout: Path, commit: str) -> Iterator[Snapshot]:
    """A folder for the time of the `with` block, on the file system of the checkout's DVC folder."""
    with tempfile.TemporaryDirectory(dir=checkout / ".dvc" / "tmp", prefix="promote-") as folder:
        tree = branch.export(checkout, commit, Path(folder) / "tree")
        known: dict[str, Any] = Config(str(checkout / ".dvc"))
        with Config(str(tree / ".dvc")).edit("local") as local:  # addresses in `known` are absolute already
            local["core"] = {"no_scm": True, **{key: known["core"][key] for key in ("remote",) if key in known["core"]}}
            local["cache"] = {"dir": str(checkout / ".dvc" / "cache")} | known["cache"]
            local["remote"] = known["remote"]
        yield Snapshot(checkout, tree)


def _last(text: str) -> str:
    return next((line for line in reversed(text.splitlines()) if line.strip()), "no reason given")
