"""Removes what no kept run needs: `make gc` shows it, `make gc APPLY=1` does it.

A run that goes, goes from everywhere: its folder in workspaces/, its DVC experiment, its logs, its rows in MLflow. Then goes what
only such runs needed: resume state under work/, objects of DVC's cache, entries of its run cache. Nothing of the checkout, of a
branch, a tag, a promoted run or a run at work is touched, and no run starts meanwhile.
"""

import argparse
import logging
import sys
import time
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from components import work
from components.stage import remove
from flows import garbage, records, retention
from flows.git import git, head
from flows.retention import Decision

KEEP = 20


@dataclass(frozen=True)
class Plan:
    """What goes and what stays."""

    decisions: list[Decision]
    strays: list[Path]
    """Folders in workspaces/ without a record, which nothing can continue."""
    folders: list[Path]
    """Logs, and indices that DVC has of trees."""
    work: list[work.Use]
    rows: dict[str, str]
    """In MLflow, as `removal.doomed` has them."""
    data: garbage.Unneeded | None
    """None where the cache stays as it is; `why_not` says why."""
    why_not: str

    @property
    def going(self) -> list[records.Record]:
        """The runs that go."""
        return [decision.record for decision in self.decisions if not decision.stays]


def plan(checkout: Path, keep: int, named: Sequence[str]) -> Plan:
    """Looks at everything and changes nothing. Raises ValueError for runs that cannot go, and when DVC cannot tell what is needed."""
    from components.tracking import removal  # imports mlflow

    every = records.every(checkout)
    promoted = removal.promoted(checkout) | set(_branches(checkout))
    working = {record.name for record in every if records.alive(checkout, record)}
    decisions = retention.decide(every, keep, named, promoted, working, datetime.now(UTC))
    going = [decision.record for decision in decisions if not decision.stays]
    home = checkout / records.FOLDER
    known = {record.name for record in every}
    strays = sorted(path for path in home.glob("*") if path.is_dir() and path.name not in known and _old(path))
    trees = [tree for record in going if (tree := _tree(checkout, record)) is not None]
    logs = [path for record in going if (path := checkout / "logs" / record.name).is_dir()]
    indices = [garbage.index_of(tree) for tree in trees]
    why_not, data = _busy(checkout, every), None
    if not why_not:
        data = garbage.unneeded(checkout, _staying(checkout, decisions), _experiments(going))
    rows = removal.doomed(checkout, {record.parent for record in going if record.parent})
    return Plan(decisions, strays, [*logs, *indices], _idle_work(checkout, decisions), rows, data, why_not)


def apply(checkout: Path, found: Plan) -> list[str]:
    """Does what the plan says; what could not be done. A run's record goes last, so that whatever ends this, it can be done again.

    What a command of DVC or a stage has made since the plan, outside of any run, stays. Raises ValueError when DVC cannot tell by now.
    """
    from components.tracking import removal

    left = [removal.remove(checkout, found.rows)]
    removal.forget_journals(checkout, {record.parent for record in found.going if record.parent}, found.rows)
    garbage.forget_experiments(checkout, _experiments(found.going))
    idle = {use.folder for use in _idle_work(checkout, found.decisions)}  # again: somebody may have come and gone
    going = [use.folder for use in found.work if use.folder in idle]
    left += [f"{folder} is in use" for folder in going if not work.remove_unused(folder)]
    if found.data is not None:
        why_not = garbage.clear(checkout, _staying(checkout, found.decisions), _experiments(found.going))
        left += [f"DVC's cache stays as it is: {why_not}"] if why_not else []
    for path in [*found.folders, *found.strays, *(records.folder(checkout, record.name) for record in found.going)]:
        remove(path)
    return [line for line in left if line]


def told(checkout: Path, found: Plan, done: bool) -> str:
    """The plan for a person, with what each part frees."""
    lines = [f"{one.record.name}: stays, it {one.why}" for one in found.decisions if one.stays]
    lines += [f"{record.name}: {'gone' if done else 'goes'} ({record.status.lower()})" for record in found.going]
    lines += _lost(checkout, found, "gone" if done else "goes")
    groups = {
        "folders of runs": [*(records.folder(checkout, record.name) for record in found.going), *found.strays],
        "logs and indices": found.folders,
        "resume state and features": [use.folder for use in found.work],
    }
    if found.data is not None:
        groups |= {"objects of DVC's cache": found.data.objects, "entries of its run cache": found.data.entries}
    sizes = {name: sum(map(_size, paths)) for name, paths in groups.items()}
    lines += [f"{len(paths):6d} {name}, {sizes[name] / 2**20:.1f} MiB" for name, paths in groups.items()]
    lines += [f"{sum(not heir for heir in found.rows.values()):6d} rows in MLflow"]
    lines += [f"DVC's cache stays as it is: {found.why_not}"] if found.why_not else []
    lines += ["" if done else "Nothing was removed. The same command with APPLY=1 does it"]
    return "\n".join(lines).rstrip()


def _old(path: Path) -> bool:
    """Whether nobody is just making it: an ablation writes a member's values before the member is a run."""
    return time.time() - path.stat().st_mtime > 3600


def _branches(checkout: Path) -> list[str]:
    """Runs that have a branch of `make promote`."""
    if not head(checkout):
        return []
    return git(checkout, "for-each-ref", "--format=%(refname:lstrip=3)", "refs/heads/promoted").splitlines()


def _tree(checkout: Path, record: records.Record) -> Path | None:
    """Where a run's own dvc.yaml stands, if it still has a tree."""
    root = Path(record.root) if record.root else checkout
    return root if not record.in_place and root != checkout and (root / ".dvc").is_dir() else None


def _staying(checkout: Path, decisions: Sequence[Decision]) -> list[Path]:
    """The trees of runs that stay."""
    return [tree for one in decisions if one.stays and (tree := _tree(checkout, one.record)) is not None]


def _experiments(going: Sequence[records.Record]) -> list[str]:
    return [record.experiment for record in going if record.experiment]


def _busy(checkout: Path, every: Sequence[records.Record]) -> str:
    """Why data must not be removed now: what a stage has just made, only its process knows."""
    running = [record.name for record in every if records.alive(checkout, record)]
    if running:
        return f"run {', '.join(running)} is at work, and may need any of it"
    if why_not := garbage.busy(checkout):
        return why_not
    return "" if garbage.inside(checkout) else "it is not in this project's folder, so others may use it"


def _idle_work(checkout: Path, decisions: Sequence[Decision]) -> list[work.Use]:
    """Resume state and features that neither a run which may go on nor the checkout needs."""
    unfinished = _unfinished([one.record for one in decisions if one.stays])
    return [use for use in work.uses(checkout / "work") if not use.needed(unfinished, checkout)]


def _unfinished(runs: Sequence[records.Record]) -> set[Path]:
    """Where those of the runs work that are not done."""
    return {Path(record.root).resolve() for record in runs if record.status != "FINISHED" and record.root}


def _lost(checkout: Path, found: Plan, gone: str) -> list[str]:
    """One line for each resume state that goes although it has more to come, or results that were perhaps never stored."""
    from components.pretrain import unfinished  # imports the contracts of stages

    undone, lines = _unfinished(found.going), []
    for use in found.work:
        if use.folder.parent.name != "features" and (not use.finished or use.users & undone):
            about = unfinished.read(use.folder)
            far = f"step {about['step']} of {about['steps']}" if about else "all done" if use.finished else "not done"
            lines.append(f"{use.folder.relative_to(checkout)}: {gone}, {far}")
    return lines


def _size(path: Path) -> int:
    """Bytes that only this folder or file holds: hard links share theirs with DVC's cache."""
    files = [path] if path.is_file() else [file for file in path.rglob("*") if file.is_file() and not file.is_symlink()]
    return sum(status.st_size for status in (file.stat() for file in files) if status.st_nlink == 1)


def main(argv: Sequence[str] | None = None) -> int:
    """Exit status 0; 2 with one message for a run that cannot go, and then nothing changed, or when DVC cannot tell what is needed."""
    parser = argparse.ArgumentParser(prog="python -m flows.gc", description=__doc__, allow_abbrev=False)
    parser.add_argument("--keep", type=int, default=KEEP, metavar="N", help=f"newest runs that stay ({KEEP})")
    parser.add_argument(
        "--remove", action="append", default=[], metavar="RUN", help="only this run goes; may be repeated"
    )
    parser.add_argument("--apply", action="store_true", help="do it")
    parser.add_argument("--root", type=Path, default=Path.cwd(), help="the project's folder")
    options = parser.parse_args(argv)
    checkout = options.root.resolve()
    logging.getLogger("dvc").setLevel(logging.ERROR)  # it warns of every output that a branch has no hash of
    try:
        if options.keep < 0:
            raise ValueError(f"keep is {options.keep}; it must be at least 0, the number of newest runs that stay")
        with records.alone(checkout) if options.apply else nullcontext():
            found = plan(checkout, options.keep, options.remove)
            text = told(checkout, found, options.apply)  # before it is done: then there is nothing to measure
            left = apply(checkout, found) if options.apply else []
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print("\n".join([text, *left]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
