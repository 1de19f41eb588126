"""Pickles of arrays, as Python 2 and numpy wrote them, read without importing or running what they name.

A pickle is a program. This reader knows the two names that an array of bytes takes, stands in for both with code of its own, and refuses
every other one.
"""

import io
import math
import pickle
from typing import Any

import numpy as np
from numpy.typing import NDArray


def load(data: bytes, where: str) -> Any:
    """What the pickle holds: dicts, lists, numbers, texts (Latin-1), and arrays of uint8 in `Array.values`.

    Raises ValueError, with `where`, for a damaged pickle and for one that names anything but such arrays.
    """
    try:
        return _Unpickler(io.BytesIO(data), encoding="latin1").load()
    except Exception as error:  # whatever a damaged program makes of its interpreter
        raise ValueError(f"{where!r} is no pickle of arrays: {error!r}; download it again") from error


class Array:
    """Stands for numpy.ndarray while it is read; `values` are its numbers."""

    values: NDArray[np.uint8] = np.empty(0, np.uint8)

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        version, shape, dtype, by_columns, data = state
        if version != 1 or not isinstance(dtype, _Dtype) or dtype.code != "u1":
            raise pickle.UnpicklingError("an array is not of uint8")
        raw = data.encode("latin1") if isinstance(data, str) else bytes(data)
        if math.prod(shape) != len(raw):
            raise pickle.UnpicklingError(f"an array of shape {shape} has {len(raw)} bytes")
        self.values = np.frombuffer(raw, np.uint8).reshape(shape, order="F" if by_columns else "C")


class _Dtype:
    """Stands for numpy.dtype."""

    def __init__(self, code: str, *_: Any) -> None:
        self.code = code

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        """Byte order, names of fields and the like, which single bytes have not."""


def _reconstruct(kind: type, *_: Any) -> Array:
    """Stands for numpy's function that makes an empty array, which the next instruction fills."""
    if kind is not Array:
        raise pickle.UnpicklingError(f"an array is made as {kind!r}")
    return Array()


_KNOWN: dict[tuple[str, str], Any] = {
    ("numpy.core.multiarray", "_reconstruct"): _reconstruct,
    ("numpy", "ndarray"): Array,
    ("numpy", "dtype"): _Dtype,
}


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        """Called for every name in the pickle."""
        try:
            return _KNOWN[module, name]
        except KeyError:
            raise pickle.UnpicklingError(
                f"it names {module}.{name}, which arrays do not need and which could run anything"
            ) from None
