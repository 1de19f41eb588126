"""Reader of images that carry no labels: any folders, or none, or an archive of such."""

import os

from components import progress
from components.prepare.published import Release
from components.prepare.readers import Listing, in_order, is_image, item, printable
from components.prepare.tree import Tree

LAYOUT = "images (.jpg, .jpeg, .png, .webp, …) anywhere in a folder, a tar or a zip; other files there are counted and left out"
PUBLISHED: list[Release] = []


def read(tree: Tree) -> Listing:
    """One split, train, sorted by path, without classes. A path is `train/` and the name below the folder that holds all images, so
    that other files, an index among them, change no name.

    Files that are no images by their names are counted aloud, so that nothing is left out silently. Raises ValueError where there
    is no image at all.
    """
    images = [name for name in tree.entries if is_image(name)]
    others = [name for name in tree.entries if not is_image(name)]
    if not images:
        found = f"{len(others)} files, such as {tree.where(others[0])!r}," if others else "no files"
        raise ValueError(f"{str(tree.source)!r} has {found} and no image; this format reads {LAYOUT}")
    if others:
        first = tree.where(others[0])
        progress.show(f"{tree.source}: {len(others)} files are no images and are left out, the first is {first}")
    values = {"label": -1}  # one for all images, of which there may be millions
    above = len(folder) + 1 if (folder := _shared(images)) else 0
    items = [item(tree, name, values, path=f"train/{printable(name[above:])}") for name in images]
    return Listing(tree.files, "images", [], {"train": in_order(items, str(tree.source))}, tree.stamp)


def _shared(names: list[str]) -> str:
    """The innermost folder that holds all these files, sorted by name: that of the first and the last."""
    return os.path.commonpath([os.path.dirname(names[0]), os.path.dirname(names[-1])])
