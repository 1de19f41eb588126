"""Pickles as Python 2 and the numpy of 2009 wrote them: protocol 2, byte strings, `numpy.core`. CIFAR's files are such."""

import io
import pickle
import struct
from typing import Any


class _Python2(pickle._Pickler):  # type: ignore[name-defined]
    dispatch = dict(pickle._Pickler.dispatch)  # type: ignore[attr-defined]

    def save_string(self, value: bytes | str) -> None:
        data = value.encode("latin1") if isinstance(value, str) else value
        short = len(data) < 256
        self.write((b"U" + struct.pack("<B", len(data)) if short else b"T" + struct.pack("<i", len(data))) + data)
        self.memoize(value)

    dispatch[bytes] = save_string
    dispatch[str] = save_string

    def save_global(self, obj: Any, name: str | None = None) -> None:
        module = obj.__module__.replace("numpy._core", "numpy.core")
        self.write(f"c{module}\n{name or obj.__qualname__}\n".encode())
        self.memoize(obj)


def dumps(value: Any) -> bytes:
    buffer = io.BytesIO()
    _Python2(buffer, 2).dump(value)
    return buffer.getvalue()
