"""How many images an epoch has, and how many bytes they take: from the prepared dataset, or else from what is known before it is."""

import importlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from components.prepare.contract import LIST, READ_AS

DIGITS = 1_297
"""Images of `digits` in train (prepare/embedded/digits.py)."""


class Dataset(NamedTuple):
    """Images of split train and bytes of all splits, None where nobody knows them yet; `source` says who told."""

    images: int | None
    bytes: int | None
    source: str


def carded(folder: Path) -> Dataset:
    """What the card of a prepared dataset says. Raises ValueError when there is none, or no split train."""
    path = folder / "card.json"
    if not path.is_file():
        raise ValueError(
            f"dataset is {str(folder)!r}, which has no card.json; prepare it with `dvc repro prepare`, or give --images"
        )
    splits = json.loads(path.read_text(encoding="utf-8"))["splits"]
    if "train" not in splits:
        raise ValueError(f"dataset is {str(folder)!r} with splits {', '.join(splits)}; pretraining needs train")
    return Dataset(
        splits["train"]["count"], sum(split.get("bytes", 0) for split in splits.values()), f"its card, {path}"
    )


def expected(name: str, prepare: Mapping[str, Any] | None) -> Dataset:
    """What the params of `prepare` promise of the dataset `name`: the embedded sets' sizes and those that datasets were published with."""
    entry = (prepare or {}).get("datasets", {}).get(name)
    if entry is None:
        return Dataset(None, None, "nobody yet")
    if entry["format"] in READ_AS:
        images = {"shapes": entry["scenes"] * 3 // 4, "digits": DIGITS}.get(entry["format"])
        return Dataset(images, None, f"the format {entry['format']}")
    if entry["counts"] != "published" or entry["subset"]["list"] != LIST:
        return Dataset(None, None, "nobody yet")
    published = importlib.import_module(f"components.prepare.readers.{entry['format']}").PUBLISHED
    if not published or "train" not in published[0]:
        return Dataset(None, None, "nobody yet")
    train, per_class = published[0]["train"], entry["subset"]["per_class"]
    images = min(train.images, per_class * max(train.classes, 1)) if per_class else train.images
    return Dataset(images, None, f"the published size of {entry['format']}")
