"""Which pipeline runs stay, and why."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from flows import records
from flows.records import Record

CONTINUED_DAYS = 14
"""How long a run that failed or was killed can be continued, whatever the number of newer ones."""


@dataclass(frozen=True)
class Decision:
    """What becomes of a run."""

    record: Record
    stays: bool
    why: str


def decide(
    every: Sequence[Record],
    keep: int,
    remove: Collection[str],
    promoted: Collection[str],
    working: Collection[str],
    now: datetime,
) -> list[Decision]:
    """One decision for each of the records, which come oldest first.

    Without names to `remove` the newest `keep` runs stay, the members of an ablation counting as one; with names, only those go.
    Raises ValueError for a name that no run has or that is at work or promoted.
    """
    unknown = sorted(set(remove) - {record.name for record in every})
    if unknown:
        raise ValueError(
            f"no run is called {', '.join(map(repr, unknown))}; the runs are: {', '.join(r.name for r in every) or 'none'}"
        )
    groups = list(dict.fromkeys(_group(record) for record in reversed(every)))
    decisions = []
    for record in every:
        why = _bound(record, promoted, working)
        if why and record.name in remove:
            raise ValueError(f"run {record.name!r} {why}, and stays; nothing was removed")
        if not why and remove:
            why = "" if record.name in remove else "was not named"
        elif not why:
            why = _spared(record, groups.index(_group(record)), keep, now)
        decisions.append(Decision(record, bool(why), why or "goes"))
    return decisions


def _bound(record: Record, promoted: Collection[str], working: Collection[str]) -> str:
    if record.name in working:
        return f"is {records.at_work(record)}"
    return "is promoted" if {record.name, record.parent} & set(promoted) - {""} else ""


def _spared(record: Record, rank: int, keep: int, now: datetime) -> str:
    if rank < keep:
        return f"is one of the newest {keep}"
    last = datetime.fromisoformat(record.ended or record.created).astimezone(UTC)
    if record.status != "FINISHED" and now - last < timedelta(days=CONTINUED_DAYS):
        return f"can be continued: it ended less than {CONTINUED_DAYS} days ago without being done"
    return ""


def _group(record: Record) -> str:
    kind, _, rest = record.owner.partition(":")
    return f"{kind}:{rest.rpartition('/')[0]}" if kind == "ablation" else record.name
