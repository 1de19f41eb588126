"""The report as one HTML file that needs nothing else: no script, no font, no other file, and light or dark as the reader's screen is."""

from collections.abc import Sequence
from html import escape
from pathlib import Path

from components.report.content import Section, Table
from components.report.gather import better
from components.report.pictures import Figure

STYLE = Path(__file__).with_name("page.css").read_text(encoding="utf-8")
POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"  # the browser itself refuses whatever is not in the file


def write(title: str, sections: Sequence[Section], figures: Sequence[Figure]) -> str:
    """The whole page; the figures stand before the folded sections."""
    plain, folded = ([_section(part) for part in sections if part.folded == fold] for fold in (False, True))
    heading = escape(title)
    return "\n".join(
        [
            "<!doctype html>",
            '<html lang="en">',
            "<head>",
            '<meta charset="utf-8">',
            f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            '<meta name="color-scheme" content="light dark">',
            f"<title>{heading}</title>",
            f"<style>\n{STYLE}</style>",
            "</head>",
            "<body>",
            f"<header><p>Report</p><h1>{heading}</h1></header>",
            "<main>",
            *plain,
            *_figures(figures),
            *folded,
            "</main>",
            "</body>",
            "</html>",
            "",
        ]
    )


def _section(section: Section) -> str:
    title = escape(section.title)
    body = [f"<p>{escape(section.text)}</p>"] if section.text else []
    body += ["<ul>", *(f"<li>{escape(point)}</li>" for point in section.points), "</ul>"] if section.points else []
    for caption, content in section.tables:
        body.append(table(content, caption))
    if section.folded:
        return "\n".join([f"<details><summary>{title}</summary>", *body, "</details>"])
    return "\n".join([f"<section><h2>{title}</h2>", *body, "</section>"])


def table(content: Table, caption: str = "") -> str:
    """A table that scrolls sideways by itself where the screen is narrow."""
    lines = ['<div class="wide"><table>', *([f"<caption>{escape(caption)}</caption>"] if caption else [])]
    if any(content.head):
        cells = (
            f'<th{_class(_side(i, content))} scope="col">{escape(cell)}</th>' for i, cell in enumerate(content.head)
        )
        lines.append(f"<thead><tr>{''.join(cells)}</tr></thead>")
    lines.append("<tbody>")
    for number, row in enumerate(content.rows):
        cells = (f"<td{_class(*_look(i, content, row))}>{escape(cell)}</td>" for i, cell in enumerate(row))
        lines.append(f"<tr{_class('own' if number in content.marked else '')}>{''.join(cells)}</tr>")
    return "\n".join([*lines, "</tbody></table></div>"])


def _look(column: int, content: Table, row: Sequence[str]) -> tuple[str, ...]:
    """Numbers stand right; a difference that is not zero has a colour beside its sign."""
    told = content.head[column] == "difference" and row[column].strip("+-0.–")
    colour = ("up" if better(row[0], float(row[column])) else "down") if told else ""
    return _side(column, content), colour


def _side(column: int, content: Table) -> str:
    return "" if column < content.words else "number"


def _class(*names: str) -> str:
    joined = " ".join(filter(None, names))
    return f' class="{joined}"' if joined else ""


def _figures(figures: Sequence[Figure]) -> list[str]:
    lines: list[str] = []
    for stage in dict.fromkeys(figure.stage for figure in figures):
        own = [figure for figure in figures if figure.stage == stage]
        lines.append(f"<section><h2>{escape(stage)}</h2>")
        lines += ['<div class="figures">', *(_picture(figure) for figure in own if figure.picture), "</div>"]
        for figure in own:
            if figure.table:
                lines.append(f"<details><summary>{escape(figure.title)}</summary>\n{table(figure.table)}\n</details>")
        lines.append("</section>")
    return lines


def _picture(figure: Figure) -> str:
    title, alternative = escape(figure.title), escape(f"{figure.stage}: {figure.title}")
    image = f'<img src="{figure.picture}" alt="{alternative}">'
    return f"<figure{_class('half' if figure.half else '')}>{image}<figcaption>{title}</figcaption></figure>"
