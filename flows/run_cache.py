"""DVC whose run cache several trees can share: `python flows/run_cache.py repro …` is `dvc repro …`.

DVC 3.67 writes an entry of the run cache under a passing name beside the finished ones, and takes the newest file there for the last
result: a DVC in another tree reads the half of it, "corrupted", and removes it, upon which the first fails although its stage has
ended well. Here an entry is written elsewhere and moved in whole, and what cannot be read is passed over and left where it is, so
that any number of these, and one plain `dvc` among them, share a cache.
"""

import os
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import dvc.stage.cache
from dvc.schema import COMPILED_LOCK_FILE_STAGE_SCHEMA
from dvc.stage import Stage
from dvc.stage.cache import StageCache
from dvc.utils.serialize import YAMLFileCorruptedError, load_yaml
from voluptuous import Invalid

PASSING = ".tmp"
"""How the names of files and folders end that are being written; what a kill leaves of them, `make gc` removes."""


class SharedStageCache(StageCache):  # type: ignore[misc]  # dvc has no types
    """DVC's, for several processes in several trees at once."""

    def save(self, stage: Stage) -> None:
        """Makes the entry in a folder of its own and moves it to the others."""
        store = self.repo.cache.legacy
        store.makedirs(store.path)  # with the rights of a cache that a group shares
        with TemporaryDirectory(dir=store.path, prefix=".run-cache-", suffix=PASSING) as own:
            alone = StageCache(self.repo)
            alone.cache_dir = own
            alone.save(stage)
            for made in Path(own).glob("*/*/*"):
                entry = Path(self.cache_dir, made.relative_to(own))
                store.makedirs(str(entry.parent))
                os.replace(made, entry)

    def _load(self, stage: Stage) -> dict[str, Any] | None:
        """The newest entry that can be read."""
        folder = Path(self._get_cache_dir(dvc.stage.cache._get_stage_hash(stage)))
        dated = []
        for path in folder.iterdir() if folder.is_dir() else ():
            try:
                dated.append((path.stat().st_mtime, path))
            except FileNotFoundError:  # a plain `dvc` has just moved what it wrote
                continue
        return next((entry for _, path in sorted(dated, reverse=True) if (entry := read(path)) is not None), None)


def read(path: Path) -> dict[str, Any] | None:
    """An entry of the run cache: a stage's part of dvc.lock. None when it is not, or not yet, whole."""
    if path.name.endswith(PASSING):
        return None
    try:
        entry: dict[str, Any] = COMPILED_LOCK_FILE_STAGE_SCHEMA(load_yaml(path))
    except (FileNotFoundError, YAMLFileCorruptedError, Invalid):
        return None
    return entry


def share() -> None:
    """Every repository that this process opens from now on has this run cache."""
    dvc.stage.cache.StageCache = SharedStageCache


def command(*arguments: str) -> list[str]:
    """`dvc ARGUMENTS…` in a process of its own, which waits for another one's lock instead of giving up after 3 s."""
    return [sys.executable, "-P", __file__, "--wait-for-lock", *arguments]  # a run's tree may hold an older `flows`


if __name__ == "__main__":
    from dvc.cli import main

    share()
    sys.exit(main(sys.argv[1:]))
