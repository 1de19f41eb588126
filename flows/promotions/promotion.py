"""What a promotion does, in an order that leaves a consistent state wherever it ends: check, branch, push, register, alias."""

import fcntl
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from flows import preflight, records
from flows.promotions import branch, judgement, lineage, snapshot
from flows.records import Record
from flows.stage import terminal

if TYPE_CHECKING:
    from components.parent_runs import Row
    from components.registry.versions import Registry, Version


@dataclass(frozen=True)
class Request:
    """What is asked of one promotion."""

    run: str
    metrics: Sequence[str] = ()
    """Scores to compare on, by MLflow's names; none means every headline that run and champion share."""
    tolerance: float = judgement.TOLERANCE
    force: str = ""
    """Why it is promoted even if the comparison speaks against it; recorded as a tag. '' lets the comparison decide."""
    push: bool = True
    """Whether data, checkpoints and the run cache go to DVC's default remote."""


def promote(checkout: Path, request: Request) -> str:
    """Promotes a run of the checkout; what was done, for a person. Doing it again does only what is missing.

    Raises ValueError, before anything is changed, for a run that cannot be promoted or may not follow the champion; RuntimeError
    when git, DVC or MLflow fails on the way. The alias moves last: until then others load the champion before.
    """
    with _alone(checkout) as registry:
        record, row = _finished(checkout, request.run)
        remote = snapshot.default_remote(checkout) if request.push else None
        champion = registry.champion()
        against = _compared(row, champion, request)
        commit, name = branch.commit(checkout, record), f"promoted/{record.name}"
        branch.check(checkout, name, commit)
        with snapshot.snapshot(checkout, commit) as files:
            with records.alone(checkout):  # `make gc` keeps what a branch names
                encoder = files.fetch(lineage.ENCODER)
                tags = {"git.branch": name, "git.commit": commit} | lineage.tags(record, row, files.tree, encoder)
                branch.create(checkout, name, commit)
            if remote:
                terminal.info("pushing data, checkpoints and run cache to %s (%s)", remote.name, remote.url)
                files.push(checkout / "logs" / record.name / "promote.log")
            version, new = _registered(registry, encoder, files.tree, tags)
        if against:
            registry.tag(version, {"forced": request.force, "forced.over": "\n".join(against)})
        reigned = champion is not None and champion.number == version.number
        if not reigned:
            registry.crown(version, f"promoted, forced: {request.force}" if against else "promoted")
    return _told(version, champion, new, reigned, name, remote)


def rollback(checkout: Path) -> str:
    """Gives the alias back to the champion before; what was done. Raises ValueError where there is none."""
    with _alone(checkout) as registry:
        left, now = registry.dethrone()
    return (
        f"champion is again version {now.number} (run {now.run}), no longer version {left.number} (run {left.run}); that version, its "
        "branch and what was pushed stay"
    )


@contextmanager
def _alone(checkout: Path) -> Iterator["Registry"]:
    """One promotion at a time; the next one waits, and then sees what this one did."""
    if not (checkout / ".dvc").is_dir():
        raise ValueError(f"{checkout} has no folder .dvc; promote in the project's folder")
    (checkout / ".dvc" / "tmp").mkdir(exist_ok=True)
    with (checkout / ".dvc" / "tmp" / "promote.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        from components.registry.versions import opened  # imports mlflow

        with opened(checkout) as registry:
            yield registry


def _finished(checkout: Path, name: str) -> tuple[Record, "Row"]:
    """The record of run `name` and its row in MLflow."""
    from components.parent_runs import pipeline_rows

    preflight.check_name(name)
    record = records.read(checkout, name)
    if record is None:
        done = [known.name for known in records.every(checkout) if known.status == "FINISHED"]
        raise ValueError(
            f"run is {name!r}, of which {checkout / records.FOLDER} has no record; finished runs, the newest last: "
            f"{', '.join(done[-10:]) or 'none'}"
        )
    if record.status != "FINISHED":
        now = "running" if records.alive(checkout, record) else "not finished"
        raise ValueError(
            f"run {name!r} is {now} ({record.status.lower()}); a run is promoted when all its stages are done: let it end, or press Retry "
            "on its page in Prefect's UI, which does what is missing"
        )
    if not record.parent:
        raise ValueError(
            f"run {name!r} has no row in MLflow, which refused it at the time, so it has no scores to compare; start it again"
        )
    return record, pipeline_rows(checkout, [record.parent])[0]


def _compared(row: "Row", champion: "Version | None", request: Request) -> list[str]:
    """What speaks against the run, to be recorded where it was forced. Raises ValueError where it was not."""
    judgement.check(row, request.metrics, request.tolerance)
    if champion is None:
        return []
    beside = row._replace(name=f"version {champion.number}", metrics=champion.metrics, protocols=champion.protocols)
    faults = judgement.faults(row, beside, request.metrics, request.tolerance)
    if faults and not request.force.strip():
        raise ValueError(
            f"run {request.run!r} may not follow the champion, version {champion.number} (run {champion.run!r}):\n"
            + "\n".join(faults)
            + f"\nCompare on other scores, `make promote RUN={request.run} METRICS='…'`, or promote it all the same and say why, "
            f"`make promote RUN={request.run} FORCE='…'`. Nothing was changed"
        )
    return faults


def _registered(registry: "Registry", encoder: Path, tree: Path, tags: dict[str, str]) -> tuple["Version", bool]:
    """The version of these weights of this run, and whether it is new."""
    same = ("run", f"dvc.{lineage.ENCODER}")
    for version in registry.versions():
        if all(version.tags.get(key) == tags[key] for key in same):
            return version, False
    from components.registry.packaging import readers

    return registry.register(encoder, readers(tree), tags["mlflow.run_id"], tags), True


def _told(
    version: "Version", champion: "Version | None", new: bool, reigned: bool, name: str, remote: snapshot.Remote | None
) -> str:
    was = "was the champion already" if reigned else "is the champion now"
    before = f", after version {champion.number} (run {champion.run})" if champion and not reigned else ""
    pushed = f"data, checkpoints and run cache are on {remote.name} ({remote.url})" if remote else "nothing was pushed"
    return (
        f"version {version.number} of encoder (run {version.run}, {'new' if new else 'registered before'}) {was}{before}; "
        f"branch {name} has its params and dvc.lock; {pushed}\n"
        'mlflow.pyfunc.load_model("models:/encoder@champion") loads it; `make rollback` gives the alias back to the champion before'
    )
