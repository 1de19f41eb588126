"""The ray tracer against closed forms and against marching along single rays with a point-in-solid test."""

import math

import numpy as np
import pytest

from components.prepare.embedded.rays import identify
from components.prepare.embedded.render import KEY_LIGHT, picture
from components.prepare.embedded.world import MATERIALS, Camera, Solid

CAMERA = Camera((7.5, -6.5, 5.3), (0.0, 0.0, 0.35), 96, 64)
CROWD = [
    Solid("cube", "large", "red", "metal", 0.3, -1.2, 33.0),
    Solid("cylinder", "large", "blue", "rubber", -1.5, 0.4, 10.0),
    Solid("sphere", "large", "green", "metal", 1.6, 1.1, 0.0),
    Solid("cube", "small", "cyan", "rubber", 2.4, -1.0, 71.0),
    Solid("cylinder", "small", "brown", "metal", -0.2, 1.8, 5.0),
    Solid("sphere", "small", "purple", "rubber", 1.2, -2.6, 0.0),
]


def holds(solid: Solid, points: np.ndarray) -> np.ndarray:
    """Whether points [3, n] lie in the solid."""
    away = ((points[0] - solid.x) + 1j * (points[1] - solid.y)) * np.exp(-1j * math.radians(solid.rotation))
    up = points[2] - solid.half
    if solid.shape == "sphere":
        return abs(away) ** 2 + up**2 < solid.half**2
    flat = abs(away) if solid.shape == "cylinder" else np.maximum(abs(away.real), abs(away.imag))
    return (flat < solid.half) & (abs(up) < solid.half)


def test_identify_equals_marching_along_each_ray():
    ids, depth = identify(CAMERA, CROWD)
    rays = CAMERA.rays(1).astype(np.float64)
    steps = np.arange(5, 20, 0.004)
    rng = np.random.default_rng(0)
    compared = 0
    for row, column in zip(rng.integers(10, 60, 600), rng.integers(8, 90, 600), strict=True):
        points = np.array(CAMERA.position)[:, None] + rays[:, row, column, None] * steps
        inside = np.stack([points[2] < 0, *(holds(solid, points) for solid in CROWD)])
        first = int(np.argmax(inside.any(0)))
        if inside[:, first].any() and (inside[:, first : first + 3].all(1)).any():  # else it grazes an edge
            assert ids[row, column] == np.argmax(inside[:, first]), (row, column)
            assert depth[row, column] == pytest.approx(steps[first], abs=0.005)
            compared += ids[row, column] > 0
    assert compared > 100


def test_project_is_a_35_mm_lens_before_a_32_mm_sensor():
    camera = Camera((0.0, -10.0, 1.0), (0.0, 0.0, 1.0), 96, 64)
    points = np.array([[0.0, 0.0, 1.0], [1.0, 0.0, 1.0], [0.0, 10.0, 3.0]]).T
    focal = 96 * 35 / 32
    expected = [[48, 32, 10], [48 + focal / 10, 32, 10], [48, 32 - focal * 2 / 20, 20]]
    np.testing.assert_allclose(camera.project(points), np.array(expected).T, rtol=1e-12)


def test_depth_of_a_sphere_where_its_centre_appears():
    sphere = Solid("sphere", "large", "red", "rubber", 0.5, 0.5, 0.0)
    camera = Camera(CAMERA.position, sphere.centre, 97, 65)  # odd sizes: a ray through the middle
    distance = math.dist(camera.position, sphere.centre)
    ids, depth = identify(camera, [sphere])
    assert ids[32, 48] == 1
    assert depth[32, 48] == pytest.approx(distance - 0.7, rel=1e-6)
    # The cone of the silhouette has sine r/distance.
    radius = 97 * 35 / 32 * math.tan(math.asin(0.7 / distance))
    assert np.count_nonzero(ids) == pytest.approx(math.pi * radius**2, rel=0.02)


def test_directions_are_a_right_handed_frame_on_the_ground():
    named = {name: np.array(vector) for name, vector in CAMERA.directions().items()}
    for one, other in (("right", "left"), ("behind", "front"), ("above", "below")):
        np.testing.assert_allclose(named[one], -named[other])
    np.testing.assert_allclose(np.cross(named["right"], named["behind"]), named["above"], atol=1e-8)
    target = np.zeros((3, 1))
    here, right, behind = (
        CAMERA.project(target + step[:, None])[:, 0] for step in (0 * named["right"], named["right"], named["behind"])
    )
    assert right[0] > here[0] and right[2] == pytest.approx(here[2])
    assert behind[2] > here[2] and behind[0] == pytest.approx(here[0])


def test_shadow_lies_where_the_lamp_says():
    sphere = Solid("sphere", "large", "red", "rubber", 0.0, 0.0, 0.0)
    centre, lamp = np.array(sphere.centre), np.array(KEY_LIGHT)
    on_ground = centre + (centre - lamp) * centre[2] / (lamp[2] - centre[2])
    opposite = 2 * np.array([0.0, 0.0, 0.0]) - on_ground
    where = CAMERA.project(np.stack([on_ground * 1.6, opposite * 3], axis=1))[:2].astype(int).T
    ids, _ = identify(CAMERA, [sphere])
    bare, shaded = picture(CAMERA, [], KEY_LIGHT).astype(int), picture(CAMERA, [sphere], KEY_LIGHT).astype(int)
    (dark_x, dark_y), (light_x, light_y) = where
    assert ids[dark_y, dark_x] == 0 and ids[light_y, light_x] == 0
    assert shaded[dark_y, dark_x].mean() < 0.8 * bare[dark_y, dark_x].mean()
    assert shaded[light_y, light_x].mean() > 0.95 * bare[light_y, light_x].mean()


def test_metal_shows_highlights_that_rubber_does_not():
    pictures = {}
    for material in MATERIALS:
        solid = Solid("sphere", "large", "blue", material, 0.0, 0.0, 0.0)
        pictures[material] = picture(CAMERA, [solid], KEY_LIGHT)[identify(CAMERA, [solid])[0] == 1].astype(int)
    red = {
        material: seen[:, 0].max() for material, seen in pictures.items()
    }  # a blue surface has little red of its own
    assert red["metal"] > red["rubber"] + 80
