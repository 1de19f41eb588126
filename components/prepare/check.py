"""One raw image read, decoded and measured, together with its mask in a video."""

from io import BytesIO
from pathlib import Path
from typing import Any, NamedTuple

from PIL import Image

from components.images import store
from components.prepare.readers import Item


class Checked(NamedTuple):
    """The row to store, or the fault that forbids it."""

    row: dict[str, Any]
    histogram: list[int]  # [768], how often each of the 256 levels of R, G, B occurs; [] where not asked for
    fault: str  # why the image cannot be stored, "" where it can; without the path, which differs between machines


def check(root: Path, item: Item, kind: str, measured: bool) -> Checked:
    """Never raises for a damaged image; raises ValueError for a damaged mask, which nobody may skip."""
    try:
        data = (root / item.path).read_bytes()
        image = store.decode(data)
    except OSError as error:
        return Checked({}, [], error.strerror or type(error).__name__)
    except ValueError as error:
        return Checked({}, [], str(error))
    row = {"path": item.path, "image": data, **item.values}
    if kind == "video":
        row["mask"] = _mask(root / item.mask, image.size) if item.mask else b""
    return Checked(row, image.histogram() if measured else [], "")


def _mask(path: Path, size: tuple[int, int]) -> bytes:
    """The bytes of a mask whose pixels lie on those of its frame."""
    data = path.read_bytes()
    try:
        store.decode(data)
        with Image.open(BytesIO(data)) as mask:
            mode, (width, height) = mask.mode, mask.size
    except ValueError as error:
        raise ValueError(f"mask {str(path)!r} cannot be decoded: {error}; unpack the dataset again") from error
    if mode not in ("1", "L", "P") or (width, height) != size:
        raise ValueError(
            f"mask {str(path)!r} is a {width}x{height} image of mode {mode}; it must have its frame's size, "
            f"{size[0]}x{size[1]}, and one channel of object ids (PNG mode L or P)"
        )
    return data
