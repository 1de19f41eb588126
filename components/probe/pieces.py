"""A matrix of features as pieces: files of some rows each, so that several processes can write it and an interruption costs one piece.

A piece is written under a name of its writer's own and renamed when it is on disk; behind its rows stands their sha256. When all are
there they become one .npy file.
"""

import hashlib
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, NamedTuple

import numpy as np
from numpy.typing import NDArray

from components.stage import atomic, remove

MOST_ROWS = 4096
FEWEST = 16
"""A small matrix has at least so many pieces, if it has so many batches: else few processes could share it."""
CHECK = hashlib.sha256().digest_size


class Piece(NamedTuple):
    """Rows `start` to `stop` of a matrix."""

    start: int
    stop: int

    @property
    def rows(self) -> int:
        """How many they are."""
        return self.stop - self.start


def cut(rows: int, batch_size: int) -> list[Piece]:
    """Pieces of whole batches, whoever makes them: each batch is then the same images, and so to the bit the same features."""
    batches = -(-rows // batch_size)
    size = batch_size * max(1, min(batches // FEWEST, MOST_ROWS // batch_size))
    return [Piece(start, min(start + size, rows)) for start in range(0, rows, size)]


class Pieces:
    """The files of a float32 matrix [rows, width] in `folder`, which is made."""

    def __init__(self, folder: Path, pieces: list[Piece], width: int) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self.all, self.width = folder, pieces, width
        self.rows = pieces[-1].stop if pieces else 0

    def found(self) -> tuple[set[Piece], set[Piece]]:
        """The pieces that are there and whole, and those that are there and damaged."""
        whole, damaged = set[Piece](), set[Piece]()
        names = {
            path.name for path in self.folder.iterdir()
        }  # no look at single names: a network disk remembers what is missing
        for piece in self.all:
            if _name(piece) in names:
                (damaged if self._read(piece) is None else whole).add(piece)
        return whole, damaged

    @contextmanager
    def writing(self, piece: Piece) -> Iterator["Writer"]:
        """Takes the rows of `piece`, which is there when all went well and not before."""
        temporary = self.folder / f".{_name(piece)}.{socket.gethostname()}.{os.getpid()}"
        try:
            with temporary.open("wb") as file:
                writer = Writer(file)
                yield writer
                assert writer.bytes == self._bytes(piece), "a piece is written in full"
                file.write(writer.check())
                file.flush()
                os.fsync(file.fileno())  # the new name must not survive a crash that the bytes do not
            temporary.replace(self.folder / _name(piece))
        finally:
            temporary.unlink(missing_ok=True)

    def join(self, path: Path) -> None:
        """All pieces as one .npy file at `path`, atomically. For that moment both are on disk."""
        kind = np.lib.format.dtype_to_descr(np.dtype(np.float32))
        header = {"descr": kind, "fortran_order": False, "shape": (self.rows, self.width)}
        with atomic(path) as temporary, temporary.open("wb") as file:
            np.lib.format.write_array_header_1_0(file, header)
            for piece in self.all:
                data = self._read(piece)
                if data is None:
                    raise RuntimeError(
                        f"{str(self.folder / _name(piece))!r} was damaged since it was written: look after the disk, then start again, "
                        "which makes this piece again"
                    )
                file.write(data)
            file.flush()
            os.fsync(file.fileno())
        remove(self.folder)

    def _read(self, piece: Piece) -> memoryview | None:
        """The bytes of its rows; None where the file is damaged."""
        data = memoryview((self.folder / _name(piece)).read_bytes())
        rows, check = data[:-CHECK], data[-CHECK:]
        return rows if len(rows) == self._bytes(piece) and hashlib.sha256(rows).digest() == check else None

    def _bytes(self, piece: Piece) -> int:
        return piece.rows * self.width * 4


class Writer:
    """Writes rows to a file and hashes them. Not into a map: a disk that is full raises an error here, and ends the process there."""

    def __init__(self, file: BinaryIO) -> None:
        self._file, self._hash, self.bytes = file, hashlib.sha256(), 0

    def add(self, rows: NDArray[np.float32]) -> None:
        """The next rows [n, width]."""
        data = np.ascontiguousarray(rows).data.cast("B")
        self._hash.update(data)
        self.bytes += self._file.write(data)

    def check(self) -> bytes:
        """The sha256 of all rows so far."""
        return self._hash.digest()


def _name(piece: Piece) -> str:
    return f"{piece.start:09d}-{piece.stop:09d}"
