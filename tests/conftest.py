"""Toy datasets and the repository's own files, for every test."""

import os
import sys
import zlib
from collections.abc import Callable, Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from PIL import Image

from components.images import store
from components.images.shard import COLUMNS, write_columns
from components.stage import read_yaml

ROOT = Path(__file__).parents[1]

# As `python -m components` has it; read when torch loads. Threads that spin make tests beside busy processes ten times slower.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")


@pytest.fixture(scope="session")
def repository() -> Path:
    """The project's own folder."""
    return ROOT


@pytest.fixture
def committed() -> Callable[[str], dict[str, Any]]:
    """The committed values of a stage, fresh for every call."""
    return lambda stage: read_yaml(ROOT / "params" / f"{stage}.yaml")


@pytest.fixture(autouse=True)
def _import_path() -> Iterator[None]:
    """A served model brings code of its own, which MLflow puts first in the path: later tests and their processes would import that."""
    before = list(sys.path)
    yield
    sys.path[:] = before


@pytest.fixture(scope="session")
def database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An empty MLflow database; MLflow takes seconds to make one."""
    path = tmp_path_factory.mktemp("mlflow") / "mlflow.db"
    from mlflow import MlflowClient  # here, since most tests do without it

    MlflowClient(f"sqlite:///{path}").search_experiments()
    return path


@pytest.fixture(scope="session")
def toy_images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A prepared dataset of 4 classes of striped images, 16×16 pixels: 48 to train on, 24 to test on."""
    folder = tmp_path_factory.mktemp("toy") / "toy"
    generator = np.random.default_rng(0)

    def rows(split: str, count: int) -> list[dict[str, Any]]:
        made = []
        for i in range(count):
            label = i % 4
            wave = np.sin(np.arange(16) * (label + 1) * 0.7 + generator.uniform(0, 6))
            pixels = 127 + 60 * np.broadcast_to(wave[:, None] if label % 2 else wave[None, :], (16, 16))[..., None]
            pixels = pixels + generator.normal(0, 20, (16, 16, 3))
            file = BytesIO()
            Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(file, "PNG")
            made.append({"path": f"{split}/{label}/{i:03d}.png", "image": file.getvalue(), "label": label})
        return made

    folder.mkdir()
    splits = store.write(folder, "images", {"train": rows("train", 48), "test": rows("test", 24)}, shard_mib=1)
    card = {
        "name": "toy",
        "kind": "images",
        "format": "image_folder",
        "classes": ["a", "b", "c", "d"],
        "splits": splits,
    }
    store.write_card(folder, {**card, "mean": [0.5] * 3, "std": [0.2] * 3, "skipped": []})
    return folder


@pytest.fixture(scope="session")
def million(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A prepared dataset of as many rows as ImageNet has, in as many shards: the same little picture each time."""
    folder = tmp_path_factory.mktemp("million") / "million"
    (folder / "train").mkdir(parents=True)
    file = BytesIO()
    Image.fromarray(np.arange(48, dtype=np.uint8).reshape(4, 4, 3)).save(file, "PNG")
    rows, shards = 1_281_167, 550
    ends = [rows * shard // shards for shard in range(shards + 1)]
    for shard, (start, stop) in enumerate(zip(ends[:-1], ends[1:], strict=True)):
        numbers = np.arange(start, stop)
        values = {
            "path": [f"train/n{n // 1300:08d}/{n:08d}.JPEG" for n in numbers],
            "image": [file.getvalue()] * len(numbers),
        }
        values |= {"label": numbers // 1300, "holdout": np.linspace(0, 1, len(numbers))}
        values["crc32"] = [zlib.crc32(file.getvalue())] * len(numbers)
        arrays = {name: pa.array(values[name], kind) for name, kind in COLUMNS["images"].items()}
        write_columns(folder / f"train/shard-{shard:05d}.arrow", arrays)
    splits = {"train": {"count": rows, "shards": shards, "content": "0" * 64}}
    card = {"name": "toy", "kind": "images", "format": "image_folder", "classes": [str(n) for n in range(1000)]}
    store.write_card(folder, {**card, "splits": splits, "mean": [0.5] * 3, "std": [0.2] * 3, "skipped": []})
    return folder
