"""Reader of image folders, `<split>/<class>/*.jpg`, or `<split>/*.jpg` without classes."""

from pathlib import Path

from components.prepare.contract import LAYOUTS
from components.prepare.readers import Item, Listing, is_image, train_first

KNOWN_SPLITS = ("train", "val", "test")


def read(source: Path) -> Listing:
    """Classes are sorted by name over all splits. Raises ValueError for an empty class folder, for images beside class
    folders, and for a class that `train` lacks.
    """
    folders = {path.name: path for path in source.iterdir() if path.is_dir() and not path.name.startswith(".")}
    if not any(name in folders for name in KNOWN_SPLITS):  # else class folders would be taken for splits
        found = ", ".join(sorted(folders)) or "none"
        raise ValueError(
            f"{str(source)!r} has no folder {', '.join(KNOWN_SPLITS)}; an image folder is laid out as "
            f"{LAYOUTS['image_folder']}; the folders there are: {found[:200]}"
        )
    found_classes = {split: _classes(folders[split]) for split in train_first(folders)}
    classes = sorted({name for names in found_classes.values() for name in names})
    for split, names in found_classes.items():
        unknown = sorted(set(names) - set(found_classes.get("train", names)))
        if unknown and found_classes["train"]:
            raise ValueError(
                f"{str(folders[split])!r} has class {unknown[0]!r}, which 'train' does not have; every class must have "
                f"training images: add a folder train/{unknown[0]} or remove this one"
            )
    labels = {name: label for label, name in enumerate(classes)}
    splits = {split: _items(folders[split], names, labels) for split, names in found_classes.items()}
    return Listing(source, "images", classes, splits)


def _classes(split: Path) -> list[str]:
    """Class folders of a split; [] where its images lie directly in it."""
    paths = sorted(path for path in split.iterdir() if not path.name.startswith("."))
    classes = [path.name for path in paths if path.is_dir()]
    loose = [path for path in paths if is_image(path)]
    if classes and loose:
        raise ValueError(
            f"{str(loose[0])!r} lies beside class folders such as {classes[0]!r}; a split holds either images or class "
            f"folders: move it into a class folder or remove it"
        )
    if not classes and not loose:
        raise ValueError(f"split {str(split)!r} holds no images; put them there or remove the folder")
    return classes


def _items(split: Path, classes: list[str], labels: dict[str, int]) -> list[Item]:
    if not classes:
        return _of_class(split, split.name, "", -1)
    items = []
    for name in classes:
        found = _of_class(split / name, f"{split.name}/{name}", name, labels[name])
        if not found:
            raise ValueError(
                f"class folder {str(split / name)!r} holds no images (.jpg, .jpeg, .png); put some there or remove it"
            )
        items += found
    return items


def _of_class(folder: Path, path: str, group: str, label: int) -> list[Item]:
    values = {"label": label}  # one for all images of the class: a list of ImageNet's 1.3 million stays near 250 MB
    names = sorted(image.name for image in folder.iterdir() if is_image(image))
    return [Item(image, values, group, unit=image) for image in (f"{path}/{name}" for name in names)]
