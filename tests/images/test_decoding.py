"""Fast decoding against Pillow's: the same pixels for every kind of file, and the same refusals of what is broken."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from components.images import decoding
from components.images.store import Store, decode, write, write_card


def noise(seed: int, height: int = 45, width: int = 62) -> Image.Image:
    """Smooth, so that JPEG's own loss doesn't make every picture the same grey."""
    small = np.random.default_rng(seed).integers(0, 256, (6, 8, 3), dtype=np.uint8)
    return Image.fromarray(small).resize((width, height), Image.Resampling.BICUBIC)


def encoded(image: Image.Image, kind: str = "JPEG", **options: Any) -> bytes:
    stream = BytesIO()
    image.save(stream, kind, **options)
    return stream.getvalue()


def turned(orientation: int) -> Image.Exif:
    exif = Image.Exif()
    exif[0x0112] = orientation
    return exif


def xmp(orientation: int) -> bytes:
    packet = f'<x:xmpmeta xmlns:x="adobe:ns:meta/"><a tiff:Orientation="{orientation}"/></x:xmpmeta>'.encode()
    segment = b"http://ns.adobe.com/xap/1.0/\0" + packet
    jpeg = encoded(noise(4))
    return jpeg[:2] + b"\xff\xe1" + (len(segment) + 2).to_bytes(2, "big") + segment + jpeg[2:]


FILES = {
    "plain": encoded(noise(0)),
    "4:4:4": encoded(noise(0), subsampling=0),
    "4:2:2": encoded(noise(0), subsampling=1),
    "4:2:0": encoded(noise(0), subsampling=2),
    "one pixel": encoded(noise(0).resize((1, 1))),
    "progressive": encoded(noise(1), progressive=True),
    "restart markers": encoded(noise(1), restart_marker_rows=1),
    "grey": encoded(noise(2).convert("L")),
    "grey, turned": encoded(noise(2).convert("L"), exif=turned(6)),
    "CMYK": encoded(noise(3).convert("CMYK")),
    "CMYK, turned": encoded(noise(3).convert("CMYK"), exif=turned(5)),
    "RGB inside": encoded(noise(3), keep_rgb=True),
    **{f"turned {orientation}": encoded(noise(4), exif=turned(orientation)) for orientation in range(10)},
    "turned by XMP": xmp(6),
    "RGBA PNG": encoded(noise(5).convert("RGBA"), "PNG"),
    "palette PNG": encoded(noise(5).quantize(16), "PNG"),
    "PNG": encoded(noise(6), "PNG"),
    "PNG, turned": encoded(noise(6), "PNG", exif=turned(8)),
    "1 bit PNG": encoded(noise(6).convert("1"), "PNG"),
}


@pytest.mark.parametrize("name", FILES)
def test_pixels_are_pillow_s_to_the_bit(name: str) -> None:
    found = decoding.decode(memoryview(FILES[name]))
    assert found.dtype == torch.uint8 and found.shape[0] == 3
    np.testing.assert_array_equal(found.permute(1, 2, 0).numpy(), np.asarray(decode(FILES[name])))


def test_xmp_and_exif_turn_the_picture() -> None:
    """So that the cases above compare something."""
    assert decoding.decode(FILES["turned by XMP"]).shape == decoding.decode(FILES["turned 6"]).shape == (3, 62, 45)


@contextmanager
def quiet() -> Iterator[None]:
    """libjpeg writes its complaints past Python."""
    kept, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)


@settings(max_examples=300, deadline=None, derandomize=True)
@given(
    name=st.sampled_from(["plain", "progressive", "grey", "restart markers", "turned 6"]),
    cut=st.floats(0, 1),
    changes=st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(0, 255)), max_size=3),
)
def test_a_damaged_jpeg_is_what_pillow_makes_of_it(name: str, cut: float, changes: list[tuple[float, int]]) -> None:
    """Cut short, both refuse it for the same reason; changed behind its first marker, what Pillow reads has the same pixels.

    What Pillow alone refuses are markers that libjpeg finds its way around; they don't get through `prepare`.
    """
    data = bytearray(FILES[name])
    for place, value in changes:
        data[3 + int(place * (len(data) - 3))] = value
    if not changes:
        data = data[: int(cut * (len(data) - 2))]  # not its end mark alone, which nobody misses

    def seen(read: Any) -> Any:
        try:
            return np.asarray(read(bytes(data)))
        except ValueError as error:
            return str(error)

    with quiet():
        ours, theirs = seen(lambda file: decoding.decode(file).permute(1, 2, 0)), seen(decode)
    if not changes:
        assert isinstance(ours, str) and ours == theirs
    if not isinstance(theirs, str):
        np.testing.assert_array_equal(ours, theirs)


def dataset(folder: Path, files: list[bytes]) -> Path:
    rows = [{"path": f"train/é {n}.JPEG", "image": data, "label": 0} for n, data in enumerate(files)]
    card = {"name": "toy", "kind": "images", "format": "image_folder", "classes": ["a"], "skipped": []}
    splits = write(folder, "images", {"train": rows}, 1)
    write_card(folder, {**card, "splits": splits, "mean": [0.5] * 3, "std": [0.25] * 3})
    return folder


def test_a_broken_image_is_named_with_its_dataset_split_and_row(tmp_path: Path) -> None:
    store = Store(dataset(tmp_path / "d", [FILES["plain"], FILES["plain"][:200], b""]), "train")
    np.testing.assert_array_equal(decoding.pixels(store, 0).permute(1, 2, 0), np.asarray(store.image(0)))
    for row in (1, 2):
        named = rf"^'train/é {row}.JPEG', row {row} of split 'train' of dataset 'toy' in '.*/d', cannot be decoded: .*stored like that.*"
        with pytest.raises(ValueError, match=named):
            decoding.pixels(store, row)
        with pytest.raises(ValueError, match=named):
            store.image(row)


@pytest.mark.skipif("STOP_SHARED_DATA" not in os.environ, reason="real photographs lie in STOP_SHARED_DATA")
def test_real_photographs_have_pillow_s_pixels() -> None:
    files = sorted(Path(os.environ["STOP_SHARED_DATA"]).rglob("*.[jJ][pP]*[gG]"))
    files = [file for file in files if "cifar10" not in file.parts] + files[:500]
    assert files
    for file in files:
        data = file.read_bytes()
        np.testing.assert_array_equal(
            decoding.decode(data).permute(1, 2, 0), np.asarray(decode(data)), err_msg=str(file)
        )
