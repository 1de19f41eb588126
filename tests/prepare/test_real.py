"""All of the real data there is, through the whole stage: every image, frame and mask comes out as it went in."""

import os
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision.io import ImageReadMode, decode_image

from components.images.store import Store, read_card

from .toy import prepare

if "STOP_SHARED_DATA" not in os.environ:
    pytest.skip("STOP_SHARED_DATA names no folder of real data", allow_module_level=True)

SHARED = Path(os.environ["STOP_SHARED_DATA"])


def pixels(data: bytes) -> Any:
    """By another decoder than the store's."""
    tensor = decode_image(torch.frombuffer(bytearray(data), dtype=torch.uint8), ImageReadMode.RGB)
    return tensor.permute(1, 2, 0).numpy()


def same(store: Store, files: list[Path], every: int) -> None:
    """Every image has its file's bytes; of one in `every` the pixels are compared as well."""
    assert len(store) == len(files)
    for row, path in enumerate(files):
        data = path.read_bytes()
        assert store.bytes(row) == data, path
        if row % every == 0:
            np.testing.assert_array_equal(np.asarray(store.image(row)), pixels(data), str(path))


def test_all_images_of_cifar10(tmp_path: Path) -> None:
    metrics = prepare(SHARED / "cifar10", tmp_path / "out", "image_folder", check="decode", shard_mib=64)
    assert (metrics.images, metrics.classes, metrics.skipped) == (60_000, 10, 0)
    for split, count in {"train": 50_000, "test": 10_000}.items():
        store = Store(tmp_path / "out/toy", split)
        assert np.bincount(store.column("label")).tolist() == [count // 10] * 10
        assert [store.card["classes"][label] for label in store.column("label")] == [
            path.split("/")[1] for path in store.column("path")
        ]
        files = sorted((SHARED / "cifar10" / split).glob("*/*"))
        assert store.column("path").tolist() == [str(path.relative_to(SHARED / "cifar10")) for path in files]
        same(store, files, every=1)


@pytest.mark.parametrize("check", ["decode", "structure"])
def test_every_frame_and_mask_of_davis(check: str, tmp_path: Path) -> None:
    folder = SHARED / "DAVIS"
    metrics = prepare(folder, tmp_path / "out", "davis", check=check, shard_mib=64)
    frames = sorted(folder.glob("JPEGImages/480p/*/*.jpg"))
    total = 0
    for split in read_card(tmp_path / "out/toy")["splits"]:
        store = Store(tmp_path / "out/toy", split)
        sequences = store.column("sequence").tolist()
        own = [path for name in dict.fromkeys(sequences) for path in frames if path.parent.name == name]
        same(store, own, every=5)
        for row, path in enumerate(own):
            mask = folder / "Annotations/480p" / sequences[row] / f"{path.stem}.png"
            assert store.bytes(row, "mask") == (mask.read_bytes() if mask.is_file() else b"")
        total += len(store)
    assert total == metrics.images == len(frames)


@pytest.mark.parametrize("packed", [False, True])
def test_every_photograph(packed: bool, tmp_path: Path) -> None:
    files = sorted((SHARED / "photos").iterdir())
    raw = SHARED / "photos"
    if packed:
        raw = tmp_path / "photos.tar.gz"
        with tarfile.open(raw, "w:gz", compresslevel=1) as archive:
            archive.add(SHARED / "photos", "photos")
    metrics = prepare(raw, tmp_path / "out", "images", check="decode", shard_mib=64)
    assert (metrics.images, metrics.classes, metrics.skipped) == (len(files), 0, 0)
    store = Store(tmp_path / "out/toy", "train")
    assert set(store.column("label")) == {-1}
    same(store, files, every=1)
    sizes = read_card(tmp_path / "out/toy")["splits"]["train"]["sizes"]
    widths = []
    for path in files:
        with Image.open(path) as image:
            widths.append(image.width)
    assert sizes["width"] == [min(widths), sorted(widths)[len(files) // 2], max(widths)]
