"""Reader of image folders, `<split>/<class>/*.jpg`, or `<split>/*.jpg` without classes."""

from collections import defaultdict

from components.prepare.published import Release
from components.prepare.readers import Item, Listing, is_image, item, printable, train_first
from components.prepare.tree import Tree

LAYOUT = "<split>/<class>/*.jpg (or .jpeg, .png), or <split>/*.jpg without classes; one split is train, val or test"
PUBLISHED: list[Release] = []
KNOWN_SPLITS = ("train", "val", "test")


def read(tree: Tree) -> Listing:
    """Classes are sorted by name over all splits; folders in a class count to it, as in torchvision's ImageFolder.

    Raises ValueError for an empty class folder, for images beside class folders, and for a class that `train` lacks.
    """
    tree = unwrapped(tree)
    folders = sorted(name for name in tree.folders if "/" not in name)
    if not any(name in folders for name in KNOWN_SPLITS):  # else class folders would be taken for splits
        found = ", ".join(folders) or "none"
        raise ValueError(
            f"{str(tree.source)!r} has no folder {', '.join(KNOWN_SPLITS)}; an image folder is laid out as "
            f"{LAYOUT}; the folders there are: {found[:200]}"
        )
    trees = {printable(split): tree.under(split) for split in train_first(folders)}
    found_classes = {split: by_class(part) for split, part in trees.items()}
    names = {split: [name for name in found if name] for split, found in found_classes.items()}
    classes = sorted({name for part in names.values() for name in part})
    for split, own in names.items():
        unknown = sorted(set(own) - set(names.get("train", own)))
        if unknown and names["train"]:
            raise ValueError(
                f"{str(trees[split].source)!r} has class {unknown[0]!r}, which 'train' does not have; every class must have "
                f"training images: add a folder train/{unknown[0]} or remove this one"
            )
    labels = {name: label for label, name in enumerate(classes)} | {"": -1}
    splits = {split: items(trees[split], split, found, labels) for split, found in found_classes.items()}
    return Listing(tree.files, "images", classes, splits, tree.stamp)


def unwrapped(tree: Tree) -> Tree:
    """The tree below folders that hold nothing else, such as the one that an archive was packed from."""
    while all("/" in name for name in tree.entries):
        tops = {name for name in tree.folders if "/" not in name}
        if len(tops) != 1 or tops & set(KNOWN_SPLITS):
            break
        tree = tree.under(*tops)
    return tree


def by_class(tree: Tree) -> dict[str, list[str]]:
    """Images of each class folder of a split, sorted; of the name '' where they lie directly in it."""
    found: dict[str, list[str]] = defaultdict(list)
    for name in tree.entries:
        if is_image(name):
            found[printable(name.partition("/")[0]) if "/" in name else ""].append(name)
    folders = sorted(name for name in tree.folders if "/" not in name)
    if folders and "" in found:
        raise ValueError(
            f"{tree.where(found[''][0])!r} lies beside class folders such as {folders[0]!r}; a split holds either images or class "
            "folders: move it into a class folder or remove it"
        )
    if not folders and not found:
        raise ValueError(f"split {str(tree.source)!r} holds no images; put them there or remove the folder")
    empty = next((name for name in folders if printable(name) not in found), None)
    if empty is not None:
        raise ValueError(
            f"class folder {tree.where(empty)!r} holds no images (.jpg, .jpeg, .png); put some there or remove it"
        )
    return dict(sorted(found.items()))


def items(tree: Tree, split: str, found: dict[str, list[str]], labels: dict[str, int]) -> list[Item]:
    """The images of a split, class by class in the order of their names."""
    listed = []
    for name, files in found.items():
        values = {
            "label": labels[name]
        }  # one for all images of the class: a list of ImageNet's 1.3 million stays small
        for file in files:
            listed.append(item(tree, file, values, group=name, path=f"{split}/{printable(file)}"))
    return listed
