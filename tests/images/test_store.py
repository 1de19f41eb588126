"""The store against Arrow's own reader, closed forms and damaged files."""

import hashlib
import json
import os
import pickle
import time
import zlib
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from PIL import Image

from components.images.shard import COLUMNS, hold
from components.images.store import Store, decode, read_card, splits, write, write_card


def encoded(pixels: Any, kind: str = "PNG", **options: Any) -> bytes:
    stream = BytesIO()
    image = pixels if isinstance(pixels, Image.Image) else Image.fromarray(pixels)
    image.save(stream, kind, **options)
    return stream.getvalue()


def noise(seed: int, height: int = 12, width: int = 18) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)


def image_rows(count: int, size: int = 10) -> list[dict[str, Any]]:
    rng = np.random.default_rng(count)
    return [{"path": f"train/é{n:03d}.png", "image": rng.bytes(size), "label": n % 3 - 1} for n in range(count)]


def dataset(folder: Path, kind: str, rows: dict[str, list[dict[str, Any]]], shard_mib: int = 1) -> Path:
    card = {"name": "toy", "kind": kind, "format": "image_folder", "classes": ["a", "b"], "skipped": []}
    written = write(folder, kind, rows, shard_mib)
    write_card(folder, {**card, "splits": written, "mean": [0.5] * 3, "std": [0.25] * 3})
    return folder


def digests(folder: Path) -> dict[str, str]:
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def test_reads_back_every_row_in_order_over_several_shards(tmp_path: Path) -> None:
    rows = image_rows(11, size=400_000)
    store = Store(dataset(tmp_path / "d", "images", {"train": rows, "val": rows[:1]}), "train")
    assert store.card["splits"]["train"]["shards"] == 6  # two of 400 kB fit into 1 MiB, a third does not
    assert len(store) == 11
    assert [store.bytes(n) for n in range(11)] == [row["image"] for row in rows]
    assert store.column("path").tolist() == [row["path"] for row in rows]
    assert store.column("label").tolist() == [row["label"] for row in rows]
    assert store.column("label").dtype == np.int32
    assert splits(tmp_path / "d") == ["train", "val"]


def test_shards_are_plain_arrow_files(tmp_path: Path) -> None:
    rows = [
        {"path": f"f{n}", "image": b"i" * n, "sequence": "s", "frame": n, "mask": b"" if n else b"first"}
        for n in range(5)
    ]
    dataset(tmp_path / "d", "video", {"val": rows})
    with pa.memory_map(str(tmp_path / "d/val/shard-00000.arrow")) as source:
        table = pa.ipc.open_file(source).read_all()
    checked = [
        {**row, "crc32": zlib.crc32(row["image"]), "mask_crc32": zlib.crc32(row["mask"])}  # type: ignore[arg-type]
        for row in rows
    ]
    assert table.to_pylist() == checked
    assert dict(zip(table.schema.names, table.schema.types, strict=True)) == COLUMNS["video"]


def test_binary_columns_without_a_single_byte(tmp_path: Path) -> None:
    rows = [{"path": f"f{n}", "image": b"x", "sequence": "s", "frame": n, "mask": b""} for n in range(3)]
    store = Store(dataset(tmp_path / "d", "video", {"val": rows}), "val")
    assert [store.bytes(n, "mask") for n in range(3)] == [b"", b"", b""]


def test_a_row_above_the_limit_has_a_shard_of_its_own(tmp_path: Path) -> None:
    sizes = [10, 3_000_000, 10, 10]
    rows = [{"path": str(n), "image": bytes(size), "count": n, "distance": n / 3} for n, size in enumerate(sizes)]
    store = Store(dataset(tmp_path / "d", "scenes", {"train": rows}), "train")
    assert store.card["splits"]["train"]["shards"] == 3
    assert [len(store.bytes(n)) for n in range(4)] == sizes
    assert store.column("distance").tolist() == [0, 1 / 3, 2 / 3, 1]  # exact: float64


def test_same_rows_give_the_same_bytes_and_other_rows_another_content(tmp_path: Path) -> None:
    rows = image_rows(7, size=300_000)
    first = dataset(tmp_path / "first", "images", {"train": rows})
    assert digests(first) == digests(dataset(tmp_path / "second", "images", {"train": rows}))

    def content(name: str, changed: list[dict[str, Any]], split: str = "train", shard_mib: int = 1) -> str:
        return str(read_card(dataset(tmp_path / name, "images", {split: changed}, shard_mib))["content"])

    original = read_card(first)["content"]
    assert content("sharded", rows, shard_mib=8) == original
    others = [
        content("order", [rows[1], rows[0], *rows[2:]]),
        content("label", [{**rows[0], "label": 5}, *rows[1:]]),
        content("byte", [{**rows[0], "image": rows[0]["image"][:-1] + b"!"}, *rows[1:]]),
        content("shift", [{**rows[0], "path": rows[0]["path"][:-1], "image": b"g" + rows[0]["image"]}, *rows[1:]]),
        content("split", rows, split="val"),
    ]
    assert len({original, *others}) == 6


def test_the_content_hash_is_what_its_text_says(tmp_path: Path) -> None:
    """Recomputed here value by value; were it to change, every fingerprint would, and with it all resumable work."""
    dataset(tmp_path / "d", "images", {"train": [{"path": "é", "image": b"\x00\xff", "label": -1}]})
    values = ["é".encode(), hashlib.sha256(b"\x00\xff").digest(), b"-1"]
    row = hashlib.sha256(b"".join(len(value).to_bytes(8, "little") + value for value in values)).digest()
    split = hashlib.sha256(row).hexdigest()
    card = read_card(tmp_path / "d")
    assert card["splits"]["train"]["content"] == split
    identity = json.dumps(["images", ["a", "b"], [["train", split]]])
    assert card["content"] == hashlib.sha256(identity.encode()).hexdigest()


def test_pickles_to_the_same_rows_after_use(tmp_path: Path) -> None:
    store = Store(dataset(tmp_path / "d", "images", {"train": image_rows(4)}), "train")
    store.bytes(2)
    pickled = pickle.dumps(store)
    assert len(pickled) < 1000  # the path, not the data
    again = pickle.loads(pickled)
    assert [again.bytes(n) for n in range(4)] == [store.bytes(n) for n in range(4)]


@pytest.mark.parametrize("index", [-1, 4])
def test_rows_outside_are_an_index_error(tmp_path: Path, index: int) -> None:
    store = Store(dataset(tmp_path / "d", "images", {"train": image_rows(4)}), "train")
    with pytest.raises(IndexError, match=f"row {index} of 4"):
        store.bytes(index)


def test_missing_dataset_and_missing_split_say_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"'.*nowhere' is no prepared dataset.*dvc repro prepare"):
        Store(tmp_path / "nowhere", "train")
    dataset(tmp_path / "d", "images", {"train": image_rows(1), "val": image_rows(1)})
    with pytest.raises(ValueError, match="has no split 'test'; its splits are: train, val"):
        Store(tmp_path / "d", "test")


def test_images_are_rgb_whatever_the_file_holds(tmp_path: Path) -> None:
    colour = noise(0)
    grey = colour[..., 0]
    palette = Image.fromarray(colour).quantize(16)
    rgba = np.dstack([colour, np.full(grey.shape, 7, np.uint8)])
    cmyk = Image.new("CMYK", (8, 8), (0, 255, 255, 0))
    files = [encoded(colour), encoded(grey), encoded(palette), encoded(rgba), encoded(cmyk, "JPEG", quality=100)]
    rows = [{"path": str(n), "image": data, "label": 0} for n, data in enumerate(files)]
    store = Store(dataset(tmp_path / "d", "images", {"train": rows}), "train")
    pixels = [np.asarray(store.image(n)) for n in range(len(rows))]
    assert all(store.image(n).mode == "RGB" for n in range(len(rows)))
    np.testing.assert_array_equal(pixels[0], colour)
    np.testing.assert_array_equal(pixels[1], np.dstack([grey] * 3))
    np.testing.assert_array_equal(pixels[2], np.reshape(palette.getpalette(), (-1, 3))[np.asarray(palette)])
    np.testing.assert_array_equal(pixels[3], colour)
    assert np.abs(pixels[4].astype(int) - (255, 0, 0)).max() <= 3  # no cyan, all magenta and yellow: red


@pytest.mark.parametrize(
    ("orientation", "seen"),
    [
        (2, lambda stored: stored[:, ::-1]),
        (3, lambda stored: stored[::-1, ::-1]),
        (6, lambda stored: np.rot90(stored, -1)),  # the camera was turned; what is shown is turned clockwise
        (8, lambda stored: np.rot90(stored, 1)),
    ],
)
@pytest.mark.parametrize("kind", ["PNG", "JPEG"])
def test_images_are_turned_as_their_exif_says(orientation: int, seen: Any, kind: str) -> None:
    stored = noise(1)
    exif = Image.Exif()
    exif[0x0112] = orientation
    plain = np.asarray(decode(encoded(stored, kind)))
    np.testing.assert_array_equal(np.asarray(decode(encoded(stored, kind, exif=exif))), seen(plain))


@pytest.mark.parametrize("kind", ["PNG", "JPEG"])
def test_a_file_cut_anywhere_is_refused(kind: str) -> None:
    data = encoded(noise(2), kind)
    end = len(data) - (
        24 if kind == "PNG" else 2
    )  # behind the last pixel: PNG's checksums and end mark, JPEG's end mark
    for length in range(0, end, 13):
        with pytest.raises(ValueError, match="neither JPEG nor PNG|runcated|cannot load|damaged|broken|empty"):
            decode(data[:length])


def test_other_formats_are_refused() -> None:
    with pytest.raises(ValueError, match="^it is neither JPEG nor PNG$"):
        decode(encoded(noise(3), "WEBP"))


def test_16_bit_grey_is_rounded_to_8() -> None:
    levels = np.array([[0, 128, 129, 257 * 100 + 128, 257 * 100 + 129, 65_535]], np.uint16)
    expected = np.round(levels / 257).astype(np.uint8)
    found = np.asarray(decode(encoded(Image.fromarray(levels))))
    np.testing.assert_array_equal(found, np.repeat(expected[..., None], 3, axis=2))


def test_a_path_is_held_out_whatever_stands_beside_it() -> None:
    paths = np.array([f"train/dog/{i:05d}.jpg" for i in range(4000)])
    mask = np.array([hold(path) for path in paths]) < 0.1
    assert 0.085 < mask.mean() < 0.115
    # `printf train/dog/000NN.jpg | sha256sum` starts below 0x1999… for these: the choice may never move.
    assert [int(i) for i in np.flatnonzero(mask)[:4]] == [10, 13, 15, 23]


def test_as_many_rows_as_imagenet_open_at_once_and_hold_no_file_open(million: Path) -> None:
    """The processor's own time: other work on the machine doesn't count. Labels and an epoch's order are part of a start."""
    files, start = len(os.listdir("/proc/self/fd")), time.process_time()
    store = Store(million, "train")
    labels, order = store.column("label"), np.random.default_rng(0).permutation(len(store))
    first = store.view(int(order[0]))
    assert time.process_time() - start < 2
    assert len(os.listdir("/proc/self/fd")) == files  # of 550 shards
    assert len(store) == len(labels) == 1_281_167 and len(pickle.dumps(store)) < 1000
    assert store.image(int(order[0])).size == (4, 4) and first == store.view(1_281_166)
    np.testing.assert_array_equal(labels[[0, 1299, 1300, 1_281_166]], [0, 0, 1, 985])


@pytest.mark.parametrize(
    ("harm", "message"),
    [
        (lambda path: path.unlink(), r"shard '.*shard-00001.arrow' cannot be read: .*dvc repro -s prepare@toy"),
        (
            lambda path: path.write_bytes(path.read_bytes()[:-40]),
            r"shard '.*shard-00001.arrow' cannot be read: .*damaged after it was prepared.*-samefile .*/shard-00001.arrow ",
        ),
        (
            lambda path: path.write_bytes(path.with_name("shard-00000.arrow").read_bytes()),
            r"the shards of split 'train' in '.*' hold 4 rows, but its card counts 3; .*: rm -r .*/d; dvc repro -s prepare@toy",
        ),
    ],
)
def test_a_missing_cut_or_foreign_shard_is_named(tmp_path: Path, harm: Any, message: str) -> None:
    folder = dataset(tmp_path / "d", "images", {"train": image_rows(3, size=400_000)})
    harm(folder / "train/shard-00001.arrow")
    with pytest.raises(ValueError, match=message):
        Store(folder, "train")
