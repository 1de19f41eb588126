"""The picture of solids on a grey ground: soft shadows, contact shading, matte rubber and mirror-like metal."""

from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from components.prepare.embedded.rays import (
    Floats,
    Ids,
    column,
    crossing,
    dot,
    identify,
    into,
    length,
    out_of,
    region_of,
)
from components.prepare.embedded.world import COLOURS, Camera, Solid

KEY_LIGHT: Final = (-0.8, -5.5, 8.5)  # to the left of the camera and above it: shadows fall to the right and back
_FILL_LIGHT: Final = (9.0, 1.0, 5.0)
_SAMPLES: Final = 2  # rays per pixel along each axis, each lit by its own corner of the square key light
_LAMP: Final = column((0.6, 0.6, 0)) * np.array([[[-1, 1], [-1, 1]], [[-1, -1], [1, 1]], [[0, 0], [0, 0]]], np.float32)
_NEAR: Final = np.array([[4.0], [4.0], [2.5]])  # half sizes within which a solid darkens things by a grey level or more
_GROUND: Final = 0.36  # linear reflectance


def picture(camera: Camera, solids: Sequence[Solid], lamp: tuple[float, float, float]) -> NDArray[np.uint8]:
    """RGB [H, W, 3] under a key light at `lamp`, which casts shadows, and a fixed fill light, which doesn't."""
    rays = camera.rays(_SAMPLES)
    ids, depth = identify(camera, solids, _SAMPLES)
    points = rays * depth + column(camera.position)
    normals = _normals(solids, ids, points)
    colours = [(_GROUND,) * 3, *([(part / 255) ** 2 for part in COLOURS[solid.color]] for solid in solids)]
    albedo = np.array(colours, np.float32).T.take(ids, 1)
    lamps = np.tile(column(lamp) + _LAMP, (1, camera.height, camera.width))
    lit, sky = _shadows(camera, solids, points, lamps), _open_sky(camera, solids, points, normals)
    key, to_key = _light(points, normals, lamps, 105.0)
    fill, to_fill = _light(points, normals, column(_FILL_LIGHT), 17.0)
    ambient = np.float32(0.24) + np.float32(0.12) * normals[2]
    colour = albedo * (key * lit + (fill + ambient) * sky)

    seen = np.flatnonzero(ids)  # only the solids shine
    mirror, own = _mirror(_pick(rays, seen), _pick(normals, seen)), _pick(albedo, seen)
    shine = lit.take(seen) * _shine(mirror, _pick(to_key, seen))
    shine += np.float32(0.4) * _shine(mirror, _pick(to_fill, seen))
    reflection = (np.float32(0.9) * own + np.float32(0.03)) * (_surroundings(mirror) * sky.take(seen))
    dull = _pick(colour, seen)
    metal = np.array([False, *(solid.material == "metal" for solid in solids)])[ids.take(seen)]
    shiny = np.where(metal, np.float32(0.4) * dull + reflection + shine, dull + np.float32(0.04) * shine)
    colour.reshape(3, -1)[:, seen] = shiny
    return _develop(colour)


def _normals(solids: Sequence[Solid], ids: Ids, points: Floats) -> Floats:
    """Unit normals of the surfaces that rays meet, [3, H, W]."""
    normals = np.broadcast_to(column((0, 0, 1)), points.shape).copy()
    for number, solid in enumerate(solids, start=1):
        seen = np.flatnonzero(ids == number)
        place = into(solid, _pick(points, seen) - column(solid.centre)[:, 0])
        normals.reshape(3, -1)[:, seen] = out_of(solid, _normal(solid.shape, place))
    return normals


def _pick(vectors: Floats, where: NDArray[np.intp]) -> Floats:
    """The vectors [3, n] of a picture [3, H, W] at flat positions."""
    return vectors.reshape(3, -1).take(where, 1)


def _normal(shape: str, place: Floats) -> Floats:
    """Unit normals at points [3, n] of a unit solid; near edges they turn as if the edge was rounded."""
    if shape == "sphere":
        return _unit(place)
    if shape == "cylinder":
        side = place[0] * place[0] + place[1] * place[1]
        return _unit(np.stack([place[0] * _eighth(side), place[1] * _eighth(side), place[2] * _eighth(place[2] ** 2)]))
    return _unit(place * _eighth(place * place))


def _eighth(value: Floats) -> Floats:
    """The eighth power."""
    value = value * value
    value = value * value
    return value * value


def _unit(vectors: Floats) -> Floats:
    return vectors / length(vectors)


def _light(points: Floats, normals: Floats, lamps: Floats, power: float) -> tuple[Floats, Floats]:
    """Light that falls in from `lamps` [H, W] and the unit vectors towards them [3, H, W]."""
    towards = lamps - points
    away = length(towards)
    towards = towards / away
    return np.maximum(dot(normals, towards), np.float32(0)) * (np.float32(power) / (away * away)), towards


def _shadows(camera: Camera, solids: Sequence[Solid], points: Floats, lamps: Floats) -> Floats:
    """1 where the key light reaches a point and 0 where a solid stands between, [H, W]."""
    lit = np.ones(points.shape[1:], np.float32)
    bulbs = lamps[:, :_SAMPLES, :_SAMPLES].reshape(3, 4, 1).astype(np.float64)
    for solid in solids:
        tops = solid.corners[:, None, :]
        on_ground = tops + (tops - bulbs) * (tops[2] / (bulbs[2] - tops[2]))
        region = region_of(camera, np.concatenate([solid.corners, on_ground.reshape(3, -1)], axis=1), _SAMPLES)
        place = points[:, *region]
        start = into(solid, place - column(solid.centre))
        near, far = crossing(solid.shape, start, into(solid, lamps[:, *region] - place))
        lit[region][(near < far) & (far > np.float32(1e-3))] = 0  # a ray that starts on the solid itself leaves at 0
    return lit


def _open_sky(camera: Camera, solids: Sequence[Solid], points: Floats, normals: Floats) -> Floats:
    """How much of the light from all around reaches a point, [H, W]; solids count as the balls inside them."""
    sky = np.ones(points.shape[1:], np.float32)
    for solid in solids:
        centre = np.array(solid.centre)[:, None]
        region = region_of(
            camera, centre + 4 * (solid.corners - centre), _SAMPLES
        )  # further off it's under a grey level
        towards = column(solid.centre) - points[:, *region]
        squared = dot(towards, towards)
        facing = np.maximum(dot(normals[:, *region], towards), np.float32(0)) / np.sqrt(squared)
        sky[region] *= np.float32(1) - facing * (np.float32(0.9 * solid.half**2) / squared)
    return sky


def _mirror(rays: Floats, normals: Floats) -> Floats:
    """Unit directions of rays reflected at surfaces."""
    rays = _unit(rays)
    return rays - np.float32(2) * dot(rays, normals) * normals


def _shine(mirror: Floats, towards: Floats) -> Floats:
    """Highlight of a lamp, by Phong's rule with exponent 32."""
    aligned = np.maximum(dot(mirror, towards), np.float32(0))
    aligned = aligned * aligned
    return _eighth(aligned * aligned)


def _surroundings(mirror: Floats) -> Floats:
    """Brightness that a mirror shows: the ground below, a dark horizon, a bright ceiling."""
    up = mirror[2]
    below, above = np.float32(0.45) + np.float32(0.25) * up, np.float32(0.12) + np.float32(1.1) * up
    return np.asarray(np.where(up > 0, above, below), np.float32)


def _develop(colour: Floats) -> NDArray[np.uint8]:
    """Linear light [3, H·samples, W·samples] as bytes [H, W, 3], averaged over each pixel, with gamma 2."""
    rows = colour[:, ::2] + colour[:, 1::2]
    light = (rows[:, :, ::2] + rows[:, :, 1::2]) * np.float32(0.25)
    shades = np.sqrt(np.clip(light, 0, 1)) * np.float32(255) + np.float32(0.5)
    return np.ascontiguousarray(shades.astype(np.uint8).transpose(1, 2, 0))
