"""A run's own working tree: a local clone of the checkout with its uncommitted changes, its cache, its raw data and its `work`.

Runs with different params go side by side, and the checkout stays as it is. Clones and not git's worktrees, which share
DVC's stash of experiments: of concurrent saves there, half fail or take another run's params.
"""

import os
import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from dvc.config import Config
from dvc.repo import Repo

from components.stage import atomic, remove
from flows import garbage, hashes, records, uncommitted
from flows.git import GitError, git, head
from flows.records import Record

Uncommitted = Literal["carry", "refuse"]
KEEP_TREES = "KEEP_TREES"
LINKS = "reflink,hardlink,symlink,copy"
"""How DVC puts cached files into a tree: the first that the file system can. Stages never write in place."""


@dataclass(frozen=True)
class Workspace:
    """Where one run works."""

    checkout: Path
    root: Path
    """The folder with dvc.yaml that the stages run in; the checkout itself in place."""
    record: Record
    again: bool
    """Whether the run's owner has been here before: a retry, or a run continued."""

    @property
    def patch(self) -> Path | None:
        """The file of the uncommitted changes that were carried along."""
        return records.folder(self.checkout, self.record.name) / "uncommitted.patch" if self.record.dirty else None

    def know(self, **known: str) -> Record:
        """Adds to the run's record."""
        current = records.read(self.checkout, self.record.name) or self.record
        return records.write(self.checkout, replace(current, **known))  # type: ignore[arg-type]

    def end(self, status: str) -> Record:
        """Writes down how the run ended."""
        return self.know(status=status, ended=records.now())

    def break_off(self, status: str) -> None:
        """Writes down the end of a run that broke before it could; one that has ended stays as it is."""
        current = records.read(self.checkout, self.record.name)
        if current and current.status == "RUNNING":
            self.end(status)

    def discard(self) -> None:
        """Forgets a run of which nothing has run, so that its name is free again."""
        if self.again:
            self.end("FAILED")
        else:
            remove(records.folder(self.checkout, self.record.name))
            records.release(self.checkout, self.record.name)


def open_workspace(checkout: Path, name: str, owner: str, changes: Uncommitted, in_place: bool) -> Workspace:
    """The workspace of run `name`: the one it had before, or a new one.

    Without git the run works in the checkout itself. Raises ValueError for a name that is taken, for changes that shall be
    refused or are too large, and when git or the disk refuses; no new folder is left then.
    """
    record, again = records.claim(checkout, name, owner)
    here = records.folder(checkout, name)
    try:
        if (again and record.in_place) or in_place or not separable(checkout):
            root = checkout
            record = replace(record, root=str(root), in_place=True, commit=record.commit or head(checkout))
        else:
            record = _started(checkout, record, here, changes)
            tree = here / "tree"
            if not tree.is_dir():
                with atomic(tree) as temporary:
                    _clone(checkout, record, here / "uncommitted.patch", temporary)
                    _connect(checkout, _inside(checkout, temporary))
                hashes.share(checkout, _inside(checkout, tree))
            root = _inside(checkout, tree)
            record = replace(record, root=str(root))
        return Workspace(checkout, root, records.write(checkout, record), again)
    except BaseException as error:
        if not again:
            remove(here)
            records.release(checkout, name)
        else:
            records.write(checkout, replace(record, status="FAILED", ended=records.now()))
        if isinstance(error, GitError | OSError):
            raise ValueError(f"run {name!r} has no workspace: {error}. The checkout is as it was") from error
        raise


def separable(checkout: Path) -> bool:
    """Whether runs can have trees of their own: there is a commit to clone, and DVC works with git (not `core.no_scm`)."""
    return bool(head(checkout)) and not Config(str(checkout / ".dvc"))["core"].get("no_scm", False)


def _started(checkout: Path, record: Record, here: Path, changes: Uncommitted) -> Record:
    """What the run starts from: fixed by its first start, so that a retry does the same work."""
    if record.commit:
        return record
    commit, patch = head(checkout), uncommitted.patch(checkout)
    if patch and changes == "refuse":
        files = git(checkout, "status", "--short", *uncommitted.REST).splitlines()
        raise ValueError(
            f"uncommitted is 'refuse', and {len(files)} files of {checkout} differ from commit {commit[:7]}: "
            f"{', '.join(line[3:] for line in files[:5])}{' …' * (len(files) > 5)}; commit or stash them, or choose 'carry', which takes "
            "them along and records them"
        )
    if patch:
        (here / "uncommitted.patch").write_bytes(patch)
    return replace(record, commit=commit, dirty=bool(patch))


def _clone(checkout: Path, record: Record, patch: Path, tree: Path) -> None:
    top = git(checkout, "rev-parse", "--show-toplevel")
    git(checkout, "clone", "--quiet", "--local", "--no-checkout", top, str(tree))
    with (tree / ".git" / "info" / "exclude").open("a", encoding="utf-8") as file:
        inside = git(checkout, "rev-parse", "--show-prefix")
        file.write(f"/{inside}work\n/{inside}data/raw/*\n")  # links here, which patterns such as `/work/` do not mean
    git(tree, "checkout", "--quiet", "--detach", record.commit)
    if record.dirty:
        git(tree, "apply", "--index", "--binary", "--whitespace=nowarn", str(patch))
    for key, fallback in (("user.name", "stop"), ("user.email", "stop@localhost")):  # the experiment is a commit
        try:
            value = git(checkout, "config", key)
        except GitError:
            value = fallback
        git(tree, "config", key, value)


def _inside(checkout: Path, tree: Path) -> Path:
    """The project's folder in a clone: the project may be a folder of a larger repository."""
    return tree / git(checkout, "rev-parse", "--show-prefix")


def _connect(checkout: Path, root: Path) -> None:
    """Shares with the checkout what is large or belongs to the machine: DVC's cache and remotes, raw data, resume state."""
    with Repo(str(checkout)) as ours:
        cache, remotes = ours.cache.local_cache_dir, dict(ours.config.get("remote", {}))
    local = checkout / ".dvc" / "config.local"
    if local.is_file():  # credentials, and whatever else a person keeps out of git
        shutil.copy(local, root / ".dvc" / "config.local")
    with Config(str(root / ".dvc")).edit("local") as config:
        config["cache"] = {**config.get("cache", {}), "dir": cache, "type": LINKS}
        for name, remote in remotes.items():
            if os.path.isabs(remote["url"]):  # DVC has resolved a relative one from the checkout's place
                config.setdefault("remote", {}).setdefault(name, {})["url"] = remote["url"]
    (checkout / "work").mkdir(exist_ok=True)
    _link(root / "work", checkout / "work")
    raw = checkout / "data" / "raw"
    for entry in sorted(raw.iterdir()) if raw.is_dir() else ():
        if not (root / "data" / "raw" / entry.name).exists():
            _link(root / "data" / "raw" / entry.name, entry)


def _link(link: Path, target: Path) -> None:
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(target.absolute())


def prune(checkout: Path) -> list[str]:
    """Removes the trees of all ended runs but the newest KEEP_TREES (5) finished and as many others; the names of the runs.

    Their records, patches, experiments and logs stay, and a retry makes the tree anew. A tree that alone knows what its stages made,
    because the run was killed or its experiment could not be saved, stays: `make gc` would take their results for unneeded.
    """
    text = os.environ.get(KEEP_TREES) or "5"
    keep = int(text) if text.isdigit() else 5
    pruned = []
    with records.alone(checkout):  # other runs end at the same time, and one of these may be retried
        ended = [one for one in reversed(records.every(checkout)) if not records.alive(checkout, one)]
        for kind in (True, False):
            for record in [one for one in ended if (one.status == "FINISHED") is kind and not one.in_place][keep:]:
                tree = records.folder(checkout, record.name) / "tree"
                if tree.is_dir() and _saved(record):
                    if (Path(record.root) / ".dvc").is_dir():
                        remove(garbage.index_of(Path(record.root)))
                    remove(tree)
                    pruned.append(record.name)
    return pruned


def _saved(record: Record) -> bool:
    """Whether the run's experiment, or the commit it started from, has its dvc.lock."""
    lock = Path(record.root) / "dvc.lock"
    if not lock.is_file():
        return True
    try:
        held = git(lock.parent, "show", f"{record.experiment or 'HEAD'}:./{lock.name}")
    except GitError:
        return False
    return held == lock.read_text(encoding="utf-8").rstrip("\n")
