"""A JPEG's header, read without Pillow, says what Pillow says, or leaves it to Pillow."""

from io import BytesIO

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from components.images.header import plain

PICTURE = Image.fromarray(np.random.default_rng(0).integers(0, 256, (13, 37, 3), dtype=np.uint8))


def encoded(image: Image.Image = PICTURE, **how: object) -> bytes:
    file = BytesIO()
    image.save(file, "JPEG", **how)
    return file.getvalue()


def turned(by: int) -> Image.Exif:
    exif = Image.Exif()
    exif[0x0112] = by
    return exif


@pytest.mark.parametrize(
    "data",
    [
        encoded(),
        encoded(PICTURE.convert("L")),
        encoded(progressive=True),
        encoded(subsampling=0, quality=100),
        encoded(optimize=True, comment=b"\xff\xc0 in a comment", icc_profile=b"\xff\xda" * 40),
    ],
)
def test_the_size_and_where_the_pixels_start(data: bytes) -> None:
    header = plain(data)
    assert header is not None and header[:2] == Image.open(BytesIO(data)).size == (37, 13)
    assert data[header[2] - 4 : header[2] - 2] == b"\xff\xda" and data.rfind(b"\xff\xd9") > header[2]


@pytest.mark.parametrize(
    "data",
    [
        encoded(PICTURE.convert("CMYK")),
        encoded(exif=turned(6)),
        encoded(exif=turned(1)),
        encoded(xmp=b"<x:xmpmeta/>"),
        encoded().replace(b"\xff\xc0\x00\x11\x08", b"\xff\xc0\x00\x11\x0c"),  # 12 bits
        encoded().replace(b"\xff\xc0", b"\xff\xc3"),  # lossless, which decoders do not know
        encoded().replace((13).to_bytes(2, "big") + (37).to_bytes(2, "big"), b"\xff\xff\xff\xff"),  # a bomb
        b"",
        b"\xff\xd8\xff",
        b"\x89PNG\r\n\x1a\n",
    ],
)
def test_all_else_is_left_to_pillow(data: bytes) -> None:
    assert plain(data) is None


@settings(derandomize=True, max_examples=300, deadline=None)
@given(st.integers(0, len(encoded()) - 1), st.integers(0, 255), st.booleans())
def test_a_damaged_header_never_breaks_it(place: int, value: int, cut: bool) -> None:
    data = bytearray(encoded())
    data[place] = value
    header = plain(bytes(data[: place + 1] if cut else data))
    assert header is None or (header[0] * header[1] > 0 and header[2] <= len(data))
