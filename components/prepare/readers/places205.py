"""Reader of Places205: the images and lists of its makers, or a folder for each class, as VISSL wants it."""

from collections import defaultdict

from components.prepare.published import Release, Size
from components.prepare.readers import Listing, in_order, is_image, item, printable, there
from components.prepare.readers.image_folder import unwrapped
from components.prepare.tree import Tree

LAYOUT = (
    "imagesPlaces205_resize.tar.gz and trainvalsplit_places205.tar.gz, or what is in them: data/vision/torralba/deeplearning/images256/"
    "<letter>/<class>/*.jpg and {train,val}_places205.csv with lines 'a/abbey/<image>.jpg 0'; or train/<class>/*.jpg and val/<class>/*.jpg"
)
PUBLISHED: list[Release] = [{"train": Size(205, 2_448_873), "val": Size(205, 20_500)}]
SPLITS = ("train", "val")
IMAGES = "images256"


def read(tree: Tree) -> Listing:
    """Splits train and val, whichever are there, sorted by path; images in no list, such as those of the test, stay out.

    Classes are named as the lists' folders are, `a/abbey` or `a/apartment_building/outdoor`, and have the lists' labels. A path is
    `<split>/<class>/<image>`. Without lists the labels follow the sorted names, and `abbey` counts as `a/abbey`, so that both forms give
    the same; but not where a class's inner folders were flattened, as in `apartment_building_outdoor`. Raises ValueError for images
    that are no files and for labels that do not go with one class each.
    """
    found = {name.rpartition("/")[2]: name for name in tree.entries if name.endswith("_places205.csv")}
    lists = {split: found[f"{split}_places205.csv"] for split in SPLITS if f"{split}_places205.csv" in found}
    return _by_lists(tree, lists) if lists else _by_folders(unwrapped(tree))


def _by_lists(tree: Tree, lists: dict[str, str]) -> Listing:
    home = next((folder for folder in sorted(tree.folders) if f"/{folder}".endswith(f"/{IMAGES}")), "")
    classes: dict[int, str] = {}
    splits = {}
    for split, name in lists.items():
        where = tree.where(name)
        listed = _listed(tree.read(name).decode("utf-8", "backslashreplace"), where, classes)
        names = [f"{home}/{path}".lstrip("/") for path, _ in listed]
        there(tree, names, where)
        values = {
            label: {"label": label} for label in classes
        }  # one for all images of the class, of which there are millions
        splits[split] = in_order(
            [
                item(tree, name, values[label], group=classes[label], path=printable(f"{split}/{path}"))
                for name, (path, label) in zip(names, listed, strict=True)
            ],
            where,
        )
    _check(classes, where)
    return Listing(tree.files, "images", [classes[label] for label in sorted(classes)], splits, tree.stamp)


def _check(classes: dict[int, str], where: str) -> None:
    """Raises ValueError unless the labels are 0 to n - 1, of as many classes."""
    for label in range(max(classes) + 1):
        if label not in classes:
            raise ValueError(
                f"no line of {where!r} and the list beside it has label {label}, though labels go up to {max(classes)}; "
                "take the whole lists"
            )
    if len(set(classes.values())) < len(classes):
        names = sorted(classes.values())
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"{where!r} or the list beside it gives class {twice!r} two labels; take the original lists")


def _listed(text: str, where: str, classes: dict[int, str]) -> list[tuple[str, int]]:
    """Path and label of each line. `classes` learns whose label it is."""
    listed = []
    for line in text.splitlines():
        path, _, number = line.strip().rpartition(" ")
        folder = path.rpartition("/")[0]
        if not folder or not number.isdecimal():
            raise ValueError(
                f"{where!r} has the line {line[:200]!r}; it must be a path, a space and a label, 'a/abbey/gsun_0.jpg 0': get it again"
            )
        label = int(number)
        if classes.setdefault(label, folder) != folder:
            raise ValueError(
                f"{where!r} gives {path!r} the label {label}, which is that of class {classes[label]!r}; take the original lists"
            )
        listed.append((path, label))
    if not listed:
        raise ValueError(f"{where!r} lists no image; take the whole list")
    return listed


def _by_folders(tree: Tree) -> Listing:
    found = {split: _folders(tree, split) for split in SPLITS if split in tree.folders}
    if not found:
        raise ValueError(
            f"{str(tree.source)!r} has neither lists nor a folder train or val; Places205 is laid out as {LAYOUT}"
        )
    classes = sorted(next(iter(found.values())))
    labels = {name: label for label, name in enumerate(classes)}
    splits = {}
    for split, by_class in found.items():
        unknown = next((name for name in by_class if name not in labels), None)
        if unknown is not None:
            raise ValueError(
                f"{str(tree.source)!r} has class {unknown!r} in {split!r}, which 'train' does not have; every class must have training "
                "images: add them, or remove these"
            )
        items = []
        for name, files in by_class.items():
            values = {"label": labels[name]}
            for file in files:
                path = printable(f"{split}/{name}/{file.rpartition('/')[2]}")
                items.append(item(tree, file, values, group=name, path=path))
        splits[split] = in_order(items, str(tree.source))
    return Listing(tree.files, "images", classes, splits, tree.stamp)


def _folders(tree: Tree, split: str) -> dict[str, list[str]]:
    """Images by class; each folder that holds images is a class, named as in the lists."""
    found: dict[str, list[str]] = defaultdict(list)
    for name in tree.entries:
        if name.startswith(f"{split}/") and is_image(name):
            folder = name.rpartition("/")[0].removeprefix(split).removeprefix("/")
            if not folder:
                raise ValueError(f"{tree.where(name)!r} lies in no class folder; move it into one or remove it")
            letter, _, rest = folder.partition("/")
            found[folder if len(letter) == 1 and rest else f"{folder[0]}/{folder}"].append(name)
    if not found:
        raise ValueError(f"split {tree.where(split)!r} holds no images; put them there or remove the folder")
    return found
