"""CIFAR-10 and CIFAR-100: images of 32x32 pixels as rows of pickled arrays, made into PNG files one by one."""

import io
from collections.abc import Iterator
from typing import Any, NamedTuple, TypeGuard

import numpy as np
from PIL import Image

from components.prepare.pickles import Array, load
from components.prepare.readers import Item, Listing
from components.prepare.tree import Tree

SIDE = 32
PIXELS = 3 * SIDE * SIDE


class Form(NamedTuple):
    """How one of the two is laid out."""

    folder: str  # which its archive holds
    meta: str  # file of the classes' names
    names: str  # key of these
    labels: str  # key of a batch's labels
    batches: dict[str, list[str]]  # files by split


class Row(NamedTuple):
    """One image: which file it is from, its row there, and its bytes [3072], red, then green, then blue, each row by row."""

    batch: str
    row: int
    pixels: bytes


class Rows:
    """`Files` of rows."""

    def read(self, file: Row) -> bytes:
        """The image as PNG."""
        pixels_HWC = np.frombuffer(file.pixels, np.uint8).reshape(3, SIDE, SIDE).transpose(1, 2, 0)
        buffer = io.BytesIO()
        Image.fromarray(np.ascontiguousarray(pixels_HWC)).save(buffer, "PNG")
        return buffer.getvalue()

    def size(self, file: Row) -> int:
        """Of the bytes it is made from."""
        return len(file.pixels)

    def where(self, file: Row) -> str:
        """File and row."""
        return f"{file.batch}, row {file.row}"


def listing(tree: Tree, form: Form, layout: str) -> Listing:
    """Splits train and test, whichever are there, by file and row; classes in the order of the meta file.

    A path is `<split>/<class>/<original name>_<file's number if there are several>_<row>.png`: names alone repeat. Raises ValueError
    when the classes' names or all batches are missing, and for a file that holds something else.
    """
    root = tree if form.meta in tree.entries else tree.under(form.folder)
    there = {split: [name for name in names if name in root.entries] for split, names in form.batches.items()}
    there = {split: names for split, names in there.items() if names}
    if form.meta not in root.entries or not there:
        raise ValueError(f"{str(tree.source)!r} has no {form.meta} with batches beside it; the layout is {layout}")
    classes = _classes(root, form)
    values = [{"label": label} for label in range(len(classes))]
    splits = {
        split: [each for name in names for each in _items(root, form, split, name, classes, values)]
        for split, names in there.items()
    }
    return Listing(Rows(), "images", classes, splits, root.stamp)


def _classes(root: Tree, form: Form) -> list[str]:
    where = root.where(form.meta)
    meta = load(root.read(form.meta), where)
    names = meta.get(form.names) if isinstance(meta, dict) else None
    if not _are(names, str) or not names or len(set(names)) < len(names) or any("/" in name for name in names):
        raise ValueError(f"{where!r} must hold {form.names!r}, a list of different names; download it again")
    return list(names)


def _items(
    root: Tree, form: Form, split: str, name: str, classes: list[str], values: list[dict[str, Any]]
) -> Iterator[Item]:
    batches, where = form.batches[split], root.where(name)
    mark = f"{batches.index(name) + 1}_" if len(batches) > 1 else ""
    for row, (pixels, label, original) in enumerate(_rows(root, form, name, len(classes))):
        stem = original.rpartition("/")[2].rpartition(".")[0]
        path = f"{split}/{classes[label]}/{stem}_{mark}{row:05d}.png"
        yield Item(path, values[label], classes[label], path, Row(where, row, pixels))


def _rows(root: Tree, form: Form, name: str, classes: int) -> Iterator[tuple[bytes, int, str]]:
    """Pixels, label and original name of each image of one batch."""
    where = root.where(name)
    batch = load(root.read(name), where)
    data, labels, names = map(batch.get, ("data", form.labels, "filenames")) if isinstance(batch, dict) else [None] * 3
    values = data.values if isinstance(data, Array) else np.empty(0, np.uint8)
    if values.ndim != 2 or values.shape[1] != PIXELS or not _are(labels, int) or not _are(names, str):
        raise ValueError(
            f"{where!r} must hold 'data', an array [N, {PIXELS}] of uint8, and the lists {form.labels!r} and 'filenames'; "
            "download it again"
        )
    if not len(values) == len(labels) == len(names):
        raise ValueError(
            f"{where!r} has {len(values)} images, {len(labels)} labels and {len(names)} names; each image has one of each: "
            "download it again"
        )
    wrong = next((label for label in labels if not 0 <= label < classes), None)
    if wrong is not None:
        raise ValueError(f"{where!r} has label {wrong}; labels are 0 to {classes - 1}: download it again")
    for row, label, original in zip(values, labels, names, strict=True):
        yield row.tobytes(), label, original


def _are(values: Any, kind: type) -> TypeGuard[list[Any]]:
    return isinstance(values, list) and all(type(value) is kind for value in values)
