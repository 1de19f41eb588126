"""The world of the embedded scenes and clips: solids on a ground plane (z = 0) seen by a pinhole camera.

Lengths are in the scene format's units: solids of half size 0.35 or 0.7 within [-3, 3]², the camera about 11 away.
"""

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np
from numpy.typing import NDArray

SHAPES: Final = ("cube", "sphere", "cylinder")
MATERIALS: Final = ("rubber", "metal")
SIZES: Final = {"small": 0.35, "large": 0.7}
COLOURS: Final = {
    "gray": (87, 87, 87),
    "red": (173, 35, 35),
    "blue": (42, 75, 215),
    "green": (29, 105, 20),
    "brown": (129, 74, 25),
    "purple": (129, 38, 192),
    "cyan": (41, 208, 208),
    "yellow": (255, 238, 51),
}
_CUBE: Final = np.array([[(-1.0, 1.0)[number >> axis & 1] for number in range(8)] for axis in range(3)])
_HALF_WIDTH: Final = 16 / 35  # tangent of half the horizontal field of view: a 35 mm lens before a 32 mm sensor


@dataclass(frozen=True)
class Solid:
    """One object standing on the ground; `rotation` about the vertical is in degrees."""

    shape: str
    size: str
    color: str
    material: str
    x: float
    y: float
    rotation: float

    @property
    def half(self) -> float:
        """Half of the extent along every axis: radius, half edge or half height."""
        return SIZES[self.size]

    @property
    def centre(self) -> tuple[float, float, float]:
        """Centre in world coordinates."""
        return (self.x, self.y, self.half)

    @property
    def footprint(self) -> float:
        """Radius of the circle on the ground that holds the solid at any rotation."""
        return self.half * (math.sqrt(2) if self.shape == "cube" else 1.0)

    @cached_property
    def corners(self) -> NDArray[np.float64]:
        """Corners of a box around the solid, [3, 8]."""
        across, along, up = _CUBE * self.half
        sin, cos = math.sin(math.radians(self.rotation)), math.cos(math.radians(self.rotation))
        x, y, z = self.centre
        return np.array([x + cos * across - sin * along, y + sin * across + cos * along, z + up])


@dataclass(frozen=True)
class Camera:
    """A pinhole camera at `position` that looks at `target`, upright; `width` and `height` in pixels."""

    position: tuple[float, float, float]
    target: tuple[float, float, float]
    width: int
    height: int

    @cached_property
    def axes(self) -> NDArray[np.float64]:
        """Unit vectors right, up and forward as rows, [3, 3]."""
        x, y, z = (ahead - here for ahead, here in zip(self.target, self.position, strict=True))
        flat, far = math.hypot(x, y), math.hypot(x, y, z)
        right, up = (y / flat, -x / flat, 0.0), (-x * z / flat / far, -y * z / flat / far, flat / far)
        return np.array([right, up, (x / far, y / far, z / far)])

    def project(self, points: NDArray[np.float64]) -> NDArray[np.float64]:
        """World points [3, n] as pixel x and y (0 at the left and top edge) and depth along the camera's axis."""
        away = points - np.array(self.position)[:, None]
        right, up, depth = (axis[0] * away[0] + axis[1] * away[1] + axis[2] * away[2] for axis in self.axes)
        focal = self.width / 2 / _HALF_WIDTH
        return np.stack([self.width / 2 + focal * right / depth, self.height / 2 - focal * up / depth, depth])

    def rays(self, samples: int) -> NDArray[np.float32]:
        """Directions [3, H·samples, W·samples] through the middles of a regular grid, of length 1 along the axis.

        So the parameter of a ray is the depth that `project` returns.
        """
        scale = 2 * _HALF_WIDTH / self.width
        across = ((np.arange(self.width * samples) + 0.5) / samples - self.width / 2) * scale
        upward = (self.height / 2 - (np.arange(self.height * samples) + 0.5) / samples) * scale
        right, up, forward = self.axes[:, :, None, None]
        rows, columns = up * upward[None, :, None], forward + right * across[None, None, :]
        return np.asarray(rows.astype(np.float32) + columns.astype(np.float32))

    def directions(self) -> dict[str, list[float]]:
        """What right, left, behind, front, above and below mean in this view: unit vectors on the ground, and ±z."""
        right, _, forward = self.axes
        behind = np.array([forward[0], forward[1], 0.0]) / math.hypot(forward[0], forward[1])
        above = np.array([0.0, 0.0, 1.0])
        pairs = (("right", "left", right), ("behind", "front", behind), ("above", "below", above))
        named = {name: sign * axis for one, other, axis in pairs for name, sign in ((one, 1), (other, -1))}
        return {name: [float(part) + 0.0 for part in vector.round(9)] for name, vector in named.items()}


def near(rng: np.random.Generator, point: tuple[float, float, float], reach: float) -> tuple[float, float, float]:
    """A point drawn evenly from the cube of half edge `reach` around `point`."""
    x, y, z = (float(value + offset) for value, offset in zip(point, rng.uniform(-reach, reach, 3), strict=True))
    return x, y, z
