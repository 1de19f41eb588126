"""The presets' recipes are those that I-JEPA's appendix and MAE's program state."""

from pathlib import Path
from typing import Any

import pytest

from components.finetune.contract import FinetuneParams
from components.images.subset import read_list
from flows import presets

PROJECT = Path(__file__).parents[2]
WIDE = ("vit_h14", "vit_h16", "ijepa_vit_h14")


def chosen(*names: str) -> tuple[FinetuneParams, Any]:
    params = FinetuneParams.model_validate(presets.compose(PROJECT, names)["finetune"])
    (finetuning,) = params.finetunings.values()
    return params, finetuning


@pytest.mark.parametrize("name", ["vit_l16", *WIDE, "vit_b16", "vit_s16", "ablation", "mae_vit_b16"])
def test_one_percent_is_i_jepa_s(name: str) -> None:
    params, finetuning = chosen(name)
    recipe, augmentation = finetuning.optimisation, finetuning.augmentation
    assert (recipe.epochs, recipe.batch_size, recipe.layer_decay, recipe.label_smoothing) == (50, 512, 0.75, 0.1)
    assert (recipe.lr, recipe.weight_decay) == (3e-5, 0.4 if name in WIDE else 0.05)
    assert augmentation.rand_augment == "rand-m9-mstd0.5-inc1"
    assert not any((augmentation.mixup, augmentation.cutmix, augmentation.random_erasing, recipe.drop_path))
    assert (finetuning.pooling, params.profile) == ("average", "paper")
    assert len(read_list(PROJECT / finetuning.train_list, finetuning.train_list_sha256) or ()) == 12_811


@pytest.mark.parametrize(
    ("size", "epochs", "base_rate", "layer_decay", "drop_path"),
    [("b", 100, 5e-4, 0.65, 0.1), ("l", 50, 1e-3, 0.75, 0.2), ("h", 50, 1e-3, 0.75, 0.3)],
)
def test_full_finetuning_is_mae_s(
    size: str, epochs: int, base_rate: float, layer_decay: float, drop_path: float
) -> None:
    finetuning = chosen("mae_vit_b16", f"finetune_full_{size}")[1]
    recipe, augmentation = finetuning.optimisation, finetuning.augmentation
    assert (recipe.epochs, recipe.warmup_epochs, recipe.batch_size) == (epochs, 5.0, 1024)
    assert recipe.lr == pytest.approx(base_rate * 1024 / 256)
    assert (recipe.final_lr, recipe.weight_decay) == (1e-6, 0.05)
    assert (recipe.layer_decay, recipe.drop_path, recipe.label_smoothing) == (layer_decay, drop_path, 0.1)
    assert (augmentation.mixup, augmentation.cutmix, augmentation.random_erasing) == (0.8, 1.0, 0.25)
    assert augmentation.rand_augment == "rand-m9-mstd0.5-inc1"
    assert (finetuning.norm, finetuning.train_per_class, finetuning.train_limit) == ("new", 0, 0)
    assert read_list(PROJECT / finetuning.train_list, finetuning.train_list_sha256) is None


@pytest.mark.parametrize(("overlay", "most"), [("size_l16", 128), ("size_h14", 64)])
def test_a_larger_encoder_takes_fewer_images_at_once(overlay: str, most: int) -> None:
    assert chosen("mae_vit_b16", overlay)[0].micro_batch_size == most
