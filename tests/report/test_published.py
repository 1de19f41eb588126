"""The published numbers are those of the paper: by the differences that it prints itself, and by its text where that is at hand."""

import re
from collections import Counter
from pathlib import Path

import pytest

from components.report.protocols import PROTOCOLS
from components.report.published import Row, rows

B, L, H = "ViT-B/16", "ViT-L/16", "ViT-H/14"


def value(table: str, method: str, arch: str, metric: str) -> float:
    (row,) = [r for r in rows() if (r.table, r.method, r.arch, r.metric) == (table, method, arch, metric)]
    return row.value


@pytest.mark.parametrize(
    ("table", "arch", "metric", "printed"),
    [
        ("1", B, "logistic_top1", 3.2), ("1", B, "last_top1", 1.7), ("1", B, "last4_top1", 1.6),
        ("1", L, "logistic_top1", 0.9), ("1", L, "last_top1", 1.0), ("1", L, "last4_top1", 1.0),
        ("1", H, "logistic_top1", 2.5), ("1", H, "last_top1", 0.8), ("1", H, "last4_top1", 0.3),
        ("3", L, "jf_mean", 2.5), ("4", H, "count_top1", 1.3), ("4", H, "distance_top1", 0.1),
        ("5", L, "top1", 2.3), ("6", B, "logistic_top1", 3.5), ("7", B, "logistic_top1", 3.5),
    ],
)  # fmt: skip
def test_stop_gains_what_the_paper_says(table: str, arch: str, metric: str, printed: float) -> None:
    gain = value(table, "StoP", arch, metric) - value(table, "I-JEPA", arch, metric)
    assert gain == pytest.approx(printed, abs=1e-9)


def test_inat_gains_what_the_caption_of_table_4_says() -> None:
    assert rows_of("4", "inat18", "StoP", H) - rows_of("4", "inat18", "I-JEPA", H) == pytest.approx(3.3)


def rows_of(table: str, protocol: str, method: str, arch: str) -> float:
    (row,) = [r for r in rows() if (r.table, r.protocol, r.method, r.arch) == (table, protocol, method, arch)]
    return row.value


def test_j_and_f_is_the_mean_of_the_two() -> None:
    lines = {(r.table, r.method, r.arch) for r in rows() if r.protocol == "davis"}
    assert len(lines) == 9 + 3
    for line in lines:
        j, f, both = (value(*line, metric) for metric in ("j_mean", "f_mean", "jf_mean"))
        assert abs((j + f) / 2 - both) <= 0.1 + 1e-9, line


def test_what_two_tables_print_is_the_same() -> None:
    for method in ("I-JEPA", "StoP"):
        for arch in (B, L, H):
            assert value("1", method, arch, "last_top1") == value("2", method, arch, "last_top1")
            both = max(value("1", method, arch, "last_top1"), value("1", method, arch, "last4_top1"))
            assert value("14", method, arch, "top1") == both
    assert {r.value for r in rows() if r.table in "678" and r.method == "StoP"} == {57.8}
    assert {r.value for r in rows() if r.table in "678" and r.method == "I-JEPA"} == {54.3}


def test_every_row_names_a_protocol_and_stands_once() -> None:
    known = {*PROTOCOLS, "ablation", "quoted"}
    assert {row.protocol for row in rows()} == known
    assert max(Counter(row[:-1] for row in rows()).values()) == 1
    assert {row.version for row in rows() if len(row.table) == 1} == {"submission"}
    assert {row.version for row in rows() if len(row.table) == 2} == {"ICML v2"}
    taken_over = {(row.table, row.method) for row in rows() if row.protocol == "quoted"}
    assert {method for table, method in taken_over if table == "2"} == {"MAE", "data2vec"}
    assert not {"I-JEPA", "StoP"} & {method for _, method in taken_over}


COLUMNS = {  # of the paper's tables: metric, and protocol where the metric alone does not tell
    "1": ("logistic_top1", "last_top1", "last4_top1"),
    "2": ("last_top1",),
    "3": ("j_mean", "f_mean", "jf_mean"),
    "4": ("top1 cifar100", "top1 places205", "top1 inat18", "count_top1", "distance_top1"),
    "5": ("top1",),
    "6": ("logistic_top1",),
    "7": ("logistic_top1",),
    "8": ("logistic_top1",),
}  # fmt: skip


METHODS = {"MAE": "MAE", "data2vec": "data2vec", "I-JEPA": "I-JEPA", "+StoP": "StoP", "+StoP (ours)": "StoP"}


def test_the_tables_are_those_of_the_text(repository: Path) -> None:
    paper = repository.parent / "shared/reference/paper.txt"
    if not paper.is_file():
        pytest.skip("the paper's text is not beside the checkout at ../shared/reference/paper.txt")
    printed = parse(paper.read_text(encoding="utf-8"))
    assert {table: len(lines) for table, lines in printed.items()} == dict(
        zip("12345678", (6, 10, 9, 10, 2, 3, 4, 4), strict=True)
    )
    for table, lines in printed.items():
        own = [row for row in rows() if row.table == table]
        assert sum(len(values) for _, values in lines) == len(own)
        for words, values in lines:
            row = line(own, table, values)
            for word in words:  # in some tables a line names its method or its architecture, in others neither
                assert METHODS.get(word, row.method) == row.method
                assert word == row.arch or not word.startswith("ViT-")


def line(own: list[Row], table: str, values: list[float]) -> Row:
    """Our row that has all the `values` of a printed one, in their columns."""
    for row in own:
        mates = [r for r in own if (r.method, r.arch) == (row.method, row.arch)]
        named = {
            f"{r.metric} {r.protocol}" if r.metric == "top1" and table == "4" else r.metric: r.value for r in mates
        }
        if [named.get(column) for column in COLUMNS[table]] == values:
            return row
    raise AssertionError(f"table {table} has a line {values} that is not in published.csv")


def parse(text: str) -> dict[str, list[tuple[list[str], list[float]]]]:
    """Words and scores of each line of each table, which stands above its caption."""
    tables: dict[str, list[tuple[list[str], list[float]]]] = {}
    lines: list[list[str]] = []
    for text_line in text.splitlines():
        if "\t" in text_line:
            lines.append([re.sub(r"<.*?>|\(\+.*?\)", "", cell).strip() for cell in text_line.split("\t")])
        elif caption := re.match(r"Table (\d): ", text_line):
            tables[caption[1]] = [scores(cells) for cells in lines if re.fullmatch(r"\d+\.\d", cells[-1])]
            lines = []
    return tables


def scores(cells: list[str]) -> tuple[list[str], list[float]]:
    numbers = [float(cell) for cell in cells if re.fullmatch(r"\d+\.\d", cell)]
    return [cell for cell in cells if not re.match(r"\d", cell)], numbers
