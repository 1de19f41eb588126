"""A sheet to look at: what the pretrained encoder followed, and what it should have."""

from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw

from components.davis.palette import PALETTE
from components.davis.scores import boundary
from components.davis.sequence import Sequence

COLUMNS = 4
TILE_HEIGHT = 160
COLOURS = np.array(PALETTE, dtype=np.float32).reshape(-1, 3)


def draw(sequences: list[Sequence], masks: Path) -> Image.Image:
    """One row per sequence, frames spread over those scored: predicted objects in colour, true outlines in white.

    `masks` holds the predictions as `<sequence>/<frame>.png`.
    """
    rows = [[_tile(sequence, frame, masks) for frame in _spread(sequence.scored)] for sequence in sequences]
    width = max(sum(tile.width for tile in row) for row in rows)
    sheet = Image.new("RGB", (width, TILE_HEIGHT * len(rows)))
    for number, row in enumerate(rows):
        left = 0
        for tile in row:
            sheet.paste(tile, (left, number * TILE_HEIGHT))
            left += tile.width
    return sheet


def _spread(frames: list[int]) -> list[int]:
    return [frames[place] for place in sorted(set(np.linspace(0, len(frames) - 1, COLUMNS).round().astype(int)))]


def _tile(sequence: Sequence, frame: int, masks: Path) -> Image.Image:
    size = round(sequence.size[1] * TILE_HEIGHT / sequence.size[0]), TILE_HEIGHT
    with Image.open(masks / sequence.name / f"{sequence.paths[frame].stem}.png") as image:
        predicted_HW = np.array(image.resize(size, Image.Resampling.NEAREST))
    truth_HW = np.array(Image.fromarray(sequence.truth(frame)).resize(size, Image.Resampling.NEAREST))
    pixels_HW3 = np.array(sequence.image(frame).resize(size, Image.Resampling.BICUBIC), dtype=np.float32)
    covered_HW = predicted_HW > 0
    pixels_HW3[covered_HW] = 0.45 * pixels_HW3[covered_HW] + 0.55 * COLOURS[predicted_HW[covered_HW]]
    for label in range(1, sequence.objects + 1):
        pixels_HW3[boundary(truth_HW == label)] = 255
    tile = Image.fromarray(pixels_HW3.astype(np.uint8))
    ImageDraw.Draw(tile).text(
        (4, 2), f"{sequence.name}, frame {frame}", fill="white", stroke_width=1, stroke_fill="black"
    )
    return tile
