"""Images as real datasets have them, odd and broken, through the whole stage: what is stored, what is refused and why."""

import os
import re
import struct
import zlib
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from torchvision.io import ImageReadMode, decode_jpeg

from components.images.store import Store, read_card
from components.prepare.check import OTHERS, Checked, Checker
from components.prepare.contract import PrepareMetrics
from components.prepare.readers import Item

from . import toy

CHECKS = ["decode", "structure"]


def prepare(folder: Path, files: dict[str, bytes], **values: Any) -> PrepareMetrics:
    """Prepares `files` in a folder of their own, into folder/out/toy."""
    for name, data in files.items():
        path = folder / "raw" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return toy.prepare(folder / "raw", folder / "out", work=folder / "work", **values)


def stored(folder: Path, split: str = "train") -> dict[str, tuple[bytes, Any]]:
    """Bytes and pixels of every image of a split."""
    store = Store(folder / "out/toy", split)
    paths = store.column("path").tolist()
    return {path: (store.bytes(row), np.asarray(store.image(row))) for row, path in enumerate(paths)}


def encoded(image: Any, kind: str, **options: Any) -> bytes:
    stream = BytesIO()
    (image if isinstance(image, Image.Image) else Image.fromarray(image)).save(stream, kind, **options)
    return stream.getvalue()


def smooth(seed: int, height: int = 48, width: int = 64) -> Any:
    """Blocks of colour, [height, width, 3]: what JPEG keeps well."""
    blocks = np.random.default_rng(seed).integers(0, 256, (height // 16, width // 16, 3), dtype=np.uint8)
    return blocks.repeat(16, 0).repeat(16, 1)


def jpeg_pixels(data: bytes) -> Any:
    """By another decoder than the store's, as they lie in the file."""
    pixels = decode_jpeg(torch.frombuffer(bytearray(data), dtype=torch.uint8), ImageReadMode.RGB)
    return pixels.permute(1, 2, 0).numpy()


def turned(orientation: int) -> Image.Exif:
    exif = Image.Exif()
    exif[0x0112] = orientation
    return exif


def with_thumbnail(data: bytes) -> bytes:
    """The JPEG with another in its header, as cameras put it there."""
    small = encoded(smooth(9, 16, 16), "JPEG")
    return data[:2] + b"\xff\xe2" + struct.pack(">H", len(small) + 2) + small + data[2:]


def png(width: int, height: int) -> bytes:
    """A PNG of no pixel, whatever it claims."""

    def chunk(name: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"")) + chunk(b"IEND", b"")


def flipped(data: bytes, place: int) -> bytes:
    return data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :]


FIRST = {"train/0.png": encoded(smooth(0), "PNG")}
"""The images of the first split are decoded to measure them, whatever `check` says; those of `val` only where it says so."""


# What is kept as it came


@pytest.mark.parametrize("check", CHECKS)
def test_odd_images_are_kept_to_the_byte_and_read_as_rgb(check: str, tmp_path: Path) -> None:
    colour = smooth(0)
    alpha = np.dstack([colour, np.full(colour.shape[:2], 7, np.uint8)])
    deep = np.random.default_rng(1).integers(0, 2**16, (9, 7), dtype=np.uint16)
    grey_jpeg, plain = encoded(colour[..., 0], "JPEG"), encoded(colour, "JPEG")
    red = np.full((16, 16, 3), (255, 0, 0))
    cases: dict[str, tuple[bytes, Any, int]] = {  # bytes, pixels, greatest difference
        "rgba_png.JPEG": (encoded(alpha, "PNG"), colour, 0),
        "cmyk.jpg": (encoded(Image.new("CMYK", (16, 16), (0, 255, 255, 0)), "JPEG", quality=95), red, 3),
        "grey.jpg": (grey_jpeg, jpeg_pixels(grey_jpeg), 0),
        "16_bit.png": (encoded(deep, "PNG"), np.round(deep / 257)[..., None].repeat(3, -1), 0),
        "16_bit_turned.png": (
            encoded(deep, "PNG", exif=turned(6)),
            np.rot90(np.round(deep / 257), -1)[..., None].repeat(3, -1),
            0,
        ),
        "with thumbnail.jpg": (with_thumbnail(plain), jpeg_pixels(plain), 0),
        "much_behind_it.jpg": (plain + bytes(100_000), jpeg_pixels(plain), 0),
        "progressive.jpg": (
            encoded(colour, "JPEG", progressive=True),
            jpeg_pixels(encoded(colour, "JPEG", progressive=True)),
            0,
        ),
        "nägel & ünïcode 猫.png": (encoded(colour, "PNG"), colour, 0),
        "upside.jpg": (encoded(colour, "JPEG", exif=turned(3)), jpeg_pixels(plain)[::-1, ::-1], 0),
        "lying.jpg": (encoded(colour, "JPEG", exif=turned(6)), np.rot90(jpeg_pixels(plain), -1), 0),
    }
    metrics = prepare(tmp_path, FIRST | {f"val/{name}": data for name, (data, *_) in cases.items()}, check=check)
    assert (metrics.images, metrics.skipped) == (len(cases) + 1, 0)
    found = stored(tmp_path, "val")
    for name, (data, pixels, most) in cases.items():
        kept, shown = found[f"val/{name}"]
        assert kept == data, name
        assert shown.shape == pixels.shape, name
        assert np.abs(shown.astype(int) - pixels).max() <= most, name


@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize("kind", ["JPEG", "PNG"])
def test_the_card_has_sizes_as_pictures_are_seen(check: str, kind: str, tmp_path: Path) -> None:
    """Of a 64x32 file that lies on its side the picture is 32x64, whether it is decoded or not."""
    data = [encoded(smooth(seed, 32, 64), kind, exif=turned(6 + seed % 2)) for seed in range(3)]
    prepare(tmp_path, FIRST | {f"val/{n}.{kind.lower()}": data[n] for n in range(3)}, check=check)
    card = read_card(tmp_path / "out/toy")
    assert card["splits"]["val"]["sizes"] == {"width": [32, 32, 32], "height": [64, 64, 64]}


def test_names_of_files_and_classes_that_are_no_utf_8(tmp_path: Path) -> None:
    name = os.fsdecode(b"train/caf\xe9/\xff.png")
    prepare(tmp_path, {name: encoded(smooth(0), "PNG"), "train/tea/1.png": encoded(smooth(1), "PNG")})
    card = read_card(tmp_path / "out/toy")
    assert card["classes"] == [r"caf\xe9", "tea"]
    assert list(stored(tmp_path)) == [r"train/caf\xe9/\xff.png", "train/tea/1.png"]


# What is refused


def broken() -> dict[str, tuple[bytes, str, str]]:
    """Bytes, and what `decode` and `structure` say of them."""
    jpeg, image = encoded(smooth(2, 256, 256), "JPEG"), encoded(smooth(3, 256, 256), "PNG")
    half, cut = len(jpeg) // 2, "image file is truncated"
    huge = bytearray(jpeg)
    size = huge.index(b"\xff\xc0") + 5
    huge[size : size + 4] = struct.pack(">HH", 30_000, 30_000)
    bomb = r"Image size \(900000000 pixels\) exceeds limit"
    return {
        "empty.jpg": (b"", "it is empty", "it is empty"),
        "page.jpg": (b"<html>404 Not found</html>", "it is neither JPEG nor PNG", "it is neither JPEG nor PNG"),
        "half.jpg": (jpeg[:half], cut, cut),
        "half_thumbnail.jpg": (with_thumbnail(jpeg)[: half + 700], cut, cut),
        "end.jpg": (jpeg[:-2], cut, cut),
        "half.png": (image[: len(image) // 2], cut, "it is damaged: Truncated File Read"),
        "byte.png": (flipped(image, image.index(b"IDAT") + 90), "broken data stream", "it is damaged: broken PNG file"),
        "header.png": (flipped(image, 18), "its header is damaged", "its header is damaged"),
        "bomb.png": (png(30_000, 30_000), bomb, bomb),
        "bomb.jpg": (bytes(huge), bomb, bomb),
        "float.tif": (
            encoded(np.zeros((9, 9), np.float32), "TIFF"),
            "its pixels have mode F",
            "its pixels have mode F",
        ),
        "avif.avif": (encoded(smooth(4), "AVIF")[:300], "Failed to decode frame 0", "Failed to decode frame 0"),
    }


@pytest.mark.parametrize("check", CHECKS)
def test_what_each_check_finds(check: str, tmp_path: Path) -> None:
    cases = {name: (data, why[CHECKS.index(check)]) for name, (data, *why) in broken().items()}
    files = {f"val/{name}": data for name, (data, _) in cases.items()} | FIRST | {"val/0.png": FIRST["train/0.png"]}
    expected = {name: why for name, (_, why) in sorted(cases.items())}
    metrics = prepare(tmp_path, files, check=check, on_error="skip", skip_budget=len(expected))
    skipped = read_card(tmp_path / "out/toy")["skipped"]
    assert [each["path"] for each in skipped] == [f"val/{name}" for name in expected]
    for each, (name, why) in zip(skipped, expected.items(), strict=True):
        assert re.match(why, each["reason"]), (name, each)
        assert (
            str(tmp_path) not in each["reason"] and "0x" not in each["reason"]
        )  # neither this machine's nor this run's
    assert metrics.skipped == len(expected) == 12
    with pytest.raises(ValueError, match=rf"toy: {len(expected)} images cannot be read \(the first: val/avif.avif, "):
        prepare(tmp_path, {}, check=check, on_error="skip", skip_budget=len(expected) - 1)


def test_damage_in_the_middle_of_a_jpeg_is_seen_where_it_is_decoded(tmp_path: Path) -> None:
    """As docs have it; the contact sheet, which decodes, says how to find the others."""
    jpeg = encoded(smooth(2, 256, 256), "JPEG")
    half = len(jpeg) // 2
    files = FIRST | {"val/1.jpg": jpeg[:half] + b"\xff\xc0\0\x11" + jpeg[half + 4 :]}
    with pytest.raises(ValueError, match="val/1.jpg' cannot be read: broken data stream when reading image file; repl"):
        prepare(tmp_path, files)
    with pytest.raises(
        ValueError, match="'val/1.jpg', row 0 of split 'val' .*prepare the dataset again with `check: dec"
    ):
        prepare(tmp_path, {}, check="structure")


@pytest.mark.parametrize("check", CHECKS)
def test_a_broken_image_stops_the_stage_by_default(check: str, tmp_path: Path) -> None:
    files = FIRST | {"val/0.png": encoded(smooth(1), "PNG"), "val/1.jpg": b""}
    where = tmp_path / "raw/val/1.jpg"
    with pytest.raises(
        ValueError, match=f"^toy: image '{where}' cannot be read: it is empty; replace the file, remove"
    ):
        prepare(tmp_path, files, check=check)
    assert not (tmp_path / "out/toy").exists()


# What is stored anew


@pytest.mark.parametrize("check", CHECKS)
def test_other_formats_are_stored_as_png_with_the_same_pixels(check: str, tmp_path: Path) -> None:
    colour = smooth(5)
    deep = np.random.default_rng(1).integers(0, 2**16, (9, 7), dtype=np.uint16)
    palette = Image.fromarray(colour).quantize(9)
    few = np.reshape(palette.getpalette(), (-1, 3))[np.asarray(palette)]
    cases = {
        "webp": (encoded(colour, "WEBP", lossless=True), colour),
        "turned.webp": (encoded(colour, "WEBP", lossless=True, exif=turned(8)), np.rot90(colour)),
        "bmp": (encoded(colour, "BMP"), colour),
        "gif": (encoded(palette, "GIF", comment=b"c" * 70_000), few),
        "two.gif": (encoded(palette, "GIF", save_all=True, append_images=[Image.new("P", (64, 48))]), few),
        "tif": (encoded(colour, "TIFF", compression="tiff_lzw"), colour),
        "16.tif": (encoded(deep, "TIFF"), np.round(deep / 257)[..., None].repeat(3, -1)),
        "big_end.tif": (encoded(deep.astype(">u2"), "TIFF"), np.round(deep / 257)[..., None].repeat(3, -1)),
        "misnamed.jpg": (encoded(colour, "WEBP", lossless=True), colour),
    }
    prepare(tmp_path, {f"train/x.{name}": data for name, (data, _) in cases.items()}, check=check)
    for path, (data, shown) in stored(tmp_path).items():
        with Image.open(BytesIO(data)) as image:
            assert (image.format, image.mode) == ("PNG", "RGB")
            np.testing.assert_array_equal(np.asarray(image), cases[path.removeprefix("train/x.")][1], path)
        np.testing.assert_array_equal(shown, cases[path.removeprefix("train/x.")][1])


@pytest.mark.parametrize("check", CHECKS)
def test_large_images_are_bounded_and_small_ones_keep_their_bytes(check: str, tmp_path: Path) -> None:
    sizes = [(32, 32), (32, 500), (33, 33), (64, 48), (48, 96), (31, 400), (640, 33), (100, 100)]
    files = {f"train/{h}x{w}.png": encoded(smooth(0, 640, 512)[:h, :w], "PNG") for h, w in sizes}
    files["train/turned.jpg"] = encoded(smooth(1, 64, 96), "JPEG", exif=turned(6))
    files["train/animated.gif"] = encoded(smooth(2, 64, 64), "GIF", comment=b"c" * 70_000)
    prepare(tmp_path, files, check=check, resize_short_side=32, quality=95)
    for path, (data, shown) in stored(tmp_path).items():
        with Image.open(BytesIO(files[path])) as opened:
            upright = opened.convert("RGB")
            if "turned" in path:
                upright = upright.transpose(Image.Transpose.ROTATE_270)
        if min(upright.size) <= 32:
            assert data == files[path]
            continue
        height, width = shown.shape[:2]
        assert min(height, width) == 32
        long, short = max(upright.size), min(upright.size)
        assert abs(max(height, width) - long * 32 / short) <= 0.5
        assert (height < width) == (upright.height < upright.width)
        witness = encoded(upright.resize((width, height), Image.Resampling.BICUBIC), "JPEG", quality=95, comment=b"")
        np.testing.assert_array_equal(shown, jpeg_pixels(witness))
        with Image.open(BytesIO(data)) as image:
            assert image.format == "JPEG" and not image.getexif()
    assert read_card(tmp_path / "out/toy")["stored"] == (
        "a short side of at most 32 pixels, larger ones as JPEG of quality 95"
    )


def test_a_strip_longer_than_a_jpeg_may_be_is_told(tmp_path: Path) -> None:
    image = encoded(Image.new("L", (70_000, 33)), "PNG")
    prepare(tmp_path, {"train/0.png": image})
    with pytest.raises(
        ValueError, match="0.png' cannot be read: its 67879x32 pixels cannot be stored as JPEG: .*; repl"
    ):
        prepare(tmp_path, {}, resize_short_side=32, quality=90)


# Duplicates


def test_duplicates_are_counted_and_those_across_splits_named_first(tmp_path: Path) -> None:
    picture = [encoded(smooth(seed), "PNG") for seed in range(40)]
    files = {f"train/{n:02d}.png": picture[n] for n in range(30)}
    files |= {f"train/again_{n:02d}.png": picture[n] for n in range(25)}
    files |= {"val/leak.png": picture[29], "val/own.png": picture[30], "val/twice.png": picture[30]}
    metrics = prepare(tmp_path, files)
    card = read_card(tmp_path / "out/toy")
    assert card["duplicates"]["images"] == metrics.duplicates == 50 + 2 + 2
    pairs = card["duplicates"]["pairs"]
    assert pairs[0] == ["train/29.png", "val/leak.png"]
    assert pairs[1:] == [[f"train/{n:02d}.png", f"train/again_{n:02d}.png"] for n in range(19)]  # 20 of 27 are named


# Damage at random


class InMemory:
    """`Files` whose files are their bytes."""

    def read(self, file: bytes) -> bytes:
        return file

    def size(self, file: bytes) -> int:
        return len(file)

    def where(self, file: bytes) -> str:
        return "memory"


def kinds() -> dict[str, bytes]:
    colour, exif = smooth(6, 32, 32), turned(6)
    exif[0x010E] = "text"
    found = {kind.lower(): encoded(colour, kind) for kind in ("JPEG", "PNG", *OTHERS)}
    found |= {f"exif_{kind.lower()}": encoded(colour, kind, exif=exif) for kind in ("JPEG", "PNG", "WEBP", "AVIF")}
    found["exif_tiff"] = encoded(colour, "TIFF", exif=exif, compression="tiff_adobe_deflate")
    found["cmyk"] = encoded(Image.fromarray(colour).convert("CMYK"), "JPEG")
    found["palette"] = encoded(Image.fromarray(colour).quantize(9), "PNG", transparency=bytes(range(9)))
    found["bits"] = encoded(Image.fromarray(colour).convert("1"), "TIFF", compression="group4")
    return found


KINDS = kinds()


@pytest.mark.filterwarnings("ignore::UserWarning:PIL")  # it tells of what else is wrong with their EXIF
@settings(max_examples=1500, deadline=None, derandomize=True)
@given(
    st.sampled_from(sorted(KINDS)),
    st.lists(st.tuples(st.integers(0, 2**16), st.booleans(), st.integers(1, 255)), min_size=1, max_size=5),
    st.sampled_from([1.0, 1.0, 0.9, 0.5]),
    st.sampled_from(CHECKS),
)
def test_whatever_is_damaged_becomes_a_row_or_a_reason(
    kind: str, places: list[tuple[int, bool, int]], share: float, check: str
) -> None:
    data = bytearray(KINDS[kind])
    for place, in_header, value in places:
        data[place % (min(len(data), 200) if in_header else len(data))] ^= value
    item = Item("train/x", {"label": 0}, "", "train/x", bytes(data[: int(share * len(data))]))
    checker = Checker(InMemory(), "images", check == "decode", 16, 90)
    (checked,) = checker([(item, False)])
    assert bool(checked.fault) != bool(checked.row)
    assert " 0x" not in checked.fault
    if checked.row:
        whole(checked, checker)


def whole(checked: Checked, checker: Checker) -> None:
    """What was stored is stored once more as it is."""
    (again,) = checker([(Item("train/x", {"label": 0}, "", "train/x", checked.row["image"]), False)])
    assert (again.fault, again.row["image"], again.size) == ("", checked.row["image"], checked.size)


def test_structure_finds_every_cut_and_every_changed_byte_of_a_png() -> None:
    data = encoded(smooth(7), "PNG")
    checker = Checker(InMemory(), "images", False, 0, 0)
    for place in range(len(data) - 12):  # of the end's own chunk, which holds nothing, but its name
        for changed in (data[:place], flipped(data, place)):
            (checked,) = checker([(Item("x", {"label": 0}, "", "x", changed), False)])
            assert checked.fault, place


def test_structure_finds_every_cut_of_a_jpeg_whatever_its_header_holds() -> None:
    data = with_thumbnail(encoded(smooth(7), "JPEG"))
    checker = Checker(InMemory(), "images", False, 0, 0)
    for length in range(len(data)):
        (checked,) = checker([(Item("x", {"label": 0}, "", "x", data[:length]), False)])
        assert checked.fault, length
