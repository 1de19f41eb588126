"""One raw image read, checked and measured, together with its mask in a video. Runs in the processes of the intake."""

import hashlib
from io import BytesIO
from typing import Any, NamedTuple

from PIL import Image

from components.images import shard, store
from components.images.header import plain
from components.prepare.holders import Files
from components.prepare.readers import Item

OTHERS = ("WEBP", "GIF", "BMP", "TIFF", "AVIF")
"""Formats that are stored as PNG, without loss; of several pictures in a file the first one."""


class Checked(NamedTuple):
    """The row to store, or the fault that forbids it."""

    row: shard.Row
    digest: bytes  # sha256 of the row, b"" where there is none
    raw: bytes  # the first 8 bytes of the sha256 of the image's raw bytes: who shares them is a duplicate
    size: tuple[int, int]  # width and height in pixels, as stored
    histogram: list[int]  # [768], how often each of the 256 levels of R, G, B occurs; [] where not asked for
    fault: str  # why the image cannot be stored, "" where it can; without the path, which differs between machines


class Checker:
    """Checks items of one kind. Picklable."""

    def __init__(self, files: Files, kind: str, decodes: bool, short_side: int, quality: int) -> None:
        self.files, self.kind, self.decodes = files, kind, decodes
        self.short_side, self.quality = short_side, quality

    def __call__(self, items: list[tuple[Item, bool]]) -> list[Checked]:
        """In the items' order; of those with True the levels are counted. Raises ValueError for a damaged mask, which nobody may skip."""
        return [self._checked(item, measured) for item, measured in items]

    def _checked(self, item: Item, measured: bool) -> Checked:
        try:
            raw = self.files.read(item.file)
            data, image, size = self._stored(raw, measured)
        except OSError as error:
            return _fault(error.strerror or type(error).__name__)
        except ValueError as error:
            return _fault(str(error))
        row = {"path": item.path, "image": data, **item.values}
        if self.kind == "video":
            row["mask"] = self._mask(item, size) if item.mask else b""
        whole = shard.complete(row, self.kind)
        histogram = image.histogram() if measured and image else []
        origin = hashlib.sha256(raw).digest()
        digest = shard.row_digest(whole, self.kind, origin if data is raw else b"")
        return Checked(whole, digest, origin[:8], size, histogram, "")

    def _stored(self, raw: bytes, measured: bool) -> tuple[bytes, Image.Image | None, tuple[int, int]]:
        """The bytes to store, their picture where it was decoded, and its size."""
        if not (self.decodes or measured or self.short_side) and (header := plain(raw)):
            width, height, scan = header
            _look_at_end(raw, scan)
            return raw, None, (width, height)
        found = store.opened(raw, OTHERS)
        decodes = self.decodes or measured or found.format in OTHERS or min(found.size) > self.short_side > 0
        if not decodes:
            size = store.turned_size(found)
            _look(raw, found)
            return raw, None, size
        image = store.decode(raw, OTHERS)
        if min(image.size) > self.short_side > 0:
            scale = self.short_side / min(image.size)
            image = image.resize((round(image.width * scale), round(image.height * scale)), Image.Resampling.BICUBIC)
            raw = _encoded(image, "JPEG", quality=self.quality)
            image = store.decode(raw)
        elif found.format in OTHERS:
            raw = _encoded(image, "PNG")
        return raw, image, image.size

    def _mask(self, item: Item, size: tuple[int, int]) -> bytes:
        """The bytes of a mask whose pixels lie on those of its frame."""
        name = self.files.where(item.mask)
        try:
            data = self.files.read(item.mask)
            store.decode(data)
            with Image.open(BytesIO(data)) as mask:
                mode, (width, height) = mask.mode, mask.size
        except (OSError, ValueError) as error:
            raise ValueError(f"mask {name!r} cannot be decoded: {error}; unpack the dataset again") from error
        if mode not in ("1", "L", "P") or (width, height) != size:
            raise ValueError(
                f"mask {name!r} is a {width}x{height} image of mode {mode}; it must have its frame's size, "
                f"{size[0]}x{size[1]}, and one channel of object ids (PNG mode L or P)"
            )
        return data


def _look(data: bytes, image: Image.Image) -> None:
    """Raises ValueError unless the file's end is there: a JPEG's marker, or every PNG chunk with its CRC."""
    if image.format == "PNG":
        try:
            image.verify()
        except store.BROKEN as error:
            raise ValueError(f"it is damaged: {error}") from error
    else:
        _look_at_end(data, _scan(data))


def _look_at_end(data: bytes, scan: int) -> None:
    if data.rfind(b"\xff\xd9", scan) < 0:
        raise ValueError("image file is truncated: it has no end marker")


def _scan(data: bytes) -> int:
    """Where a JPEG's first scan starts: its headers may hold a thumbnail, a JPEG with an end marker of its own."""
    place = data.find(b"\xff", 2)
    while 0 <= place < len(data) - 3 and data[place + 1] != 0xDA:
        alone = data[place + 1] in (0x00, 0x01, 0xFF) or 0xD0 <= data[place + 1] <= 0xD8  # no length follows
        place += 1 if alone else 2 + int.from_bytes(data[place + 2 : place + 4], "big")
        place = data.find(b"\xff", place)
    return place if place >= 0 else len(data)


def _encoded(image: Image.Image, format: str, **how: Any) -> bytes:
    buffer = BytesIO()
    try:
        image.save(buffer, format, comment=b"", **how)  # a GIF's may be longer than a JPEG's may
    except OSError as error:  # as of a picture that is wider than a JPEG may be
        width, height = image.size
        raise ValueError(f"its {width}x{height} pixels cannot be stored as {format}: {error}") from error
    return buffer.getvalue()


def _fault(why: str) -> Checked:
    return Checked({}, b"", b"", (0, 0), [], why)
