"""*shapes*: ray-traced scenes of 3 to 10 solids in CLEVR v1.0's layout and JSON fields, made from a seed."""

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
from PIL import Image

from components.prepare.embedded import vacant
from components.prepare.embedded.rays import identify
from components.prepare.embedded.render import KEY_LIGHT, picture
from components.prepare.embedded.world import COLOURS, MATERIALS, SHAPES, SIZES, Camera, Solid, near

WIDTH, HEIGHT = 96, 64
_COUNTS: Final = range(3, 11)
_CAMERA: Final = (7.5, -6.5, 5.3)
_EXTENT: Final = 3.0  # centres lie within ± this
_GAP: Final = 0.2  # smallest distance between the circles that hold two solids
_PIXELS: Final = 12  # least that each solid shows: about half of a small one in the far corner
_SIDE: Final = 0.2  # offset from which on a solid stands to the left of, behind, … another: the format's own threshold


def generate(folder: Path, *, scenes: int, seed: int) -> None:
    """Writes `scenes` scenes of 96×64 pixels, three quarters `train`, the rest `val`, into the new or empty `folder`.

    In each split the counts 3 to 10 come equally often (±1). Raises ValueError for a bad number or a folder in use.
    """
    least = 4 * len(_COUNTS)
    if scenes < least:
        raise ValueError(
            f"scenes is {scenes}; it must be at least {least}, so that val holds every count; make it larger"
        )
    vacant(folder)
    train = scenes * 3 // 4
    for number, (split, size) in enumerate((("train", train), ("val", scenes - train)), start=1):
        images = folder / "images" / split
        images.mkdir(parents=True)
        counts = np.random.default_rng([seed, number]).permutation(np.resize(_COUNTS, size))
        records = []
        for index, count in enumerate(counts):
            rng = np.random.default_rng([seed, number, index + 1])  # to numpy [seed, 1] and [seed, 1, 0] are one seed
            camera, solids = arrange(rng, int(count))
            lamp = near(rng, KEY_LIGHT, 1.0)
            name = f"shapes_{split}_{index:06d}.png"
            Image.fromarray(picture(camera, solids, lamp)).save(images / name)
            records.append({"split": split, "image_index": index, "image_filename": name, **describe(camera, solids)})
        info = {
            "split": split,
            "version": "1.0",
            "license": "as the program that made it",
            "date": "any: the seed decides",
        }
        (folder / "scenes").mkdir(exist_ok=True)
        (folder / "scenes" / f"CLEVR_{split}_scenes.json").write_text(
            json.dumps({"info": info, "scenes": records}), encoding="utf-8"
        )


def arrange(rng: np.random.Generator, count: int) -> tuple[Camera, list[Solid]]:
    """A camera and `count` solids that don't touch, with at least 12 pixels of each in view."""
    while True:
        camera = Camera(near(rng, _CAMERA, 0.5), (0.0, 0.0, 0.35), WIDTH, HEIGHT)
        solids = _scatter(rng, count)
        if len(solids) == count:
            seen = np.bincount(identify(camera, solids)[0].ravel(), minlength=count + 1)
            if seen[1:].min() >= _PIXELS:
                return camera, solids


def _scatter(rng: np.random.Generator, count: int) -> list[Solid]:
    """Up to `count` solids at free places: fewer when the ground got too full for the next one."""
    solids: list[Solid] = []
    for _ in range(50 * count):
        solid = Solid(
            shape=SHAPES[rng.integers(len(SHAPES))],
            size=tuple(SIZES)[rng.integers(len(SIZES))],
            color=tuple(COLOURS)[rng.integers(len(COLOURS))],
            material=MATERIALS[rng.integers(len(MATERIALS))],
            x=rng.uniform(-_EXTENT, _EXTENT),
            y=rng.uniform(-_EXTENT, _EXTENT),
            rotation=rng.uniform(0, 360),
        )
        if all(math.hypot(solid.x - o.x, solid.y - o.y) > solid.footprint + o.footprint + _GAP for o in solids):
            solids.append(solid)
        if len(solids) == count:
            break
    return solids


def describe(camera: Camera, solids: Sequence[Solid]) -> dict[str, Any]:
    """`objects`, `relationships` and `directions` of a scene as the format wants them.

    `pixel_coords` are the solid's centre: whole pixels, and the depth along the camera's axis.
    """
    centres = np.array([solid.centre for solid in solids]).T
    across, down, depth = camera.project(centres)
    objects = [
        {
            "shape": solid.shape,
            "size": solid.size,
            "color": solid.color,
            "material": solid.material,
            "rotation": round(solid.rotation, 6),
            "3d_coords": [round(value, 6) for value in solid.centre],
            "pixel_coords": [round(float(across[i])), round(float(down[i])), round(float(depth[i]), 6)],
        }
        for i, solid in enumerate(solids)
    ]
    directions = camera.directions()
    relationships = {}
    for name in ("right", "behind", "front", "left"):
        x, y, _ = directions[name]
        along = x * centres[0] + y * centres[1]
        relationships[name] = [[int(j) for j in np.nonzero(along - own > _SIDE)[0]] for own in along]
    return {"objects": objects, "relationships": relationships, "directions": directions}
