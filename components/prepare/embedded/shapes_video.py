"""*shapes_video*: clips of solids that pass before each other, with exact masks, in DAVIS-2017's layout."""

from dataclasses import replace
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from components.prepare.embedded import vacant
from components.prepare.embedded.rays import Ids, identify
from components.prepare.embedded.render import KEY_LIGHT, picture
from components.prepare.embedded.world import COLOURS, MATERIALS, SHAPES, SIZES, Camera, Solid, near

WIDTH, HEIGHT = 192, 128
_CAMERA: Final = (6.0, -5.2, 3.2)  # nearer and lower than in the scenes: larger solids, which hide more of each other
_ACROSS: Final = (0.655, 0.756)  # ground directions to the right of that camera and away from it
_BEHIND: Final = (-0.756, 0.655)
_GAP: Final = 0.15  # between the lanes of two solids, which therefore never touch
_PIXELS: Final = 100  # least that each solid shows in the first frame
_HIDDEN_AT_FIRST: Final = 0.05  # largest share of any solid that others hide in the first frame
_HIDDEN: Final = 0.5  # share of some solid that others hide in some frame

Frame = tuple[Camera, list[Solid]]


def generate(folder: Path, *, clips: int, seed: int) -> None:
    """Writes `clips` clips of 16 to 24 frames of 192×128 pixels with 2 to 4 solids into the new or empty `folder`.

    A mask holds the id that the ray through each pixel's middle meets: 0 the ground, 1 to O the solids. The first frame
    shows every solid; later some solid is at least half hidden. Raises ValueError for a bad number or a folder in use.
    """
    if clips < 1:
        raise ValueError(f"clips is {clips}; it must be at least 1; make it larger")
    vacant(folder)
    names = [f"clip_{index:02d}" for index in range(clips)]
    for index, name in enumerate(names):
        rng = np.random.default_rng([seed, index])
        frames, masks = film(rng, solids=2 + index % 3)
        lamp = near(rng, KEY_LIGHT, 1.0)
        images, annotations = folder / "JPEGImages" / "480p" / name, folder / "Annotations" / "480p" / name
        images.mkdir(parents=True)
        annotations.mkdir(parents=True)
        for number, ((camera, solids), ids) in enumerate(zip(frames, masks, strict=True)):
            Image.fromarray(picture(camera, solids, lamp)).save(images / f"{number:05d}.jpg", quality=95)
            mask = Image.fromarray(ids)
            mask.putpalette(_palette())
            mask.save(annotations / f"{number:05d}.png")
    listing = folder / "ImageSets" / "2017" / "val.txt"
    listing.parent.mkdir(parents=True)
    listing.write_text("".join(f"{name}\n" for name in names), encoding="utf-8")


def film(rng: np.random.Generator, solids: int) -> tuple[list[Frame], list[Ids]]:
    """The frames of a clip in which solids hide each other, and their masks [H, W]."""
    while True:
        frames = _motion(rng, solids, length=int(rng.integers(16, 25)))
        masks = [identify(camera, cast)[0] for camera, cast in frames]
        shown = np.array([np.bincount(mask.ravel(), minlength=solids + 1)[1:] for mask in masks])
        whole = np.array([[np.count_nonzero(identify(camera, [one])[0]) for one in cast] for camera, cast in frames])
        hidden = 1 - shown / np.maximum(whole, 1)
        if shown[0].min() >= _PIXELS and hidden[0].max() <= _HIDDEN_AT_FIRST and hidden.max() >= _HIDDEN:
            return frames, masks


def _motion(rng: np.random.Generator, solids: int, length: int) -> list[Frame]:
    """Solids that cross the view in lanes, neighbours in opposite directions, while they turn and the camera drifts."""
    colours = rng.permutation(tuple(COLOURS))
    cast = [
        Solid(
            shape=SHAPES[rng.integers(len(SHAPES))],
            size=tuple(SIZES)[rng.integers(len(SIZES))],
            color=str(colours[number]),
            material=MATERIALS[rng.integers(len(MATERIALS))],
            x=0.0,
            y=0.0,
            rotation=rng.uniform(0, 360),
        )
        for number in range(solids)
    ]
    lanes = _lanes(cast)
    sides = np.where((np.arange(solids) + rng.integers(2)) % 2 == 0, -1.0, 1.0)
    starts, ends = sides * rng.uniform(0.9, 2.0, solids), -sides * rng.uniform(0.6, 2.0, solids)
    turns = rng.uniform(-150, 150, solids)
    first, last = near(rng, _CAMERA, 0.3), near(rng, _CAMERA, 0.3)
    frames = []
    for progress in np.linspace(0, 1, length):
        x, y, z = (start + (end - start) * float(progress) for start, end in zip(first, last, strict=True))
        offsets = starts + (ends - starts) * progress
        placed = [
            replace(
                solid,
                x=float(offset * _ACROSS[0] + lane * _BEHIND[0]),
                y=float(offset * _ACROSS[1] + lane * _BEHIND[1]),
                rotation=float(solid.rotation + turn * progress),
            )
            for solid, offset, lane, turn in zip(cast, offsets, lanes, turns, strict=True)
        ]
        frames.append((Camera((x, y, z), (0.0, 0.0, 0.5), WIDTH, HEIGHT), placed))
    return frames


def _lanes(cast: list[Solid]) -> NDArray[np.float64]:
    """How far behind the middle each solid's lane lies: just far enough apart for the solids to pass."""
    lanes = [0.0]
    for one, other in zip(cast[:-1], cast[1:], strict=True):
        lanes.append(lanes[-1] + one.footprint + other.footprint + _GAP)
    return np.array(lanes) - lanes[-1] / 2


def _palette() -> list[int]:
    """Colours of the ids 0 to 255, told apart by their bits as in VOC's palette; only for people who look at a mask."""
    return [
        sum((number >> (3 * place + channel) & 1) << (7 - place) for place in range(3))
        for number in range(256)
        for channel in range(3)
    ]
