"""Reader of iNaturalist 2018: one tree of images, and a JSON file for each split that says which are in it and what they show."""

import json
from typing import Any, NamedTuple

from components.prepare.published import Release, Size
from components.prepare.readers import Item, Listing, in_order, item, printable, there
from components.prepare.tree import Tree

LAYOUT = (
    "train_val2018/<supercategory>/<category>/*.jpg with train2018.json and val2018.json beside it, or the archives train_val2018.tar.gz, "
    "train2018.json.tar.gz and val2018.json.tar.gz in one folder"
)
PUBLISHED: list[Release] = [{"train": Size(8_142, 437_513), "val": Size(8_142, 24_426)}]
IMAGES = "train_val2018"


class _Image(NamedTuple):
    id: int
    file: str


class _Annotation(NamedTuple):
    image: int
    category: int


class _Category(NamedTuple):
    id: int


def read(tree: Tree) -> Listing:
    """Splits train and val, whichever have their JSON file, sorted by path; the test's labels are not public.

    Classes are the categories' ids as text, in the ids' order. A path is `<split>/<supercategory>/<category>/<image>`. Raises ValueError
    when images are no files, or images, annotations and categories do not go together.
    """
    found = {name.rpartition("/")[2]: name for name in tree.entries if name.endswith("2018.json")}
    lists = {split: found[f"{split}2018.json"] for split in ("train", "val") if f"{split}2018.json" in found}
    home = next((folder for folder in sorted(tree.folders) if f"/{folder}".endswith(f"/{IMAGES}")), None)
    if not lists or home is None:
        lacks = "train2018.json or val2018.json" if not lists else f"folder {IMAGES}"
        raise ValueError(f"{str(tree.source)!r} has no {lacks}; iNaturalist 2018 is laid out as {LAYOUT}")
    ids: list[int] = []
    splits = {}
    for split, name in lists.items():
        where = tree.where(name)
        images, categories, own = _parsed(tree.read(name), where)
        if ids and own != ids:
            raise ValueError(
                f"{where!r} has other categories than the file of 'train'; take both from the competition of 2018"
            )
        ids = own
        splits[split] = _items(tree, home.removesuffix(IMAGES), split, where, images, categories, ids)
    return Listing(tree.files, "images", [str(number) for number in ids], splits, tree.stamp)


def _items(
    tree: Tree, above: str, split: str, where: str, images: list[_Image], categories: dict[int, int], ids: list[int]
) -> list[Item]:
    there(tree, [above + image.file for image in images], where)
    values = {number: {"label": label} for label, number in enumerate(ids)}  # one for all images of the category
    names = {number: str(number) for number in ids}
    items = []
    for image in images:
        number = categories[image.id]
        path = printable(f"{split}/{image.file.removeprefix(f'{IMAGES}/')}")
        items.append(item(tree, above + image.file, values[number], group=names[number], path=path))
    return in_order(items, where)


def _parsed(data: bytes, where: str) -> tuple[list[_Image], dict[int, int], list[int]]:
    """The images, the category by image id, and the sorted ids of all categories."""
    try:
        whole = json.loads(data, object_hook=_cut)
        parts = [whole[key] for key in ("images", "annotations", "categories")]
    except (json.JSONDecodeError, UnicodeDecodeError, TypeError, KeyError) as error:
        raise ValueError(f"{where!r} is no file of iNaturalist's annotations: {error!r}; get it again") from error
    for part, kind in zip(parts, (_Image, _Annotation, _Category), strict=True):
        if not isinstance(part, list) or not part or not all(type(each) is kind for each in part):
            raise ValueError(
                f"{where!r} must hold 'images' with 'id' and 'file_name', 'annotations' with 'image_id' and 'category_id', and "
                "'categories' with 'id'; get it again (the test's file has no annotations)"
            )
    images, annotations, categories = parts
    ids = sorted({category.id for category in categories})
    known = set(ids)
    by_image: dict[int, int] = {}
    for image, category in annotations:
        if category not in known:
            raise ValueError(f"{where!r} has category_id {category}, which its 'categories' do not have; get it again")
        if by_image.setdefault(image, category) != category:
            raise ValueError(f"{where!r} has two categories of image {image}; an image has one: get it again")
    bare = [image for image in images if image.id not in by_image]
    if bare:
        raise ValueError(
            f"{len(bare)} of the {len(images)} images in {where!r} have no annotation; the first is {bare[0].file!r}: get it again"
        )
    return images, by_image, ids


def _cut(value: dict[str, Any]) -> Any:
    """The parts that matter of each JSON object as soon as it is parsed: whole, 437,513 images would take a gigabyte."""
    id, file = value.get("id"), value.get("file_name")
    image, category = value.get("image_id"), value.get("category_id")
    if type(image) is int and type(category) is int:
        return _Annotation(image, category)
    if type(id) is int and isinstance(file, str):
        return _Image(id, file)
    return _Category(id) if type(id) is int and "file_name" not in value and "image_id" not in value else value
