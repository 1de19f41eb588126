"""The committed recipes are the protocols of the paper's tables."""

import hashlib
from pathlib import Path
from typing import Any

import pytest

from components.images.subset import read_list
from components.stage import read_yaml
from flows import presets

PROJECT = Path(__file__).parents[2]
SGD = {"optimiser": "sgd", "learning_rates": [0.01], "weight_decays": [0.0005], "batch_size": 256, "batch_norm": "both"}
CROPS = {"training": "augmented", "crop_scale_min": 0.08, "crop_scale_max": 1.0, "flip": True}
CENTRE = {"image_size": 224, "resize": "short_side_center_crop", "resize_short_side": 256}
ALL = {"train_limit": 0, "test_limit": 0}


def tasks(names: str) -> dict[str, Any]:
    section = presets.compose(PROJECT, names.split(","))["linear_probe"]
    assert (section["profile"], section["layers"], section["device"]) == ("paper", 4, "gpu")
    found: dict[str, Any] = section["tasks"]
    return found


@pytest.mark.parametrize("name", ["vit_b16", "vit_l16"])
def test_b_and_l_models_are_probed_by_vissls_recipe(name: str) -> None:
    task = tasks(name)["imagenet"]
    assert task.items() >= (CROPS | CENTRE | ALL | {"epochs": 28, "logistic_lambdas": []}).items()
    assert task["heads"] == SGD | {"schedule": "step", "milestones": [8, 16, 24]}


@pytest.mark.parametrize("name", ["vit_h14", "vit_h16", "ijepa_vit_h14"])
def test_h_models_are_probed_with_lars(name: str) -> None:
    """I-JEPA's A.2: rates .05, .01, .001 and decays 5e-4, 0, each with both feature sets and both kinds of head."""
    task = tasks(name)["imagenet"]
    assert task.items() >= (CROPS | CENTRE | ALL | {"epochs": 50}).items()
    assert task["heads"] == {
        "batch_size": 16384,
        "optimiser": "lars",
        "learning_rates": [0.05, 0.01, 0.001],
        "weight_decays": [0.0005, 0.0],
        "batch_norm": "both",
        "schedule": "step",
        "milestones": [15, 30, 45],
    }


@pytest.mark.parametrize("name", ["vit_b16", "vit_l16", "vit_h14", "ijepa_vit_h14", "mae_vit_b16", "ablation"])
def test_one_percent_is_simclrs_list_and_a_logistic_regression(name: str) -> None:
    task = tasks(name)["imagenet_1percent"]
    names = read_list(PROJECT / task["train_list"], task["train_list_sha256"])
    assert names is not None and len(names) == 12_811
    assert task["logistic_lambdas"] == [0.0025]  # the released README's
    assert (task["dataset"], task["test_limit"], task["resize_short_side"]) == ("imagenet", 0, 224)


@pytest.mark.parametrize(
    ("name", "test", "epochs", "milestones"),
    [
        ("cifar100", "test", 28, [8, 16, 24]),
        ("places205", "val", 14, [4, 8, 12]),
        ("inat18", "val", 84, [24, 48, 72]),
    ],
)
@pytest.mark.parametrize("recipe", ["vit_b16", "vit_h14"])
def test_transfers_add_a_task_to_any_recipe(
    recipe: str, name: str, test: str, epochs: int, milestones: list[int]
) -> None:
    before = tasks(recipe)
    after = tasks(f"{recipe},transfer_{name}")
    assert set(after) == {*before, name}
    assert after[name].items() >= (CROPS | CENTRE | ALL | {"epochs": epochs, "test_split": test}).items()
    assert after[name]["heads"] == SGD | {"schedule": "step", "milestones": milestones}
    datasets = presets.compose(PROJECT, [recipe, f"transfer_{name}"])["prepare"]["datasets"]
    assert {"imagenet", "clevr", "davis", name} <= set(datasets)


def test_all_transfers_at_once() -> None:
    names = "vit_b16,transfer_cifar100,transfer_places205,transfer_inat18"
    assert {"imagenet", "imagenet_1percent", "cifar100", "places205", "inat18"} == set(tasks(names))


def test_every_committed_task_names_a_list_that_is_there() -> None:
    for path in [PROJECT / "params/linear_probe.yaml", *(PROJECT / "params/presets").glob("*.yaml")]:
        values = read_yaml(path)
        section = values if path.stem == "linear_probe" else values.get("linear_probe", {})
        for task in [*section.get("tasks", {}).values(), *section.get("+tasks", {}).values()]:
            data = (PROJECT / task["train_list"]).read_bytes()
            assert hashlib.sha256(data).hexdigest() == task["train_list_sha256"]
