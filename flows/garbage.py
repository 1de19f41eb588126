"""What DVC keeps that nothing needs: objects of the cache, entries of the run cache, a gone tree's index.

`dvc gc` in the checkout knows neither the trees of other runs nor which experiments shall go, and leaves the run cache as it is.
"""

import json
from collections.abc import Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
from dvc.exceptions import DvcException
from dvc.repo import Repo
from dvc.repo.experiments.refs import ExpRefInfo
from dvc.repo.experiments.utils import exp_commits, exp_refs, remove_exp_refs
from dvc_data.hashfile.gc import gc

from components.stage import remove
from flows import run_cache


@dataclass
class Unneeded:
    """Paths below DVC's cache folder."""

    used: set[Any] = field(default_factory=set)
    """DVC's hashes of the objects that stay, as long as DVC's locks are held."""
    objects: list[Path] = field(default_factory=list)
    entries: list[Path] = field(default_factory=list)
    """Of the run cache: outputs that are there no more, which DVC would look for in vain, and what is no whole entry."""


def unneeded(checkout: Path, trees: Sequence[Path], experiments: Collection[str]) -> Unneeded:
    """What no branch, no tag, no experiment but `experiments` (git refs), not the checkout and none of the `trees` needs.

    A folder whose list of files is not in the cache, after a disk was full, cannot be restored from it and keeps nothing there.
    Raises ValueError when DVC cannot read one of them: then nobody knows what it needs.
    """
    with _locked([checkout, *trees]) as repos:
        return _found(checkout, repos, experiments)


def clear(checkout: Path, trees: Sequence[Path], experiments: Collection[str]) -> str:
    """Removes what `unneeded` tells, looking again, since another command may have ended meanwhile; or says why nothing is removed.

    From its look to its last removal it holds the locks of DVC that a command takes to store anything. Raises as `unneeded` does.
    """
    with _locked([checkout, *trees]) as repos:
        if why_not := busy(checkout):
            return why_not
        found = _found(checkout, repos, experiments)
        for store in _stores(repos[0]):
            gc(store, found.used)
        for path in found.objects:
            remove(path)  # those that are no objects yet
        for path in found.entries:
            remove(path)
            for folder in (path.parent, path.parent.parent):
                if not any(folder.iterdir()):
                    folder.rmdir()
    return ""


def forget_experiments(checkout: Path, refs: Sequence[str]) -> None:
    """Removes experiments by their full git refs, those that are there."""
    if not refs:
        return
    with Repo(str(checkout)) as repo:
        there = {str(ref) for ref in exp_refs(repo.scm)} if _has_git(repo) else set()
        remove_exp_refs(repo.scm, [ExpRefInfo.from_ref(ref) for ref in refs if ref in there])


def index_of(tree: Path) -> Path:
    """Where DVC keeps its index of a tree, outside of it."""
    with Repo(str(tree)) as repo:
        return Path(repo.site_cache_dir)


def inside(checkout: Path) -> bool:
    """Whether the cache is the project's own: one elsewhere may serve others as well."""
    with Repo(str(checkout)) as repo:
        return Path(repo.cache.local_cache_dir).resolve().is_relative_to(checkout.resolve())


def busy(checkout: Path) -> str:
    """Says who runs a stage in the checkout now, outside of any run; '' for nobody."""
    pids = at_work(checkout)
    return f"DVC is at work in {checkout} (process {', '.join(map(str, pids))})" if pids else ""


def at_work(root: Path) -> list[int]:
    """Processes of DVC that run a stage in `root` now, whoever started them."""
    path = root / ".dvc" / "tmp" / "rwlock"
    text = path.read_text(encoding="utf-8") if path.is_file() else ""
    held = json.loads(text) if text else {}
    readers = [reader for readers in held.get("read", {}).values() for reader in readers]
    pids = {int(one["pid"]) for one in [*held.get("write", {}).values(), *readers]}
    return sorted(pid for pid in pids if psutil.pid_exists(pid))


@contextmanager
def _locked(roots: Sequence[Path]) -> Iterator[list[Repo]]:
    try:
        with ExitStack() as stack:
            repos = [stack.enter_context(Repo(str(root), _wait_for_lock=True)) for root in roots]
            for repo in repos:
                stack.enter_context(repo.lock)
            yield repos
    except DvcException as error:
        cause = f"{error}: {error.__cause__}" if error.__cause__ else str(error)
        raise ValueError(f"DVC cannot tell which data is needed, and none was removed: {cause}") from error


def _found(checkout: Path, repos: Sequence[Repo], experiments: Collection[str]) -> Unneeded:
    found, kept = Unneeded(), set[str]()
    for repo in repos:
        if repo.root_dir == str(checkout) and _has_git(repo):
            staying = [ref for ref in exp_refs(repo.scm) if str(ref) not in experiments]
            revisions = list(exp_commits(repo.scm, staying)) if staying else []
            needed = repo.used_objs(all_branches=True, all_tags=True, revs=revisions, force=True)
        else:
            needed = repo.used_objs(force=True)
        found.used.update(*needed.values())
    for store in _stores(repos[0]):
        names = {each.value for each in found.used if each.name == store.hash_name}
        for name in store.all():
            if name in names:
                kept.add(name)
            else:
                found.objects.append(Path(store.oid_to_path(name)))
    found.objects += sorted(Path(repos[0].cache.local_cache_dir).rglob(".*.tmp"))  # what a full disk or a kill left
    found.entries = [path for path in _entries(repos[0]) if not _restorable(path, kept)]
    return found


def _has_git(repo: Repo) -> bool:
    return not repo.config["core"].get("no_scm", False)


def _stores(repo: Repo) -> list[Any]:
    return list({id(store): store for _, store in repo.cache.by_scheme() if store}.values())


def _entries(repo: Repo) -> list[Path]:
    return sorted(path for path in Path(repo.stage_cache.cache_dir).glob("*/*/*") if path.is_file())


def _restorable(path: Path, kept: Collection[str]) -> bool:
    entry = run_cache.read(path)
    return entry is not None and all(out["md5"] in kept for out in entry.get("outs", []) if "md5" in out)
