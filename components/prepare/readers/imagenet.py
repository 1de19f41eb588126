"""Reader of ImageNet (ILSVRC2012): as it is downloaded, as torchvision and most people unpack it, and as Kaggle packs it."""

import re

from components.prepare.ilsvrc import FLAT, WNID, wnids
from components.prepare.nested import opened
from components.prepare.published import Release, Size
from components.prepare.readers import Item, Listing, is_image, item, printable
from components.prepare.readers.image_folder import by_class
from components.prepare.tree import Tree

LAYOUT = (
    "train/<wnid>/*.JPEG or ILSVRC2012_img_train.tar as it is, and val/<wnid>/*.JPEG; or the validation images in one folder, val or "
    "ILSVRC2012_img_val.tar, with ILSVRC2012_devkit_t12(.tar.gz) or Kaggle's LOC_val_solution.csv beside it. Kaggle's folder or archive "
    "ILSVRC with Data/CLS-LOC/{train,val} will do"
)
PUBLISHED: list[Release] = [{"train": Size(1000, 1_281_167), "val": Size(1000, 50_000)}]
_HOME = re.compile(
    r"((?:[^/]+/)?(?:ILSVRC/)?(?:Data/CLS-LOC/)?)(?:(?:train|val)/.+\.\w+|n\d{8}\.tar|ILSVRC2012_val_\d{8}\.JPEG)"
)
Found = dict[str, list[str]]
"""Names of a split's images by WordNet id."""


def read(tree: Tree) -> Listing:
    """Splits train and val, whichever are there; the test images have no classes and stay out.

    Classes are WordNet ids, sorted, which gives everybody's labels; class names repeat (crane, maillot). A path is
    `<split>/<wnid>/<file>` in every form. Raises ValueError for a folder that is no WordNet id, a class that train lacks, and validation
    images whose class nothing says.
    """
    base = next((match[1] for name in tree.entries if (match := _HOME.fullmatch(name)) and _counts(name)), None)
    if base is None:
        raise ValueError(f"{str(tree.source)!r} has neither train nor val; ImageNet is laid out as {LAYOUT}")
    home = _opened(tree.under(base.rstrip("/")) if base else tree)
    found = {"train": _train(home), "val": _val(home, tree)}
    found = {split: names for split, names in found.items() if names}
    classes = sorted(next(iter(found.values())))
    labels = {wnid: label for label, wnid in enumerate(classes)}
    for split, names in found.items():
        _check(home, split, names, labels)
    splits = {split: _items(home, split, names, labels) for split, names in found.items()}
    return Listing(home.files, "images", classes, splits, tree.stamp)


def _counts(name: str) -> bool:
    return name.endswith(".tar") or is_image(name)


def _opened(home: Tree) -> Tree:
    """With the class archives opened that nobody unpacked."""
    archives = {}
    for name in home.entries:
        match = re.fullmatch(r"(?:train/)?(n\d{8})\.tar", name) if name.endswith(".tar") else None
        if match and f"train/{match[1]}" not in home.folders:
            archives[name] = f"train/{match[1]}"
    return opened(home, archives)


def _train(home: Tree) -> Found:
    if "train" not in home.folders:
        return {}
    found = by_class(home.under("train"))
    return {wnid: [f"train/{name}" for name in names] for wnid, names in found.items()}


def _val(home: Tree, tree: Tree) -> Found:
    """By the folders in val; or by a list, where the images lie in val itself or, as from their archive, at the top."""
    folder = home.under("val")
    nested = [name for name in folder.entries if is_image(name)]
    if any("/" in name for name in nested):
        return {wnid: [f"val/{name}" for name in names] for wnid, names in by_class(folder).items()}
    flat = {name: f"val/{name}" for name in nested} or {name: name for name in home.entries if FLAT.fullmatch(name)}
    found: Found = {}
    for name, wnid in zip(flat, wnids(tree, list(flat)) if flat else [], strict=True):
        found.setdefault(wnid, []).append(flat[name])
    return dict(sorted(found.items()))


def _check(home: Tree, split: str, found: Found, labels: dict[str, int]) -> None:
    for wnid, names in found.items():
        if not WNID.fullmatch(wnid):
            what = f"folder {split}/{wnid}" if wnid else f"image {names[0]!r} in no class folder"
            raise ValueError(
                f"{str(home.source)!r} has {what}; ImageNet's folders are named by WordNet ids such as n01440764: rename or remove it, "
                "or read it with format image_folder"
            )
        if wnid not in labels:
            raise ValueError(
                f"{str(home.source)!r} has class {wnid!r} in {split!r}, which 'train' does not have; every class must have training "
                f"images: add train/{wnid}, or remove these"
            )


def _items(home: Tree, split: str, found: Found, labels: dict[str, int]) -> list[Item]:
    listed = []
    for wnid, names in found.items():
        values = {"label": labels[wnid]}  # one for all images of the class: a list of 1.3 million stays small
        folder = f"{split}/{wnid}/"
        for name in names:
            path = printable(name if name.startswith(folder) else folder + name.rpartition("/")[2])
            listed.append(item(home, name, values, group=wnid, path=path))
    return listed
