"""A score stands beside the paper's for the same protocol on the real data, and for nothing else."""

from collections.abc import Callable
from typing import Any

import pytest

from components.report.published import beside, judge

Record = Callable[[str], dict[str, Any]]


def test_davis_as_in_the_paper_compares(record: Record) -> None:
    verdict = judge(record("davis"))
    assert verdict.protocol and verdict.protocol.title == "DAVIS 2017 val" and not verdict.reason
    rows = beside(verdict.protocol, ["jf_mean", "objects"])
    scores = {(row.method, row.arch): row.value for row in rows}
    assert scores[("StoP", "ViT-B/16")] == 57.0 and scores[("MAE", "ViT-H/14")] == 55.5
    assert scores[("DINO", "ViT-B/16")] == 62.3 and scores[("iBOT", "ViT-L/16")] == 62.8
    assert len(rows) == 12 and {row.metric for row in rows} == {"jf_mean"}
    assert {row.source for row in rows} == {"table 3, submission", "table 15, ICML v2"}


def test_cifar_100_as_in_the_paper_compares_whatever_its_name(record: Record) -> None:
    verdict = judge(record("linear_probe"))
    assert verdict.protocol and verdict.protocol.key == "cifar100"
    rows = beside(verdict.protocol, ["top1", "last_top1"])
    assert {row.method for row in rows} == {"StoP", "I-JEPA", "MAE", "data2vec", "DINO", "iBOT"}
    assert {row.value for row in rows if row.method == "StoP"} == {81.2, 84.7, 87.7}


@pytest.mark.parametrize(
    ("stage", "path", "value", "reason"),
    [
        ("davis", "settings.profile", "clean", "profile clean (the paper: paper)"),
        ("davis", "settings.short_side", 240, "short_side 240 (the paper: 480)"),
        ("davis", "settings.temperature", None, "temperature not recorded (the paper: 0.1)"),
        ("davis", "data.kind", "images", "images of format davis, not DAVIS 2017 val"),
        ("davis", "data.format", "shapes_video", "video of format shapes_video, not DAVIS 2017 val"),
        ("davis", "data.splits.val.rows", 281, "val 281 (1,999 in use); DAVIS 2017 val has val 1,999"),
        ("davis", "data.splits.val.used", 1998, "val 1,999 (1,998 in use); DAVIS 2017 val has val 1,999"),
        ("davis", "data.objects", 60, "60 objects, DAVIS 2017 val has 61"),
        ("davis", "data.sequences", None, "None sequences, DAVIS 2017 val has 30"),
        ("davis", "data.splits", {}, "no image count; DAVIS 2017 val has val 1,999"),
        ("linear_probe", "settings.profile", "clean", "profile clean (the paper: paper)"),
        ("linear_probe", "settings.image_size", 32, "image_size 32 (the paper: 224)"),
        ("linear_probe", "settings.training", "cached", "training cached (the paper: augmented)"),
        ("linear_probe", "settings.heads.learning_rates", [0.01, 0.1], "learning_rates 0.01, 0.1 (the paper: 0.01)"),
        ("linear_probe", "settings.heads.milestones", None, "milestones not recorded (the paper: 8, 16, 24)"),
        ("linear_probe", "settings.train_split", "test", "train_split test (the paper: train)"),
        (
            "linear_probe", "data.splits.train", {"rows": 49999, "used": 49999},
            "train 49,999, test 10,000; CIFAR-100 has train 50,000, test 10,000",
        ),
        (
            "linear_probe", "data.splits", {"test": {"rows": 50000, "used": 50000}, "train": {"rows": 10000, "used": 10000}},
            "test 50,000, train 10,000; CIFAR-100 has train 50,000, test 10,000",
        ),
        (
            "linear_probe", "data.classes", 10,
            "10 classes; the paper has ImageNet-1k, 1% of ImageNet-1k, CIFAR-100, Places205, iNaturalist 2018",
        ),
        (
            "linear_probe", "data.stored", "a short side of at most 256 pixels",
            "images stored with a short side of at most 256 pixels, the paper's the bytes they came with",
        ),
        ("linear_probe", "data.format", "places205", "images of format places205, not CIFAR-100"),
        ("linear_probe", "stage", "colour", "the paper has no table for colour"),
    ],
)  # fmt: skip
def test_one_difference_is_enough_for_none(record: Record, stage: str, path: str, value: Any, reason: str) -> None:
    changed = record(stage)
    *folders, name = path.split(".")
    inner = changed
    for folder in folders:
        inner = inner[folder]
    inner[name] = value
    if value is None:
        del inner[name]
    verdict = judge(changed)
    assert verdict.protocol is None and verdict.reason == reason


@pytest.mark.parametrize("layout", ["cifar100", "image_folder", "manifest"])
def test_the_same_images_may_have_come_in_any_layout(record: Record, layout: str) -> None:
    changed = record("linear_probe")
    changed["data"] |= {"format": layout, "stored": "the bytes they came with"}
    verdict = judge(changed)
    assert verdict.protocol and verdict.protocol.key == "cifar100"


def test_many_differences_stay_a_short_phrase(record: Record) -> None:
    changed = record("linear_probe")
    changed["settings"] = {"profile": "clean"}
    assert judge(changed).reason.endswith("; 15 more differences") and len(judge(changed).reason) < 200
    assert judge({"stage": "davis"}).protocol is None and judge({}).protocol is None


def test_a_setting_that_stands_twice_is_not_the_papers(record: Record) -> None:
    changed = record("davis")
    changed["settings"]["other"] = {"radius": 12}
    assert judge(changed).reason == "radius 12 and 12 (the paper: 12)"


def imagenet(record: Record, used: int, **settings: Any) -> dict[str, Any]:
    changed = record("linear_probe")
    changed["settings"] |= settings
    counts = {"train": {"rows": 1_281_167, "used": used}, "val": {"rows": 50_000, "used": 50_000}}
    changed["data"] |= {"classes": 1000, "splits": counts}
    return changed


def test_what_others_measured_with_heads_of_their_own_is_left_out(record: Record) -> None:
    verdict = judge(imagenet(record, 1_281_167))
    assert verdict.protocol and verdict.protocol.key == "imagenet"
    rows = beside(verdict.protocol, ["last_top1", "last4_top1", "top1"])
    assert {row.method for row in rows} == {"I-JEPA", "StoP"} and {row.arch for row in rows} == {"ViT-B/16", "ViT-L/16"}
    large = imagenet(record, 1_281_167, epochs=50)
    large["settings"]["heads"] |= {"optimiser": "lars", "batch_size": 16384, "milestones": [15, 30, 45]}
    large["settings"]["heads"] |= {"learning_rates": [0.05, 0.01, 0.001], "weight_decays": [0.0, 0.0005]}
    verdict = judge(large)
    assert verdict.protocol and verdict.protocol.key == "imagenet_large"
    rows = beside(verdict.protocol, ["last_top1", "last4_top1", "top1"])
    assert {row.value for row in rows if row.method == "StoP"} == {79.0, 79.6}


def test_one_percent_stands_beside_table_1_and_never_beside_the_ablations(record: Record) -> None:
    """The ablations' 1 % protocol is another one, and the paper does not tell it."""
    hashed = "71e82a48ba78252683ae334c4d019ebd5c6e855b9599c1389fbe83eb9549cf17"
    few = imagenet(record, 12_811, train_list_sha256=hashed, logistic_lambdas=[0.0025], resize_short_side=224)
    verdict = judge(few)
    assert verdict.protocol and verdict.protocol.key == "imagenet_1percent"
    assert {row.table for row in beside(verdict.protocol, ["logistic_top1"])} == {"1"}
    few["settings"]["train_list_sha256"] = "0" * 64
    assert judge(few).protocol is None
