"""The paper's numbers, and when a score may stand beside one: the same protocol on the same real dataset, else never.

`published.csv` holds every row of tables 1 to 8 of the submission and of tables 13 to 16 of the ICML version (arXiv 2308.00566v2) for six
methods. Its column `protocol` is a key of `PROTOCOLS`, or `quoted` where the paper took the number over from others, who trained
their own heads, or `ablation` (tables 6 to 8), whose 1 % protocol is another than table 1's and not told; nothing compares with those.
"""

import csv
import functools
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from components.report.protocols import PROTOCOLS, Protocol, differences

FILE = Path(__file__).with_name("published.csv")
SHOWN = 3  # differences named in the reason why there is no comparison


class Row(NamedTuple):
    """One published score, percent; `epochs` of pretraining is '' where the paper does not say."""

    table: str
    version: str
    method: str
    arch: str
    epochs: str
    protocol: str
    metric: str
    value: float

    @property
    def source(self) -> str:
        """The table and the version of the paper that it stands in."""
        return f"table {self.table}, {self.version}"


class Verdict(NamedTuple):
    """Whether an evaluation compares with the paper: `protocol` if so, else None and the reasons in a short phrase."""

    protocol: Protocol | None
    reason: str


@functools.cache
def rows() -> tuple[Row, ...]:
    """All published scores in the order of the tables."""
    with FILE.open(newline="", encoding="utf-8") as file:
        lines = list(csv.reader(file))[1:]
    return tuple(Row(a, b, c, d, e, f, g, float(value)) for a, b, c, d, e, f, g, value in lines)


def judge(record: Mapping[str, Any]) -> Verdict:
    """Whether the evaluation of this protocol file may stand beside the paper, and which of its protocols it follows.

    A setting that the file lacks counts as another one.
    """
    candidates = [protocol for protocol in PROTOCOLS.values() if protocol.stage == record.get("stage")]
    if not candidates:
        return Verdict(None, f"the paper has no table for {record.get('stage')}")
    told = {protocol.key: differences(protocol, record) for protocol in candidates}
    if same := next((protocol for protocol in candidates if not told[protocol.key]), None):
        return Verdict(same, "")
    classes = record.get("data", {}).get("classes")
    alike = [protocol for protocol in candidates if protocol.classes in (classes, 0)]
    if not alike:
        names = ", ".join(dict.fromkeys(protocol.title for protocol in candidates))
        return Verdict(None, f"{classes} classes; the paper has {names}")
    reasons = min((told[protocol.key] for protocol in alike), key=len)
    more = [f"{len(reasons) - SHOWN} more differences"] if len(reasons) > SHOWN else []
    return Verdict(None, "; ".join(reasons[:SHOWN] + more))


def beside(protocol: Protocol, metrics: Collection[str]) -> list[Row]:
    """The published rows that compare with `metrics`."""
    return [row for row in rows() if row.protocol == protocol.key and row.metric in metrics]
