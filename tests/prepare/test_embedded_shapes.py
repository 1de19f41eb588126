"""The scenes: layout and fields, balance, and agreement of the JSON with itself and with the pictures."""

import colorsys
import json
import math
import os
import subprocess
import sys

import numpy as np
import pytest
from PIL import Image

from components.prepare.embedded import shapes
from components.prepare.embedded.rays import identify
from components.prepare.embedded.render import KEY_LIGHT, picture
from components.prepare.embedded.world import COLOURS, MATERIALS, SHAPES, SIZES, Camera, Solid

SCENES = 96
OBJECT = {"shape", "size", "color", "material", "rotation", "3d_coords", "pixel_coords"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("shapes") / "made"
    shapes.generate(path, scenes=SCENES, seed=3)
    return path


@pytest.fixture(scope="module")
def scenes(folder):
    return {split: json.loads((folder / f"scenes/CLEVR_{split}_scenes.json").read_text()) for split in ("train", "val")}


@pytest.fixture(scope="module")
def every(scenes):
    return [scene for split in scenes.values() for scene in split["scenes"]]


def test_layout_and_fields(folder, scenes):
    assert {split: len(file["scenes"]) for split, file in scenes.items()} == {"train": 72, "val": 24}
    for split, file in scenes.items():
        assert set(file) == {"info", "scenes"} and file["info"]["split"] == split
        names = [scene["image_filename"] for scene in file["scenes"]]
        assert names == sorted(path.name for path in (folder / "images" / split).iterdir())
        for index, scene in enumerate(file["scenes"]):
            assert set(scene) == {"split", "image_index", "image_filename", "objects", "relationships", "directions"}
            assert (scene["split"], scene["image_index"]) == (split, index)
            assert all(set(thing) == OBJECT for thing in scene["objects"])
            with Image.open(folder / "images" / split / scene["image_filename"]) as image:
                assert (image.size, image.mode) == ((96, 64), "RGB")


def test_counts_come_equally_often(scenes):
    for split, each in (("train", 9), ("val", 3)):
        counts = [len(scene["objects"]) for scene in scenes[split]["scenes"]]
        assert [counts.count(number) for number in range(3, 11)] == [each] * 8


def test_attributes_are_spread_evenly(every):
    things = [thing for scene in every for thing in scene["objects"]]
    for field, legal in (("shape", SHAPES), ("size", SIZES), ("color", COLOURS), ("material", MATERIALS)):
        shares = [sum(thing[field] == value for thing in things) / len(things) for value in legal]
        assert sum(shares) == pytest.approx(1)
        assert min(shares) > 0.6 / len(legal), field


def test_every_class_of_the_distance_task_is_populated():
    nearest = []
    for index in range(400):
        rng = np.random.default_rng([11, index])
        described = shapes.describe(*shapes.arrange(rng, 3 + index % 8))
        nearest.append(min(thing["pixel_coords"][2] for thing in described["objects"]))
    edges = [0, 8, 8.5, 9, 9.5, 10, 100]
    shares = [np.mean([low < value <= high for value in nearest]) for low, high in zip(edges, edges[1:], strict=False)]
    assert sum(shares) == pytest.approx(1)
    assert min(shares) > 0.05


def test_objects_stand_on_the_ground_inside_and_apart(every):
    for scene in every:
        solids = [(thing, *thing["3d_coords"]) for thing in scene["objects"]]
        for index, (thing, x, y, z) in enumerate(solids):
            assert z == {"large": 0.7, "small": 0.35}[thing["size"]]
            assert max(abs(x), abs(y)) <= 3
            for other, there_x, there_y, there_z in solids[:index]:
                reach = sum(
                    half * (math.sqrt(2) if one["shape"] == "cube" else 1)
                    for one, half in ((thing, z), (other, there_z))
                )
                assert math.hypot(x - there_x, y - there_y) > reach


def test_pixel_coords_are_one_pinhole_view_of_3d_coords(every):
    """From the JSON alone: depth is a unit functional of the place, and x·depth an affine one that fits to a pixel."""
    checked = 0
    for scene in every:
        places = np.array([[*thing["3d_coords"], 1.0] for thing in scene["objects"]])
        if len(places) < 8 or len(set(places[:, 2])) < 2:
            continue
        across, _, depth = np.array([thing["pixel_coords"] for thing in scene["objects"]]).T
        axis, residue, rank, _ = np.linalg.lstsq(places, depth, rcond=None)
        assert rank == 4 and residue[0] < 1e-9
        assert np.linalg.norm(axis[:3]) == pytest.approx(1, abs=1e-4)
        right, behind = np.array(scene["directions"]["right"]), np.array(scene["directions"]["behind"])
        assert axis[:3] @ right == pytest.approx(0, abs=1e-4)
        assert axis[:3] @ behind > 0.8
        sideways = (across - 48) * depth / (96 * 35 / 32) - places[:, :3] @ right  # − right · camera, up to rounding
        assert np.ptp(sideways * (96 * 35 / 32) / depth) < 1.2
        checked += 1
    assert checked >= 20


def test_relationships_follow_from_directions(every):
    for scene in every:
        assert set(scene["relationships"]) == {"right", "left", "front", "behind"}
        places = [np.array(thing["3d_coords"]) for thing in scene["objects"]]
        for name, related in scene["relationships"].items():
            direction = np.array(scene["directions"][name])
            for place, listed in zip(places, related, strict=True):
                assert listed == [other for other, there in enumerate(places) if (there - place) @ direction > 0.2]


def nearest_name(rgb):
    """The named colour of the same hue; gray when there is hardly any."""
    hue, saturation, _ = colorsys.rgb_to_hsv(*rgb / 255)
    if saturation < 0.15:
        return "gray"
    hues = {
        name: colorsys.rgb_to_hsv(*(part / 255 for part in rgb))[0] for name, rgb in COLOURS.items() if name != "gray"
    }
    return min(hues, key=lambda name: min(abs(hues[name] - hue), 1 - abs(hues[name] - hue)))


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("material", MATERIALS)
def test_colours_are_told_apart(shape, material):
    camera = Camera((7.5, -6.5, 5.3), (0.0, 0.0, 0.35), 96, 64)
    for color in COLOURS:
        solid = Solid(shape, "large", color, material, 0.0, 0.0, 20.0)
        seen = picture(camera, [solid], KEY_LIGHT)[identify(camera, [solid])[0] == 1]
        assert nearest_name(np.median(seen, axis=0)) == color


def test_pictures_show_the_colours_where_the_json_says(folder, every):
    right = total = 0
    for scene in every:
        image = np.asarray(Image.open(folder / "images" / scene["split"] / scene["image_filename"])).astype(float)
        for thing in scene["objects"]:
            x, y, depth = thing["pixel_coords"]
            nearer = [other["pixel_coords"] for other in scene["objects"] if other["pixel_coords"][2] < depth]
            if any(math.hypot(there_x - x, there_y - y) < 18 for there_x, there_y, _ in nearer):
                continue  # it may be hidden
            right += nearest_name(image[y - 1 : y + 1, x - 1 : x + 1].reshape(-1, 3).mean(0)) == thing["color"]
            total += 1
    assert total > 200
    assert right / total > 0.97


def test_same_seed_same_bytes_with_any_number_of_threads(tmp_path):
    imports = "import sys, pathlib; from components.prepare.embedded import shapes"
    program = f"{imports}; shapes.generate(pathlib.Path(sys.argv[1]), scenes=32, seed=7)"
    contents = []
    for threads in ("1", "4"):
        made = tmp_path / threads
        environment = {**os.environ, "OMP_NUM_THREADS": threads, "OPENBLAS_NUM_THREADS": threads}
        subprocess.run([sys.executable, "-c", program, str(made)], check=True, env=environment)
        contents.append({path.relative_to(made): path.read_bytes() for path in sorted(made.rglob("*.*"))})
    assert len(contents[0]) == 34
    assert contents[0] == contents[1]
    shapes.generate(tmp_path / "other", scenes=32, seed=8)
    first = "images/train/shapes_train_000000.png"
    assert (tmp_path / "other" / first).read_bytes() != (tmp_path / "1" / first).read_bytes()


def test_bad_input_is_refused_before_anything_is_written(tmp_path):
    with pytest.raises(ValueError, match=r"scenes is 31; it must be at least 32"):
        shapes.generate(tmp_path / "few", scenes=31, seed=0)
    assert not (tmp_path / "few").exists()
    (tmp_path / "old.png").touch()
    with pytest.raises(ValueError, match="is not empty"):
        shapes.generate(tmp_path, scenes=32, seed=0)
    assert [path.name for path in tmp_path.iterdir()] == ["old.png"]
