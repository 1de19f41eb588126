"""What raw files are read from, in place: folders, zip and tar archives. Picklable, so that every process opens its own."""

import lzma
import os
import struct
import threading
import zipfile
import zlib
from pathlib import Path
from typing import Any, NamedTuple, Protocol

LARGEST = 2**30
"""Bytes of a file beyond which it is no image; what claims more is not read into memory."""
DAMAGE = (zipfile.BadZipFile, EOFError, zlib.error, lzma.LZMAError, RuntimeError, ArithmeticError, struct.error)
"""What zipfile raises for a damaged archive, and for a way of packing that it does not know."""


class Entry(NamedTuple):
    """One file: which holder has it, its name there, where it starts and its size in bytes."""

    holder: int
    name: str
    start: int
    size: int


class Files(Protocol):
    """Reads what `Item.file` names; it is sent to other processes."""

    def read(self, file: Any) -> bytes:
        """The file's bytes. Raises OSError or ValueError saying why not, without the path, which differs between machines."""

    def size(self, file: Any) -> int:
        """How many bytes that will be, more or less."""

    def where(self, file: Any) -> str:
        """Its path for a person; in an archive, below the archive's."""


class Holder(Protocol):
    """A folder or archive at `path`."""

    path: Path

    def read(self, entry: Entry) -> bytes:
        """The bytes of one of its files."""


class Holders:
    """`Files` of entries."""

    def __init__(self, holders: list[Holder]) -> None:
        self.holders = holders

    def read(self, file: Entry) -> bytes:
        """Raises ValueError for a file of more than LARGEST bytes, OSError for one that is not there."""
        if file.size > LARGEST:
            raise ValueError(f"it claims to have {file.size / 2**30:.0f} GiB, and an image has at most 1 GiB")
        return self.holders[file.holder].read(file)

    def size(self, file: Entry) -> int:
        """As the folder or archive says."""
        return file.size

    def where(self, file: Entry) -> str:
        """The holder's path and the file's name in it."""
        return str(self.holders[file.holder].path / file.name)


class Folder:
    """Files of a folder."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def read(self, entry: Entry) -> bytes:
        """The file as it is now."""
        with open(os.path.join(self.path, entry.name), "rb") as file:  # Path objects cost half of a small read
            return file.read()


class _Opened:
    """An archive that each process opens when it first reads from it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: Any = None
        self._lock = threading.Lock()

    def __reduce__(self) -> tuple[Any, tuple[Path]]:
        return type(self), (self.path,)

    def _opened(self) -> Any:
        with self._lock:
            if self._file is None:
                self._file = self._open()
            return self._file

    def _open(self) -> Any:
        raise NotImplementedError


class Zip(_Opened):
    """Members of a zip archive; zipfile checks their CRC-32."""

    def _open(self) -> zipfile.ZipFile:
        return zipfile.ZipFile(self.path)

    def read(self, entry: Entry) -> bytes:
        """The member unpacked, never more than the bytes it claims, however many it would unpack to."""
        try:
            with self._opened().open(entry.name) as member:
                data: bytes = member.read(entry.size)
        except (*DAMAGE, OSError) as error:
            if isinstance(error, OSError) and error.errno:  # of the disk; bz2's own has no number
                raise
            raise ValueError(f"the archive is damaged there: {error}") from error
        if len(data) < entry.size:
            raise ValueError(f"the archive is damaged there: {len(data)} of {entry.size} bytes")
        return data


class Tar(_Opened):
    """Members of an uncompressed tar archive, from where their headers say they start."""

    def _open(self) -> int:
        return os.open(self.path, os.O_RDONLY)

    def read(self, entry: Entry) -> bytes:
        """The member's bytes."""
        data = os.pread(self._opened(), entry.size, entry.start)
        while len(data) < entry.size:
            more = os.pread(self._opened(), entry.size - len(data), entry.start + len(data))
            if not more:
                raise ValueError(f"the archive ends {entry.size - len(data)} bytes before it does")
            data += more
        return data
