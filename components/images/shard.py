"""Shards: memory-mapped Arrow files of one record batch each, with checksums of all that is read of them, whenever it is read.

The bytes are a function of the rows alone: no time, no random id, no library version.
"""

import hashlib
import struct
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Row = Mapping[str, Any]

COLUMNS: dict[str, dict[str, pa.DataType]] = {
    kind: {"path": pa.string(), "image": pa.binary(), **extra, "crc32": pa.uint32()}
    for kind, extra in {
        "images": {"label": pa.int32(), "holdout": pa.float64()},  # label -1 where there are no classes
        "scenes": {"count": pa.int32(), "distance": pa.float64(), "holdout": pa.float64()},
        "video": {"sequence": pa.string(), "frame": pa.int32(), "mask": pa.binary(), "mask_crc32": pa.uint32()},
    }.items()  # a mask is b"" where there is no annotation
}
CHECKS = {"image": "crc32", "mask": "mask_crc32"}
"""The column that holds the CRC-32 of each value of a binary column, which is read one value at a time."""
DERIVED = ("holdout", *CHECKS.values())
"""Columns that follow from others."""
CHECKSUM = b"crc32"
"""The field metadata that holds the CRC-32 of any other column, which is read as a whole."""


def hold(path: str) -> float:
    """Where an item falls between 0 and 1, by the sha256 of its path alone: below a fraction it is held out of training to choose on.

    So a share that is held out never moves, whatever else is added, removed or drawn.
    """
    return int.from_bytes(hashlib.sha256(path.encode()).digest()[:8], "big") / 2**64


def complete(row: Row, kind: str) -> Row:
    """The row with the columns that follow from others."""
    held = {"holdout": hold(row["path"])} if "holdout" in COLUMNS[kind] else {}
    return {**row, **held, **{CHECKS[name]: zlib.crc32(row[name]) for name in _binary(kind)}}


def bytes_of(row: Row, kind: str) -> int:
    """Bytes of a row's images and masks."""
    return sum(len(row[name]) for name in _binary(kind))


def _binary(kind: str) -> list[str]:
    return [name for name, column in COLUMNS[kind].items() if column == pa.binary()]


def row_digest(row: Row, kind: str, image: bytes = b"") -> bytes:
    """sha256 [32] of one row: each value's text, or the sha256 of its bytes, behind its length, so that no two rows share a text.

    `image` is the sha256 of the image's bytes where it is known. What follows from other columns is left out.
    """
    digest = hashlib.sha256()
    for name in COLUMNS[kind]:
        if name in DERIVED:
            continue
        value = row[name]
        known = image if name == "image" else b""
        data = known or hashlib.sha256(value).digest() if isinstance(value, bytes) else str(value).encode()
        digest.update(struct.pack("<q", len(data)) + data)
    return digest.digest()


def write_shard(path: Path, rows: Sequence[Row], kind: str) -> None:
    """One record batch of complete rows, with all columns of `kind`."""
    write_columns(path, {name: _array([row[name] for row in rows], type) for name, type in COLUMNS[kind].items()})


def write_columns(path: Path, columns: Mapping[str, pa.Array]) -> None:
    """The same of whole columns."""
    fields = []
    for name, array in columns.items():
        checksum = None if name in CHECKS else {CHECKSUM: str(_crc32(array))}
        fields.append(pa.field(name, array.type, nullable=False, metadata=checksum))
    schema = pa.schema(fields)
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, schema) as writer:
        writer.write_batch(pa.record_batch(list(columns.values()), schema=schema))


def _array(values: list[Any], kind: pa.DataType) -> pa.Array:
    """Images are joined in one step; Arrow would copy a growing buffer again and again."""
    if kind != pa.binary():
        return pa.array(values, kind)
    ends = np.cumsum([0, *map(len, values)], dtype=np.int64)
    assert ends[-1] < 2**31, "a shard's images have less than 2 GiB"
    buffers = [None, pa.py_buffer(ends.astype(np.int32)), pa.py_buffer(b"".join(values))]
    return pa.Array.from_buffers(kind, len(values), buffers)


class EarlierError(ValueError):
    """A shard that was written before there were checksums."""


class Shard:
    """One shard of a dataset of `kind`, read where it lies on the disk.

    Raises ValueError, naming the file and no way out, when it can't be read, is cut short or holds other columns: at once for what is
    wrong with its lengths and types, and when they are asked for, for values other than those that were written.
    """

    def __init__(self, path: Path, kind: str) -> None:
        self.path = path
        try:  # the file is closed: its pages stay mapped, and ImageNet has more shards than a process may open files
            with pa.memory_map(str(path)) as source:
                self._batch = pa.ipc.open_file(source).get_batch(0)
            self._batch.validate()
        except (OSError, pa.ArrowException, IndexError) as error:
            raise ValueError(f"shard {str(path)!r} cannot be read: {error}") from error
        found = dict(zip(self._batch.schema.names, self._batch.schema.types, strict=True))
        if found and found == {name: type for name, type in COLUMNS[kind].items() if name not in CHECKS.values()}:
            raise EarlierError(f"shard {str(path)!r} was written by an earlier version, without checksums of images")
        if found != COLUMNS[kind]:
            raise ValueError(f"shard {str(path)!r} has the columns {', '.join(found)}, not {', '.join(COLUMNS[kind])}")
        self._parts: dict[str, tuple[npt.NDArray[np.int32], memoryview, npt.NDArray[np.uint32]]] = {}

    def __len__(self) -> int:
        return int(self._batch.num_rows)

    def path_of(self, row: int) -> str:
        """The path in a row, whether it is what was written or not."""
        ends, text = _buffers(self._batch.column("path"))
        return str(text[ends[row] : ends[row + 1]], "utf-8", "replace")

    def column(self, name: str) -> npt.NDArray[Any]:
        """All values [n] of a column that holds no bytes of images; strings come as an object array."""
        array = self._batch.column(name)
        if (self._batch.schema.field(name).metadata or {}).get(CHECKSUM) != str(_crc32(array)).encode():
            raise ValueError(f"column {name!r} of shard {str(self.path)!r} is not what was written")
        values: npt.NDArray[Any] = array.to_numpy(zero_copy_only=False)
        return values

    def view(self, row: int, name: str) -> memoryview:
        """The bytes of an image or a mask as they lie in the memory map, read-only."""
        if name not in self._parts:  # Arrow's scalars are 20 times slower
            self._parts[name] = (*_buffers(self._batch.column(name)), self.column(CHECKS[name]))
        offsets, data, checks = self._parts[name]
        found = data[offsets[row] : offsets[row + 1]]
        if zlib.crc32(found) != checks[row]:
            raise ValueError(f"row {row} of shard {str(self.path)!r} has other bytes than were written")
        return found


def _crc32(array: pa.Array) -> int:
    """Of a column's values as they lie in memory; of strings, of where they end and their text."""
    if array.type != pa.string():
        return zlib.crc32(array.to_numpy())
    ends, text = _buffers(array)
    return zlib.crc32(text[ends[0] : ends[-1]], zlib.crc32(ends.tobytes()))


def _buffers(array: pa.Array) -> tuple[npt.NDArray[np.int32], memoryview]:
    _, offsets, data = array.buffers()
    return np.frombuffer(offsets, np.int32, len(array) + 1), memoryview(data if data is not None else b"")
