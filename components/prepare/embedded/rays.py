"""Ray casting in numpy: where rays cross the solids, and which solid each pixel shows.

Here and in `render` arithmetic on rays is elementwise float32 with +, −, ×, ÷ and √ only, which IEEE rounds in one way:
with powers or matrix products the pictures would depend on the CPU's vector width and the number of threads.
"""

import math
from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from components.prepare.embedded.world import Camera, Solid

Floats = NDArray[np.float32]
Ids = NDArray[np.uint8]
Region = tuple[slice, slice]

_FAR: Final = 100.0
_TINY: Final = np.float32(1e-9)  # added to divisors, which it changes only where they are 0


def dot(one: Floats, other: Floats) -> Floats:
    """Scalar product of vectors that lie along the first axis."""
    return np.asarray(one[0] * other[0] + one[1] * other[1] + one[2] * other[2], np.float32)


def length(vectors: Floats) -> Floats:
    """Euclidean length of vectors that lie along the first axis."""
    return np.asarray(np.sqrt(dot(vectors, vectors)), np.float32)


def column(vector: Sequence[float]) -> Floats:
    """One vector as [3, 1, 1], to be combined with a picture of vectors [3, H, W]."""
    return np.array(vector, np.float32)[:, None, None]


def identify(camera: Camera, solids: Sequence[Solid], samples: int = 1) -> tuple[Ids, Floats]:
    """What each ray meets, [H·samples, W·samples]: 0 the ground or k the solid k−1; and the depth of the point met."""
    rays = camera.rays(samples)
    falling = np.minimum(rays[2], np.float32(-camera.position[2] / _FAR))  # a ray above the horizon ends far away
    depth = np.float32(-camera.position[2]) / falling
    ids = np.zeros(depth.shape, np.uint8)
    for number, solid in enumerate(solids, start=1):
        region = region_of(camera, solid.corners, samples)
        start = into(solid, column(camera.position) - column(solid.centre))
        near, far = crossing(solid.shape, start, into(solid, rays[:, *region]))
        nearer = (near < far) & (near > 0) & (near < depth[region])
        depth[region][nearer] = near[nearer]
        ids[region][nearer] = number
    return ids, depth


def region_of(camera: Camera, points: NDArray[np.float64], samples: int) -> Region:
    """The rays that can meet the convex hull of `points` [3, n]; all of them when it reaches beside the camera."""
    across, down, depth = camera.project(points) * samples
    if depth.min() <= 0:
        return slice(None), slice(None)
    left, right = max(0, math.floor(across.min())), max(0, math.ceil(across.max()))
    top, bottom = max(0, math.floor(down.min())), max(0, math.ceil(down.max()))
    return slice(top, bottom), slice(left, right)


def into(solid: Solid, vectors: Floats) -> Floats:
    """World vectors [3, …] in the solid's own axes, where it spans [-1, 1]³; a sphere's are the world's."""
    if solid.shape == "sphere":
        return vectors * np.float32(1 / solid.half)
    return _turn(vectors, -solid.rotation, 1 / solid.half)


def out_of(solid: Solid, vectors: Floats) -> Floats:
    """Directions [3, …] in the solid's own axes as directions in the world."""
    return vectors if solid.shape == "sphere" else _turn(vectors, solid.rotation, 1.0)


def _turn(vectors: Floats, degrees: float, scale: float) -> Floats:
    sin, cos = math.sin(math.radians(degrees)) * scale, math.cos(math.radians(degrees)) * scale
    turned = np.empty_like(vectors)
    turned[0] = vectors[0] * np.float32(cos) - vectors[1] * np.float32(sin)
    turned[1] = vectors[0] * np.float32(sin) + vectors[1] * np.float32(cos)
    turned[2] = vectors[2] * np.float32(scale)
    return turned


def crossing(shape: str, start: Floats, direction: Floats) -> tuple[Floats, Floats]:
    """Ray parameters where rays enter and leave the unit cube, sphere or cylinder; enter ≥ leave where they miss it."""
    if shape == "sphere":
        return _round(dot(direction, direction), dot(start, direction), dot(start, start))
    heights = _slab(start[2], direction[2])
    if shape == "cylinder":
        (sx, sy), (dx, dy) = start[:2], direction[:2]
        sides = _round(dx * dx + dy * dy, sx * dx + sy * dy, sx * sx + sy * sy)
    else:
        sides = _both(_slab(start[0], direction[0]), _slab(start[1], direction[1]))
    return _both(heights, sides)


def _round(squared: Floats, along: Floats, distance: Floats) -> tuple[Floats, Floats]:
    """Crossings of |s + t·d|² = 1, given d·d, s·d and s·s; one and the same point for a miss."""
    squared = squared + _TINY
    root = np.sqrt(np.maximum(along * along - squared * (distance - np.float32(1)), np.float32(0)))
    return (-along - root) / squared, (root - along) / squared


def _slab(start: Floats, direction: Floats) -> tuple[Floats, Floats]:
    """Crossings of |s + t·d| = 1 along one axis."""
    inverse = np.float32(1) / (direction + _TINY)
    middle, reach = -start * inverse, np.abs(inverse)
    return middle - reach, middle + reach


def _both(one: tuple[Floats, Floats], other: tuple[Floats, Floats]) -> tuple[Floats, Floats]:
    return np.maximum(one[0], other[0]), np.minimum(one[1], other[1])
