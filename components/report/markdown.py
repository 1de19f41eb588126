"""The report as Markdown that reads well as plain text, too: in a terminal and on a run's page in Prefect."""

import re
from collections.abc import Sequence

from components.report.content import Section, Table

SMALL_PRINT = "## Small print"
"""The heading of what is for reference; a terminal shows what stands above it."""


def write(title: str, sections: Sequence[Section]) -> str:
    """The whole page, without figures."""
    parts = [f"# Report: {_safe(title)}"]
    for section in sorted(sections, key=lambda section: section.folded):
        if section.folded and SMALL_PRINT not in parts:
            parts.append(SMALL_PRINT)
        parts.append(f"{'###' if section.folded else '##'} {_safe(section.title)}")
        parts += [_safe(section.text)] if section.text else []
        parts += ["\n".join(f"- {_safe(point)}" for point in section.points)] if section.points else []
        for caption, content in section.tables:
            parts += [_safe(caption)] if caption else []
            parts.append(table(content))
    return "\n\n".join(parts) + "\n"


def table(content: Table) -> str:
    """A table whose columns stand under each other in plain text; numbers are aligned right."""
    return grid([[_safe(cell) for cell in row] for row in (content.head, *content.rows)], content.words)


def grid(rows: Sequence[Sequence[str]], words: int) -> str:
    """Rows of equal length, the first of which is the head; columns after the first `words` are aligned right."""
    widths = [max(3, *map(len, column)) for column in zip(*rows, strict=True)]
    rule = ["-" * width if i < words else "-" * (width - 1) + ":" for i, width in enumerate(widths)]
    padded = [
        [
            cell.ljust(width) if i < words else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        for row in rows
    ]
    return "\n".join("| " + " | ".join(row) + " |" for row in [padded[0], rule, *padded[1:]])


def _safe(text: str) -> str:
    """Text that cannot become a tag, a cell, a line or code."""
    return " ".join(re.sub(r"[\\|<`*]", r"\\\g<0>", text).split())
