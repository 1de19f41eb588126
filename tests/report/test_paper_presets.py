"""Who runs a preset of the paper on the real data gets the paper's numbers beside the own ones: presets and rules agree."""

from pathlib import Path
from typing import Any

import pytest

from components import evaluation
from components.report.protocols import PROTOCOLS
from components.report.published import judge
from components.stage import contract, validate
from flows import presets

CASES = [
    ("vit_b16", "linear_probe/imagenet", "imagenet"),
    ("vit_l16,ijepa", "linear_probe/imagenet", "imagenet"),
    ("vit_h14", "linear_probe/imagenet", "imagenet_large"),
    ("ijepa_vit_h14", "linear_probe/imagenet", "imagenet_large"),
    ("vit_h14,transfer_cifar100", "linear_probe/cifar100", "cifar100"),
    ("vit_b16,transfer_places205", "linear_probe/places205", "places205"),
    ("vit_l16,transfer_inat18", "linear_probe/inat18", "inat18"),
    ("vit_l16", "linear_probe/imagenet_1percent", "imagenet_1percent"),
    ("ablation,noise_on_both", "linear_probe/imagenet_1percent", "imagenet_1percent"),
    ("vit_b16", "clevr", "clevr"),
    ("vit_h14", "clevr", "clevr"),
    ("vit_b16", "davis", "davis"),
    ("vit_h14", "davis", "davis"),
    ("mae_vit_b16,size_l16", "davis", "davis"),
    ("vit_l16", "finetune/imagenet_1percent", "finetune_1percent"),
    ("vit_l16,ijepa", "finetune/imagenet_1percent", "finetune_1percent"),
]


def recorded(root: Path, names: str, name: str, key: str, **changes: Any) -> dict[str, Any]:
    """A protocol file of the presets' values on the dataset of protocol `key`."""
    stage, _, member = name.partition("/")
    values = presets.compose(root, names.split(","))[stage]
    if members := contract(stage).members:
        values = values | {members: {member: values[members][member] | changes}}
    settings = evaluation.settings(validate(contract(stage).params, values, names))
    real = PROTOCOLS[key]
    splits = {split: {"rows": rows, "used": used} for split, (rows, used) in real.splits.items()}
    data = {"kind": real.kind, "format": real.format, "classes": real.classes, "splits": splits, **real.counts}
    return {"stage": stage, "settings": settings, "data": data}


@pytest.mark.parametrize(("names", "name", "key"), CASES)
def test_the_presets_of_the_paper_follow_its_protocols(repository: Path, names: str, name: str, key: str) -> None:
    record = recorded(repository, names, name, key)
    assert judge(record) == (PROTOCOLS[key], "")
    record["data"]["splits"] = {}
    assert judge(record).protocol is None


@pytest.mark.parametrize("names", ["vit_h14", "mae_vit_b16"])
def test_finetuning_by_another_recipe_does_not_compare(repository: Path, names: str) -> None:
    """ViT-H's weight decay; the norm that MAE puts behind the pooling."""
    verdict = judge(recorded(repository, names, "finetune/imagenet_1percent", "finetune_1percent"))
    assert verdict.protocol is None and ("norm" if names == "mae_vit_b16" else "weight_decay") in verdict.reason


@pytest.mark.parametrize("names", ["vit_b16", "vit_h14", "ablation"])
def test_one_percent_compares_with_the_released_penalty_and_not_with_the_best_of_many(
    repository: Path, names: str
) -> None:
    where = "linear_probe/imagenet_1percent", "imagenet_1percent"
    released = recorded(repository, names, *where, logistic_lambdas=[0.0025])
    assert judge(released) == (PROTOCOLS["imagenet_1percent"], "")
    swept = recorded(repository, names, *where, logistic_lambdas=[0.00025, 0.0025])
    assert judge(swept).reason == "logistic_lambdas 0.00025, 0.0025 (the paper: 0.0025)"
