"""A prepared video dataset made of arrays, and a small encoder file."""

from collections.abc import Callable, Mapping, Sequence
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from components.images import store
from components.mim import weights
from components.mim.encoder import Encoder, EncoderConfig

Array = NDArray[np.uint8]
Frame = tuple[Array, bytes]  # picture [H,W,3], mask as PNG bytes or b""
MakeDataset = Callable[..., Path]
MakeMask = Callable[[Array, str], bytes]


@pytest.fixture
def png() -> MakeMask:
    """Makes a mask file: mode P with some palette, L, or 1."""

    def make(values: Array, mode: str) -> bytes:
        image = Image.fromarray(values)
        if mode == "P":
            image.putpalette([7 * value % 256 for value in range(768)])
        stream = BytesIO()
        (image.convert("1") if mode == "1" else image).save(stream, format="PNG")
        return stream.getvalue()

    return make


def lossless(picture: Array) -> bytes:
    stream = BytesIO()
    Image.fromarray(picture).save(stream, format="PNG")
    return stream.getvalue()


@pytest.fixture
def make_dataset(tmp_path: Path) -> MakeDataset:
    """Writes a prepared dataset of kind video; frame n of a clip is named 5n, as a file's name need not be its number."""

    def make(clips: Mapping[str, Sequence[Frame]], name: str = "toy") -> Path:
        rows = [
            {
                "path": f"JPEGImages/480p/{clip}/{5 * number:05d}.jpg",
                "image": lossless(picture),
                "sequence": clip,
                "frame": number,
                "mask": mask,
            }
            for clip, frames in clips.items()
            for number, (picture, mask) in enumerate(frames)
        ]
        folder = tmp_path / "prepared" / name
        splits = store.write(folder, "video", {"val": rows}, 16)
        about = {"name": name, "kind": "video", "format": "davis", "classes": [], "skipped": []}
        store.write_card(folder, {**about, "splits": splits, "mean": [0.5] * 3, "std": [0.2] * 3})
        return folder

    return make


@pytest.fixture
def encoder_file(tmp_path: Path) -> Path:
    """Weights drawn from seed 1 in a file that records seed 2, so that pretrained and untrained differ."""
    encoder = Encoder(EncoderConfig(image_size=16, patch_size=4, width=32, layers=2, heads=2))
    weights.initialise(encoder, 1, "fan_in")
    weights.save(tmp_path / "encoder.safetensors", encoder, {"seed": 2, "weight_init": "fan_in"})
    return tmp_path / "encoder.safetensors"
