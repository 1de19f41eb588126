"""What an evaluation must have done, and on what, for its score to stand beside the paper's: `PROTOCOLS`.

Sources: the paper's section 4 and appendix, I-JEPA's appendix A.2, the VISSL configurations and DINO's program that the paper names.
"""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from components.images import AS_THEY_CAME
from components.stage import flatten


class Protocol(NamedTuple):
    """One protocol of the paper on one real dataset.

    The two numbers of a split are rows in it and rows in use; `counts` are what else the dataset has.
    """

    key: str
    stage: str
    title: str
    kind: str
    format: str
    classes: int
    splits: Mapping[str, tuple[int, int]]
    settings: Mapping[str, Any]
    note: str = ""
    counts: Mapping[str, int] = {}


_PAPER = {"profile": "paper", "layers": 4, "train_split": "train"}
_VIEW = {"image_size": 224, "resize": "short_side_center_crop", "resize_short_side": 256}
_CROPS = {"training": "augmented", "crop_scale_min": 0.08, "crop_scale_max": 1.0, "flip": True}
_SGD = {
    "optimiser": "sgd",
    "batch_size": 256,
    "learning_rates": [0.01],
    "weight_decays": [0.0005],
    "batch_norm": "both",
}
_LARS = {
    "optimiser": "lars",
    "batch_size": 16_384,
    "learning_rates": [0.01, 0.05, 0.001],
    "weight_decays": [0.0005, 0.0],
    "batch_norm": "both",
}
_ONE_PERCENT = {"train_list_sha256": "71e82a48ba78252683ae334c4d019ebd5c6e855b9599c1389fbe83eb9549cf17"}
_FINETUNING = {
    "pooling": "average",
    "epochs": 50,
    "batch_size": 512,
    "lr": 3e-5,
    "weight_decay": 0.05,
    "layer_decay": 0.75,
    "norm": "encoder",
    "warmup_epochs": 5.0,
    "final_lr": 1e-6,
    "crop_scale_min": 0.08,
    "crop_scale_max": 1.0,
    "flip": True,
    "label_smoothing": 0.1,
    "rand_augment": "rand-m9-mstd0.5-inc1",
    **dict.fromkeys(("random_erasing", "mixup", "cutmix", "drop_path"), 0.0),
}
_BILINEAR = "The paper's images are resized bilinearly, these bicubically."
_SOME = {"train": (1_281_167, 12_811), "val": (50_000, 50_000)}


OWN = ("image_folder", "manifest")
"""Layouts in which any labelled images may lie; the counts tell which they are."""


def _probe(
    key: str,
    format: str,
    title: str,
    classes: int,
    counts: tuple[int, str, int],
    epochs: int,
    milestones: list[int],
    note: str = "",
) -> Protocol:
    """Heads on random crops by VISSL's SGD recipe; `counts` of training images, the name of the other split, and its images."""
    train, name, test = counts
    steps = {"epochs": epochs, "schedule": "step", "milestones": milestones}
    settings = {**_PAPER, **_VIEW, **_CROPS, **_SGD, **steps}
    splits = {"train": (train, train), name: (test, test)}
    return Protocol(key, "linear_probe", title, "images", format, classes, splits, settings, note)


_IMAGENET = _probe(
    "imagenet",
    "imagenet",
    "ImageNet-1k",
    1000,
    (1_281_167, "val", 50_000),
    28,
    [8, 16, 24],
    "ViT-H/14 of tables 1 and 2 had another recipe (LARS), MAE and data2vec of table 2 their own authors' heads: they are left out.",
)
_ALL = (
    _IMAGENET,
    _IMAGENET._replace(
        key="imagenet_large",
        settings={**_IMAGENET.settings, **_LARS, "epochs": 50, "milestones": [15, 30, 45]},
        note="ViT-B/16 and L/16 of tables 1 and 2 had another recipe (SGD), MAE of table 2 its own authors' heads: they are left out.",
    ),
    Protocol(
        "imagenet_1percent",
        "linear_probe",
        "1% of ImageNet-1k",
        "images",
        "imagenet",
        1000,
        _SOME,
        {**_PAPER, **_VIEW, **_ONE_PERCENT, "resize_short_side": 224, "logistic_lambdas": [0.0025]},
        f"{_BILINEAR} The released program standardises the scored features by their own statistics, this one by the "
        "training images'.",
    ),
    _probe(
        "cifar100",
        "cifar100",
        "CIFAR-100",
        100,
        (50_000, "test", 10_000),
        28,
        [8, 16, 24],
        "Nobody outside has reached the paper's scores here (ijepa#47).",
    ),
    _probe("places205", "places205", "Places205", 205, (2_448_873, "val", 20_500), 14, [4, 8, 12], _BILINEAR),
    _probe("inat18", "inat2018", "iNaturalist 2018", 8142, (437_513, "val", 24_426), 84, [24, 48, 72]),
    Protocol(
        "finetune_1percent",
        "finetune",
        "1% of ImageNet-1k",
        "images",
        "imagenet",
        1000,
        _SOME,
        {"profile": "paper", "train_split": "train", **_VIEW, **_ONE_PERCENT, **_FINETUNING},
    ),
    Protocol(
        "clevr",
        "clevr",
        "CLEVR v1.0",
        "scenes",
        "clevr",
        0,
        {"train": (70_000, 70_000), "val": (15_000, 15_000)},
        {
            **_PAPER,
            **_SGD,
            "schedule": "cosine",
            "height": 224,
            "width": 224,
            "count_epochs": 50,
            "distance_epochs": 100,
        },
        _BILINEAR,
    ),
    Protocol(
        "davis",
        "davis",
        "DAVIS 2017 val",
        "video",
        "davis",
        0,
        {"val": (1999, 1999)},
        {
            "profile": "paper",
            "short_side": 480,
            "context_frames": 7,
            "radius": 12,
            "top_k": 5,
            "temperature": 0.1,
            "positions": "stretched",
        },
        "It is not said how the positions met the videos' grid; here as DINO's program has it. At patch 14 the grid is 34×60, where "
        "DINO's program would take 34×59.",
        counts={"sequences": 30, "objects": 61},
    ),
)
PROTOCOLS = {protocol.key: protocol for protocol in _ALL}


def differences(protocol: Protocol, record: Mapping[str, Any]) -> list[str]:
    """How the evaluation of a protocol file differs from the paper's, in short phrases; none if it is the same."""
    return [*_data(protocol, record.get("data", {})), *_settings(protocol, record.get("settings", {}))]


def _data(protocol: Protocol, data: Mapping[str, Any]) -> Iterator[str]:
    layout, kind = data.get("format"), data.get("kind")
    if kind != protocol.kind or layout not in (protocol.format, *(OWN if kind == "images" else ())):
        yield f"{kind} of format {layout}, not {protocol.title}"
        return
    if (stored := data.get("stored", AS_THEY_CAME)) != AS_THEY_CAME:
        yield f"images stored with {stored}, the paper's {AS_THEY_CAME}"
    if protocol.classes and (classes := data.get("classes")) != protocol.classes:
        yield f"{classes} classes, {protocol.title} has {protocol.classes:,}"
    splits = {name: (split.get("rows"), split.get("used")) for name, split in data.get("splits", {}).items()}
    if splits != dict(protocol.splits):
        yield f"{_counts(splits)}; {protocol.title} has {_counts(protocol.splits)}"
    for name, wanted in protocol.counts.items():
        if data.get(name) != wanted:
            yield f"{data.get(name)} {name}, {protocol.title} has {wanted}"


def _counts(splits: Mapping[str, tuple[Any, Any]]) -> str:
    """Such as `train 1,281,167 (12,811 in use), val 50,000`."""
    texts = [
        f"{name} {_number(rows)}" + (f" ({_number(used)} in use)" if rows != used else "")
        for name, (rows, used) in splits.items()
    ]
    return ", ".join(texts) or "no image count"


def _number(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int) else str(value)


def _settings(protocol: Protocol, settings: Mapping[str, Any]) -> Iterator[str]:
    """By the last part of a name, wherever the stage nests it; a name that is missing or stands twice is another setting."""
    flat = flatten(settings, ".")
    for name, wanted in protocol.settings.items():
        found = [value for key, value in flat.items() if key.rpartition(".")[2] == name]
        if [_sorted(value) for value in found] != [_sorted(wanted)]:
            yield f"{name} {' and '.join(map(_told, found)) or 'not recorded'} (the paper: {_told(wanted)})"


def _sorted(value: Any) -> Any:
    """A grid is the same in any order."""
    return sorted(value) if isinstance(value, list) else value


def _told(value: Any) -> str:
    return ", ".join(map(str, value)) or "none" if isinstance(value, list) else str(value)
