"""Small raw datasets in the layouts that people have."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from components.prepare.contract import PrepareMetrics

from . import toy


def _picture(path: Path, seed: int, size: tuple[int, int]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(seed).integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)
    Image.fromarray(pixels).save(path)


@pytest.fixture
def image_folder(tmp_path: Path) -> Path:
    """train: 6 cats, 4 dogs, 3 owls; val: 2 of each. JPEG and PNG."""
    folder = tmp_path / "raw"
    for split, counts in {"train": {"cat": 6, "dog": 4, "owl": 3}, "val": {"cat": 2, "dog": 2, "owl": 2}}.items():
        for label, (name, count) in enumerate(counts.items()):
            for number in range(count):
                suffix = "png" if number == 1 else "jpg"
                _picture(folder / split / name / f"{number:04d}.{suffix}", 100 * label + number, (10 + number, 9))
    return folder


@pytest.fixture
def clevr(tmp_path: Path) -> Path:
    """train: 5 images, val: 2, with 3, 4, 5, … objects; the nearest is not the first."""
    folder = tmp_path / "CLEVR_v1.0"
    for split, count in {"train": 5, "val": 2}.items():
        scenes: list[dict[str, Any]] = []
        for number in range(count):
            name = f"CLEVR_{split}_{number:06d}.png"
            _picture(folder / "images" / split / name, number, (12, 8))
            depths = [9.5 + number, 7.25 + number] + [20.0] * (number + 1)
            objects = [{"shape": "cube", "pixel_coords": [4, 5, depth], "rotation": 1.5} for depth in depths]
            relations = {"left": [[1], []]}
            scenes.append(
                {"image_index": number, "image_filename": name, "objects": objects, "relationships": relations}
            )
        (folder / "scenes").mkdir(exist_ok=True)
        text = json.dumps({"info": {"split": split}, "scenes": scenes[::-1]})
        (folder / "scenes" / f"CLEVR_{split}_scenes.json").write_text(text)
    (folder / "images" / "test").mkdir()
    _picture(folder / "images" / "test" / "CLEVR_test_000000.png", 0, (12, 8))
    return folder


@pytest.fixture
def davis(tmp_path: Path) -> Path:
    """DAVIS 2017: sequences bear (4 frames, all with masks) and camel (3 frames, only the first with a mask)."""
    folder = tmp_path / "DAVIS"
    for sequence, (frames, masks) in {"bear": (4, 4), "camel": (3, 1)}.items():
        for number in range(frames):
            _picture(folder / f"JPEGImages/480p/{sequence}/{number:05d}.jpg", number, (16, 10))
        for number in range(masks):
            mask = Image.fromarray(np.eye(10, 16, number, dtype=np.uint8), "P")
            mask.putpalette([0, 0, 0, 128, 0, 0, 0, 128, 0])
            path = folder / f"Annotations/480p/{sequence}/{number:05d}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            mask.save(path)
    (folder / "ImageSets/2017").mkdir(parents=True)
    (folder / "ImageSets/2017/val.txt").write_text("camel\n\nbear\n\n")
    return folder


@pytest.fixture
def cut() -> Callable[[Path], Path]:
    """Halves a file, as an interrupted copy does."""

    def halve(path: Path) -> Path:
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
        return path

    return halve


@pytest.fixture
def prepare() -> Callable[..., PrepareMetrics]:
    """The whole stage on dataset `toy`: prepare(raw, folder, format, **values) writes `folder`/toy."""
    return toy.prepare
