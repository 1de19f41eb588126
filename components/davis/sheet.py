"""A sheet to look at: what the encoder followed, what the baselines made of the same video, and what is true."""

from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from components.davis import results
from components.davis.following import FOLLOWERS
from components.davis.judging import Score
from components.davis.palette import PALETTE
from components.davis.scores import boundary
from components.davis.sequence import Sequence

FRAMES = 3
"""Of the encoder's prediction; the baselines show the last one of them."""
CELL = (214, 120)
TITLE = 22
MOST, STACK = 40, 16
"""Sequences at most, spread over all; and rows before a second block begins beside them."""
COLOURS = np.array(PALETTE, dtype=np.float32).reshape(-1, 3)


def draw(sequences: list[Sequence], masks: Path, table: list[Score]) -> Image.Image:
    """One row per sequence: predicted objects in colour, true outlines in white, J&F of the sequence.

    `masks` holds the predictions as `<follower>/<sequence>/<frame>.png`, `table` their scores.
    """
    shown = [sequences[place] for place in _spread(len(sequences), MOST)]
    blocks = -(-len(shown) // STACK)
    rows, tiles = -(-len(shown) // blocks), FRAMES + len(FOLLOWERS) - 1
    width, gap = tiles * CELL[0], 8
    sheet = Image.new("RGB", (blocks * (width + gap) - gap, TITLE + rows * CELL[1]))
    note = f"{len(shown)} of {len(sequences)} sequences. Colour: followed; white: true outline; number: J&F of the sequence"
    _write(sheet, (6, 3), note)
    for number, sequence in enumerate(shown):
        block, row = divmod(number, rows)
        for column, tile in enumerate(_row(sequence, masks, table)):
            left, top = block * (width + gap) + column * CELL[0], TITLE + row * CELL[1]
            sheet.paste(tile, (left, top))
    return sheet


def _row(sequence: Sequence, masks: Path, table: list[Score]) -> list[Image.Image]:
    frames = [sequence.scored[place] for place in _spread(len(sequence.scored), FRAMES)]
    views = [(FOLLOWERS[0], frame) for frame in frames] + [(baseline, frames[-1]) for baseline in FOLLOWERS[1:]]
    tiles = []
    for follower, frame in views:
        own = [score for score in table if (score.encoder, score.sequence) == (follower, sequence.name)]
        tile = _tile(sequence, frame, masks / follower / sequence.name)
        _write(tile, (4, 2), f"{sequence.name} {frame}" if follower == FOLLOWERS[0] else follower)
        _write(tile, (4, CELL[1] - 18), f"{results.means(own)['jf_mean']:.1f}")
        tiles.append(tile)
    return tiles


def _spread(count: int, most: int) -> list[int]:
    """At most `most` places of `count`, first and last among them."""
    return sorted({int(place) for place in np.linspace(0, count - 1, most).round()})


def _tile(sequence: Sequence, frame: int, masks: Path) -> Image.Image:
    scale = min(CELL[0] / sequence.size[1], CELL[1] / sequence.size[0])
    size = max(round(sequence.size[1] * scale), 1), max(round(sequence.size[0] * scale), 1)
    with Image.open(masks / f"{sequence.paths[frame].stem}.png") as image:
        predicted_HW = np.array(image.resize(size, Image.Resampling.NEAREST))
    truth_HW = np.array(Image.fromarray(sequence.truth(frame)).resize(size, Image.Resampling.NEAREST))
    pixels_HW3 = np.array(sequence.image(frame).resize(size, Image.Resampling.BICUBIC), dtype=np.float32)
    covered_HW = predicted_HW > 0
    pixels_HW3[covered_HW] = 0.45 * pixels_HW3[covered_HW] + 0.55 * COLOURS[predicted_HW[covered_HW]]
    for label in range(1, sequence.objects + 1):
        pixels_HW3[boundary(truth_HW == label)] = 255
    tile = Image.new("RGB", CELL)
    tile.paste(Image.fromarray(pixels_HW3.astype(np.uint8)))
    return tile


def _write(image: Image.Image, place: tuple[int, int], text: str) -> None:
    font = ImageFont.load_default(13)
    ImageDraw.Draw(image).text(place, text, fill="white", font=font, stroke_width=1, stroke_fill="black")
