"""Object ids as palette PNGs, the format that DAVIS and its official tool exchange."""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

Ids = NDArray[np.uint8]


def _colour(index: int) -> tuple[int, int, int]:
    """DAVIS' colour of one id: its bits dealt to R, G, B from the highest bit down (as PASCAL VOC does); greys from 22 on."""
    if index >= 22:
        return index, index, index
    red, green, blue = (
        sum((index >> (3 * row + channel) & 1) << (7 - row) for row in range(2)) for channel in range(3)
    )
    return min(red, 191), min(green, 191), min(blue, 191)  # DAVIS has 191 where VOC has 192


PALETTE = [value for index in range(256) for value in _colour(index)]


def write_ids(path: Path, ids_HW: Ids) -> None:
    """Writes a P-mode PNG with DAVIS' palette."""
    image = Image.fromarray(ids_HW)
    image.putpalette(PALETTE)
    image.save(path, format="PNG")
