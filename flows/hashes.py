"""Hashes of raw data that DVC has computed in one tree, known in another that links to the same files.

DVC notes the md5 of each file by its path, with inode, time of change and size. A run's tree has paths of its own, so that
without this every run would read all of ImageNet once.
"""

from pathlib import Path

from dvc.repo import Repo

RAW = Path("data") / "raw"


def share(source: Path, target: Path) -> int:
    """What the project in `source` knows of files below data/raw, told to the one in `target`; how many files that are.

    A file that has changed since is read again: DVC compares inode, time and size.
    """
    if source == target:
        return 0
    before, after = f"{source / RAW}/", f"{target / RAW}/"
    with Repo(str(source)) as giving, Repo(str(target)) as taking:
        keys = [key for key in giving.state.hashes.iterkeys() if isinstance(key, str) and key.startswith(before)]
        known = [
            (after + key.removeprefix(before), value) for key, value in giving.state.hashes.get_many(keys) if value
        ]
        taking.state.hashes.set_many(known)
    return len(known)
