"""Compressed tar archives made ready for random access: uncompressed once into a scratch folder."""

import bz2
import gzip
import lzma
import shutil
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from components import progress
from components.stage import atomic

MAGIC: dict[bytes, Callable[[Path, str], Any]] = {
    b"\x1f\x8b": gzip.open,
    b"BZh": bz2.open,
    b"\xfd7zXZ": lzma.open,
}
GROWTH = 200
"""Times its size that an archive may grow to; images do not shrink much, lists of names by 10 to 20 times."""
PIECE = 2**22


def uncompressed(path: Path, scratch: Path) -> Path:
    """`path` itself when it is a plain tar; else its content, in `scratch`, from before if it is there.

    Raises ValueError for a damaged archive, one that grows beyond all measure, and a disk without room for it.
    """
    with path.open("rb") as file:
        start = file.read(6)
    opener = next((opener for magic, opener in MAGIC.items() if start.startswith(magic)), None)
    if opener is None:
        return path
    status = path.stat()
    plain = scratch / f"{path.name}-{status.st_size}-{status.st_mtime_ns}.tar"
    if plain.is_file():
        return plain
    scratch.mkdir(parents=True, exist_ok=True)
    room(scratch, status.st_size, f"uncompressing {str(path)!r}")
    if status.st_size > 2**28:
        progress.show(f"uncompressing {path} into {scratch}, so that its files can be found; this is done once")
    with opener(path, "rb") as source, atomic(plain) as temporary, temporary.open("wb") as target:
        written = 0
        try:
            while piece := source.read(PIECE):
                written += target.write(piece)
                if written > GROWTH * max(status.st_size, PIECE):
                    raise ValueError(
                        f"archive {str(path)!r} has {status.st_size} bytes and grew beyond {written}; no dataset does, so it is not "
                        "read: get it from its makers"
                    )
        except (EOFError, OSError, zlib.error, lzma.LZMAError) as error:
            if isinstance(error, OSError) and error.errno:  # of the disk; gzip's and bz2's own have no number
                raise
            raise ValueError(
                f"archive {str(path)!r} is damaged after {written} bytes: {error}; download it again"
            ) from error
    return plain


def room(folder: Path, needed: int, what: str) -> None:
    """Raises ValueError when the disk of `folder` has not `needed` bytes left for `what`."""
    there = next(path for path in (folder, *folder.parents) if path.exists())
    free = shutil.disk_usage(there).free
    if free < needed:
        raise ValueError(
            f"{what} needs {needed / 2**30:.1f} GiB in {str(folder)!r}, whose disk has {free / 2**30:.1f} GiB left; make room "
            "(`make gc` shows what no kept run needs), or put the project on a larger disk"
        )
