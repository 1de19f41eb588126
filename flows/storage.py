"""Whether a run can write where it must, known before anything starts."""

import os
import pwd
import shutil
from collections.abc import Iterator
from pathlib import Path

from dvc.config import Config

from flows import records

FREE_MIB = 500
"""Less than this is too little for any run: its tree, its results and DVC's copies of them."""
SHARED = ".dvc/tmp", "work", "logs", records.FOLDER, "mlartifacts"


def check(checkout: Path) -> None:
    """ValueError for folders or files of another user that a run writes, and for a disk with less than FREE_MIB left."""
    cache = cache_folder(checkout)
    places = [checkout, *(checkout / name for name in SHARED), checkout / "mlflow.db", *_parts(cache)]
    refused = [path for path in places if path.exists() and not os.access(path, _needed(path), effective_ids=True)]
    if refused:
        first = refused[0]
        raise ValueError(
            f"user {_user(os.geteuid())!r} may not write {str(first)!r}, which belongs to {_owner(first)!r}"
            f"{f', nor {len(refused) - 1} more' * (len(refused) > 1)}. Run as that user; or share the cache, with "
            "`dvc config cache.shared group` and a group that may write all of it; or take a cache of your own, with "
            "`dvc cache dir --local FOLDER`. Nothing was started"
        )
    for place in dict.fromkeys([_there(cache), checkout]):
        free = shutil.disk_usage(place).free / 2**20
        if free < FREE_MIB:
            raise ValueError(
                f"the disk of {str(place)!r} has {free:.0f} MiB left, and a run needs {FREE_MIB} or more; `make gc` shows what no "
                "kept run needs. Nothing was started"
            )


def cache_folder(checkout: Path) -> Path:
    """DVC's cache, there or not, found without writing anything."""
    return Path(Config(str(checkout / ".dvc"))["cache"].get("dir") or checkout / ".dvc" / "cache")


def _parts(cache: Path) -> Iterator[Path]:
    """Every folder that a new object or an entry of the run cache may go to."""
    yield _there(cache)
    for store in (cache / "files" / "md5", cache / "runs"):
        if store.is_dir():
            yield store
            yield from sorted(path for path in store.iterdir() if path.is_dir())


def _there(path: Path) -> Path:
    """The path, or the closest folder above it that exists, in which it would be made."""
    return next(each for each in (path, *path.parents) if each.exists())


def _needed(path: Path) -> int:
    return os.W_OK | (os.X_OK if path.is_dir() else 0)


def _owner(path: Path) -> str:
    return _user(path.stat().st_uid)


def _user(uid: int) -> str:
    """The account's name; what the environment says of it may be another's, as under `sudo` and in a container."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:  # of a container or another machine
        return f"uid {uid}"
