"""What a report is made of: sections with tables, which `markdown` and `page` write down. One content, two dresses."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

NONE = "–"


@dataclass(frozen=True)
class Table:
    """Cells are plain text; the first `words` columns are words, the others numbers; rows in `marked` stand out."""

    head: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]
    words: int = 1
    marked: frozenset[int] = frozenset()


@dataclass(frozen=True)
class Section:
    """A title, a paragraph, points, tables with their captions. A `folded` one is for reference: it opens on demand in the page."""

    title: str
    text: str = ""
    points: tuple[str, ...] = ()
    tables: tuple[tuple[str, Table], ...] = ()
    folded: bool = False


def number(value: Any, decimals: int, sign: str = "") -> str:
    """A score for a table; a dash where there is none."""
    return NONE if value is None else f"{value:{sign}.{decimals}f}"


def text(value: Any) -> str:
    """A value as its file has it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list):
        return ", ".join(map(text, value))
    return NONE if value is None else str(value)
