"""Palette PNGs as DAVIS writes them."""

from pathlib import Path

import numpy as np
from PIL import Image

from components.davis.annotation import read_values
from components.davis.palette import PALETTE, write_ids

# The first colours of DAVIS' own masks; 191 where PASCAL VOC has 192.
DAVIS = [
    *((0, 0, 0), (128, 0, 0), (0, 128, 0), (128, 128, 0), (0, 0, 128), (128, 0, 128), (0, 128, 128), (128, 128, 128)),
    *((64, 0, 0), (191, 0, 0), (64, 128, 0), (191, 128, 0), (64, 0, 128), (191, 0, 128), (64, 128, 128)),
    *((191, 128, 128), (0, 64, 0), (128, 64, 0), (0, 191, 0), (128, 191, 0), (0, 64, 128), (128, 64, 128)),
    *((22, 22, 22), (23, 23, 23)),
]


def test_colours_are_those_of_davis() -> None:
    colours = list(zip(PALETTE[::3], PALETTE[1::3], PALETTE[2::3], strict=True))
    assert colours[:24] == DAVIS
    assert colours[255] == (255, 255, 255)
    assert len(set(colours)) >= 255  # grey 128 is in both halves


def test_file_holds_ids_and_palette(tmp_path: Path) -> None:
    ids_HW = np.arange(12, dtype=np.uint8).reshape(3, 4)
    write_ids(tmp_path / "00000.png", ids_HW)
    with Image.open(tmp_path / "00000.png") as image:
        assert (image.mode, image.size) == ("P", (4, 3))
        assert np.array_equal(np.array(image), ids_HW)
        assert np.array_equal(np.array(image.convert("RGB")).reshape(-1, 3), DAVIS[:12])
    values_HW, palette = read_values((tmp_path / "00000.png").read_bytes(), "00000.png")
    assert palette
    assert np.array_equal(values_HW, ids_HW)
