"""Which class each validation image of ImageNet has, where they lie in one folder: the devkit's or Kaggle's list."""

import csv
import io
import re
from typing import Any

import numpy as np

from components.prepare.tree import Tree

FLAT = re.compile(r"ILSVRC2012_val_(\d{8})\.JPEG")
DEVKIT = "ILSVRC2012_validation_ground_truth.txt"
KAGGLE = "LOC_val_solution.csv"
WNID = re.compile(r"n\d{8}")


def wnids(tree: Tree, images: list[str]) -> list[str]:
    """The WordNet id of each of `images`, names such as ILSVRC2012_val_00000001.JPEG, by the number in it.

    Raises ValueError when the tree has no list, or one that says nothing of an image.
    """
    by_number, where = _truth(tree)
    found = []
    for image in images:
        match = FLAT.fullmatch(image)
        if match is None:
            raise ValueError(
                f"validation image {image!r} in {str(tree.source)!r} lies in no class folder and is not named "
                "ILSVRC2012_val_<8 digits>.JPEG, so that no list says its class; remove it"
            )
        wnid = by_number.get(int(match[1]))
        if wnid is None:
            raise ValueError(
                f"{where!r} says the class of {len(by_number)} images, and not that of {image!r}; take the whole list"
            )
        found.append(wnid)
    return found


def _truth(tree: Tree) -> tuple[dict[int, str], str]:
    """Class by number of image, and the list's path for a person."""
    lists = {name.rpartition("/")[2]: name for name in reversed(tree.entries) if name.endswith((DEVKIT, KAGGLE))}
    if DEVKIT in lists:
        return _devkit(tree, lists[DEVKIT]), tree.where(lists[DEVKIT])
    if KAGGLE in lists:
        return _kaggle(tree, lists[KAGGLE]), tree.where(lists[KAGGLE])
    raise ValueError(
        f"{str(tree.source)!r} has validation images that lie in no class folders, and nothing that says their classes; put "
        f"ILSVRC2012_devkit_t12.tar.gz (unpacked or not) or Kaggle's {KAGGLE} beside them"
    )


def _devkit(tree: Tree, name: str) -> dict[int, str]:
    """Line n of the list is the id of image n's class; meta.mat says which WordNet id that is."""
    ids = _ids(tree, f"{name.removesuffix(DEVKIT)}meta.mat")
    found = {}
    for number, line in enumerate(tree.read(name).decode("ascii", "replace").split(), 1):
        if not line.isdecimal() or int(line) not in ids:
            raise ValueError(
                f"line {number} of {tree.where(name)!r} is {line!r}; it must be one of meta.mat's {len(ids)} ids of classes; "
                "unpack the devkit again"
            )
        found[number] = ids[int(line)]
    return found


def _ids(tree: Tree, name: str) -> dict[int, str]:
    """WordNet id by the devkit's id, of the classes: the other synsets, those with children, are theirs."""
    from scipy.io import loadmat  # takes longer to import than most datasets to list

    data = tree.read(name)
    try:
        synsets: Any = np.atleast_1d(loadmat(io.BytesIO(data), squeeze_me=True)["synsets"])
        rows = [(int(row["ILSVRC2012_ID"]), str(row["WNID"]), int(row["num_children"])) for row in synsets]
    except Exception as error:  # whatever a damaged file makes of scipy's reader
        raise ValueError(
            f"{tree.where(name)!r} is not the devkit's table of synsets: {error!r}; unpack the devkit again"
        ) from error
    return {number: wnid for number, wnid, children in rows if children == 0}


def _kaggle(tree: Tree, name: str) -> dict[int, str]:
    """Lines `ILSVRC2012_val_00048981,n03995372 85 1 499 272 …`: the image, then class and box of each of its objects, all of a class."""
    found = {}
    for line in list(csv.reader(io.StringIO(tree.read(name).decode("utf-8", "replace"))))[1:]:
        image = FLAT.fullmatch(f"{line[0]}.JPEG") if len(line) == 2 else None
        wnid = line[1].partition(" ")[0] if image else ""
        if image is None or not WNID.fullmatch(wnid):
            raise ValueError(
                f"{tree.where(name)!r} has the line {','.join(line)[:100]!r}; it must be an image and its boxes, "
                "'ILSVRC2012_val_<8 digits>,n<8 digits> <box> …'; download it again"
            )
        found[int(image[1])] = wnid
    return found
