"""Writes an index of a raw dataset, a manifest: `python -m components.prepare.index SOURCE --format FORMAT --to data/raw/NAME.parquet`.

DVC hashes every file of a folder that a stage depends on, which takes long for more than 100,000. The index has a row for each image:
its path, class, split and size. Prepared with format `manifest`, it gives the same dataset as SOURCE with FORMAT. Make it again when the
images change: only a changed size is noticed by itself.
"""

import argparse
import importlib
import json
import os
import sys
import tempfile
from pathlib import Path, PurePosixPath

import pyarrow as pa
import pyarrow.parquet

from components import progress
from components.prepare.card import sizes
from components.prepare.contract import FORMATS, READ_AS
from components.prepare.holders import Folder, Holders
from components.prepare.published import missing
from components.prepare.readers import Item, Listing
from components.prepare.tree import grow
from components.stage import atomic


def main(argv: list[str] | None = None) -> int:
    """Exit status 0 on success, 2 for bad input (one message on stderr)."""
    parser = argparse.ArgumentParser(
        prog="python -m components.prepare.index",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    formats = [name for name in FORMATS if name not in READ_AS and name != "manifest"]
    parser.add_argument("source", type=Path, metavar="SOURCE", help="folder of the raw data, or a link to one")
    parser.add_argument("--format", required=True, choices=formats, help="its layout")
    parser.add_argument("--to", type=Path, required=True, metavar="FILE", help="the index, .parquet, beside SOURCE")
    options = parser.parse_args(argv)
    try:
        listing = write(options.source, options.format, options.to)
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    found = ", ".join(f"{split} {len(items)}" for split, items in listing.splits.items())
    progress.show(f"{options.to}: {found} images of {len(listing.classes)} classes; its format is manifest")
    return 0


def write(source: Path, format: str, to: Path) -> Listing:
    """Writes the index of `source`. Its bytes follow from the listing alone.

    Raises ValueError for an archive, which DVC hashes as one file, for images that are more than a file and a class, for a name that is
    no UTF-8, and for an index that does not lie beside or above `source`.
    """
    if not source.exists():
        raise ValueError(f"{str(source)!r} does not exist; give the folder of the raw data, or link it there")
    where = f"{str(source)!r} needs no index"
    if not source.is_dir():
        raise ValueError(f"{where}: it is no folder; DVC hashes an archive as one file: give it as source itself")
    below = os.path.relpath(source.absolute(), to.parent.absolute())
    if to.suffix != ".parquet" or ".." in PurePosixPath(below).parts:
        raise ValueError(
            f"--to is {str(to)!r}; an index is a .parquet file in the folder that {str(source)!r} lies in, or above it"
        )
    reader = importlib.import_module(f"components.prepare.readers.{format}")
    with tempfile.TemporaryDirectory(dir=to.parent, prefix=".index-") as scratch:
        listing: Listing = reader.read(grow(source, Path(scratch)))
    for line in missing(reader.PUBLISHED, sizes(listing)):
        progress.show(f"{source}: {line}")
    files = listing.files
    if listing.kind != "images" or not isinstance(files, Holders):
        raise ValueError(
            f"{where}: images of format {format!r} are not files with a class each; give it as source itself"
        )
    rows = [(split, each) for split, items in listing.splits.items() for each in items]
    for _, each in rows:
        if not isinstance(files.holders[each.file.holder], Folder):
            raise ValueError(
                f"{where}: its images lie in archives, {files.where(each.file)!r}; give it as source itself"
            )
    _save(to, below, rows, listing.classes)
    return listing


def _save(to: Path, below: str, rows: list[tuple[str, Item]], classes: list[str]) -> None:
    columns = {
        "path": pa.array([_path(below, each.file.name) for _, each in rows], pa.string()),
        "label": pa.array([_class(each, classes) for _, each in rows], pa.string()),
        "split": pa.array([split for split, _ in rows], pa.string()),
        "bytes": pa.array([each.file.size for _, each in rows], pa.int64()),
        "name": pa.array([each.path for _, each in rows], pa.string()),
    }
    table = pa.table(columns).replace_schema_metadata({"classes": json.dumps(classes, ensure_ascii=False)})
    with atomic(to) as temporary:
        pyarrow.parquet.write_table(table, temporary, compression="zstd")


def _class(item: Item, classes: list[str]) -> str | None:
    return classes[item.values["label"]] if item.values["label"] >= 0 else None


def _path(below: str, name: str) -> str:
    path = name if below == "." else f"{below}/{name}"
    try:
        path.encode()
    except UnicodeEncodeError:
        raise ValueError(
            f"file {os.fsencode(path)!r} has a name that is no UTF-8, so no table can hold it; rename it"
        ) from None
    return path


if __name__ == "__main__":
    sys.exit(main())
