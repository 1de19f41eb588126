"""Reader of CLEVR v1.0's layout: `images/<split>/*.png` and `scenes/CLEVR_<split>_scenes.json`."""

import json
from typing import Any, NamedTuple

from components.prepare.published import Release, Size
from components.prepare.readers import Item, Listing, find_root, is_image, item
from components.prepare.tree import Tree

LAYOUT = "images/{train,val}/*.png and scenes/CLEVR_{train,val}_scenes.json, or a folder or zip CLEVR_v1.0 with these"
PUBLISHED: list[Release] = [{"train": Size(0, 70_000), "val": Size(0, 15_000)}]


class _Scene(NamedTuple):
    image: str
    objects: int
    distance: float


def read(tree: Tree) -> Listing:
    """Splits train and val, whichever are there; CLEVR's test images have no scenes and stay out.

    `count` is the number of objects and `distance` that of the nearest one, min pixel_coords[2] (VTAB's tasks). Raises
    ValueError when images and scenes don't match one to one.
    """
    root = find_root(tree, "CLEVR_v1.0", "images")
    splits = [split for split in ("train", "val") if root and f"images/{split}" in root.folders]
    if root is None or not splits:
        raise ValueError(f"{str(tree.source)!r} has no images/train or images/val; CLEVR is laid out as {LAYOUT}")
    return Listing(root.files, "scenes", [], {split: _items(root, split) for split in splits}, root.stamp)


def _items(root: Tree, split: str) -> list[Item]:
    path, folder = f"scenes/CLEVR_{split}_scenes.json", f"images/{split}"
    scenes = sorted(_scenes(root, path))
    names = [scene.image for scene in scenes]
    where = repr(root.where(path))
    images = {name for name in root.under(folder).entries if "/" not in name and is_image(name)}
    twice = next((name for name, after in zip(names, names[1:], strict=False) if name == after), None)
    if twice is not None:
        raise ValueError(f"{where} has two scenes of image {twice!r}; an image has one scene: remove the other")
    for name in sorted(images.symmetric_difference(names)):
        lacks = "has no scene" if name in images else "has a scene but is no file"
        raise ValueError(
            f"image '{folder}/{name}' {lacks}: {folder} holds {len(images)} images and {where} "
            f"{len(names)} scenes; they must match one to one: unpack the archive again"
        )
    return [
        item(root, f"{folder}/{image}", {"count": objects, "distance": distance}) for image, objects, distance in scenes
    ]


def _scenes(root: Tree, path: str) -> list[_Scene]:
    """Scenes of one file, each cut down as soon as it is parsed: whole, CLEVR's 70,000 would take gigabytes."""
    where = repr(root.where(path))
    if path not in root.entries:
        raise ValueError(f"{where} is missing; each split of CLEVR has its scenes file there")
    try:
        scenes = json.loads(root.read(path), object_hook=_cut).get("scenes")
    except (json.JSONDecodeError, UnicodeDecodeError, AttributeError) as error:
        raise ValueError(f"{where} is no CLEVR scenes file: {error}; unpack the archive again") from error
    if not scenes or not all(isinstance(scene, _Scene) for scene in scenes):
        raise ValueError(
            f"{where} must hold 'scenes', each with 'image_filename' and with 'objects' that have three "
            f"'pixel_coords' (the third is the distance); unpack the archive again"
        )
    return list(scenes)


def _cut(value: dict[str, Any]) -> Any:
    """A scene as `_Scene`, all other JSON objects as they are; a malformed scene stays one and `_scenes` reports it."""
    try:
        distances = [item["pixel_coords"][2] for item in value["objects"]]
        return _Scene(value["image_filename"], len(distances), float(min(distances)))
    except (KeyError, IndexError, TypeError, ValueError):
        return value
