"""A table of images, CSV or Parquet: which file, which class, which split, and what its bytes must be."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

COLUMNS = ("path", "label", "split", "bytes", "sha256", "name")
RULES: dict[str, tuple[str, Callable[[str], Any]]] = {
    "path": ("it must be a file's path without '..'", lambda text: "\0" not in text and ".." not in text.split("/")),
    "split": ("it must be a folder's name, such as train", lambda text: re.fullmatch(r"[^./\0][^/\0]{0,99}", text)),
    "bytes": ("it must be a whole number", lambda text: re.fullmatch(r"[0-9]{1,18}", text)),
    "sha256": ("it must be 64 hexadecimal digits", lambda text: re.fullmatch(r"[0-9a-fA-F]{64}", text)),
    "name": ("it must be a path without '..'", lambda text: ".." not in text.split("/")),
}
NUMBER = re.compile(r"0|-?[1-9][0-9]*")
"""Of labels that are numbers. `01` is none: it would be the class of `1`."""


class Table(NamedTuple):
    """Columns as text, each [n]. Those that are not there are missing, but `path`."""

    columns: dict[str, list[str]]
    labels: list[str | None]  # None without a class
    classes: list[str]  # in the order of their numbers
    given: bool  # whether the file gives the classes, so that they are not merely those of its labels


def load(path: Path) -> Table:
    """The table at `path`, its kind told by its content. Numbers as labels are sorted as such, others as text.

    A Parquet file may give `classes`, a JSON list, in its metadata: all there are, in their order. Raises ValueError for another kind of
    file, columns that are unknown, missing or twice there, and cells that are empty or break their column's rule.
    """
    with path.open("rb") as file:
        kind = _parquet if file.read(4) == b"PAR1" else _csv
    try:
        table = kind(path)
        names = table.column_names
    except (pa.ArrowException, UnicodeDecodeError, OSError) as error:
        if isinstance(error, OSError) and error.errno:
            raise
        raise ValueError(
            f"{str(path)!r} is neither CSV in UTF-8, separated by commas, nor Parquet: {str(error).strip()}"
        ) from error
    _check_names(names, path)
    if not table.num_rows:
        raise ValueError(f"{str(path)!r} lists no image; write one a row")
    columns = {name: _texts(table.column(name), name, path) for name in names}
    labels = columns.pop("label", [None] * table.num_rows)
    whole = {name: _whole(values, name, path) for name, values in columns.items()}
    given = (table.schema.metadata or {}).get(b"classes")
    classes = _sorted(labels) if given is None else _given(given, labels, path)
    return Table(whole, labels, classes, given is not None)


def _csv(path: Path) -> Any:
    as_text = pyarrow.csv.ConvertOptions(
        column_types=dict.fromkeys(COLUMNS, pa.string()), null_values=[""], strings_can_be_null=True
    )
    return pyarrow.csv.read_csv(
        path, convert_options=as_text, parse_options=pyarrow.csv.ParseOptions(newlines_in_values=True)
    )


def _parquet(path: Path) -> Any:
    with pyarrow.parquet.ParquetFile(path) as file:
        _check_names(file.schema_arrow.names, path)  # before columns of another kind are read
        return file.read()


def _check_names(names: list[str], path: Path) -> None:
    unknown = next((name for name in names if name not in COLUMNS or names.count(name) > 1), None)
    if unknown is None and "path" in names:
        return
    what = "no column 'path'" if unknown is None else f"a column {unknown!r}"
    what += " twice" if names.count(unknown or "") > 1 else ""
    raise ValueError(
        f"{str(path)!r} has {what}; the first line of CSV names the columns, path and, if you like, {', '.join(COLUMNS[1:])}: rename it, "
        "remove it or add it"
    )


def _texts(column: Any, name: str, path: Path) -> list[str | None]:
    """The column's cells as text, None where they are empty. Whole numbers will do where such are meant."""
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    kind = column.type
    if pa.types.is_integer(kind) and name in ("label", "bytes"):
        return [None if value is None else str(value) for value in column.to_pylist()]
    if not (pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_null(kind)):
        rule = "text or whole numbers" if name in ("label", "bytes") else "text"
        raise ValueError(f"{str(path)!r} has column {name!r} of type {kind}; it must hold {rule}: convert it")
    return [value or None for value in column.to_pylist()]


def _whole(values: list[str | None], name: str, path: Path) -> list[str]:
    """The column without a cell that is empty or breaks its rule."""
    rule, fits = RULES[name]
    checked: list[str] = []
    for row, value in enumerate(values, 1):
        if value is None or not fits(value):
            found = "is empty" if value is None else f"is {value[:200]!r}"
            raise ValueError(f"{str(path)!r}: {name} of row {row} {found}; {rule}")
        checked.append(value)
    return checked


def _sorted(labels: list[str | None]) -> list[str]:
    found = {label for label in labels if label is not None}
    return sorted(found, key=int if all(map(NUMBER.fullmatch, found)) else None)


def _given(text: bytes, labels: list[str | None], path: Path) -> list[str]:
    try:
        classes = json.loads(text)
    except ValueError:
        classes = None
    if not isinstance(classes, list) or not all(isinstance(name, str) for name in classes):
        raise ValueError(
            f"{str(path)!r} has 'classes' in its metadata that are no JSON list of text; make the index again"
        )
    known = set(classes)
    lost = next((label for label in labels if label is not None and label not in known), None)
    if lost is not None or len(known) < len(classes):
        what = "classes twice" if lost is None else f"label {lost!r}, which is none of its classes"
        raise ValueError(f"{str(path)!r} has {what}; make the index again")
    return classes
