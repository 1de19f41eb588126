"""Reader of images that carry no labels: any folders, or none, or an archive of such."""

import os

from components import progress
from components.prepare.published import Release
from components.prepare.readers import Listing, in_order, is_image, item, printable
from components.prepare.tree import Tree

LAYOUT = "images (.jpg, .jpeg, .png, .webp, …) anywhere in a folder, a tar or a zip; other files there are counted and left out"
PUBLISHED: list[Release] = []


def read(tree: Tree) -> Listing:
    """One split, train, sorted by path, without classes. A path is `train/` and the name below the folder that holds everything.

    Files that are no images by their names are counted aloud, so that nothing is left out silently. Raises ValueError where there
    is no image at all.
    """
    root = below(tree)
    others = [name for name in root.entries if not is_image(name)]
    if len(others) == len(root.entries):
        found = f"{len(others)} files, such as {root.where(others[0])!r}" if others else "no files"
        raise ValueError(f"{str(tree.source)!r} has {found} and no image; this format reads {LAYOUT}")
    if others:
        first = root.where(others[0])
        progress.show(f"{tree.source}: {len(others)} files are no images and are left out, the first is {first}")
    values = {"label": -1}  # one for all images, of which there may be millions
    items = [item(root, name, values, path=f"train/{printable(name)}") for name in root.entries if is_image(name)]
    return Listing(root.files, "images", [], {"train": in_order(items, str(tree.source))}, root.stamp)


def below(tree: Tree) -> Tree:
    """The tree below folders that hold nothing else, whatever their names, such as the one that an archive was packed from."""
    names = list(tree.entries)  # sorted, so what the first and the last have in common all have
    folders = os.path.commonprefix([name.split("/")[:-1] for name in names[:1] + names[-1:]])
    return tree.under("/".join(folders)) if folders else tree
