"""One clear message for every kind of bad value, before anything heavy starts."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from components.pretrain.contract import PretrainParams
from components.stage import canonical_yaml, validate


def change(values: dict[str, Any], path: str, value: Any) -> dict[str, Any]:
    *folders, leaf = path.split(".")
    inner = values
    for folder in folders:
        inner = inner[folder]
    if isinstance(value, dict):
        inner[leaf] |= value
    else:
        inner[leaf] = value
    return values


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (
            "stop.noise_sdt",
            0.5,
            "stop.noise_sdt is not a known name; the names here are: noise_std, covariance, apply_to, mask_token, "
            "bias_on_noise, penalty, penalty_weight",
        ),
        ("stop.noise_std", "high", "stop.noise_std is 'high': input should be a valid number"),
        ("stop.noise_std", -0.1, "stop.noise_std is -0.1: input should be greater than or equal to 0"),
        ("stop.mask_token", False, "mask_token and bias_on_noise are both false"),
        ("encoder.patch_size", 7, "image_size is 16 and patch_size 7; the patch size must divide the image size"),
        (
            "keep_every",
            3,
            "keep_every is 3 and checkpoint_every 2; of the steps that should stay only those "
            "with a checkpoint can: make keep_every a multiple of checkpoint_every, or 0",
        ),
        ("encoder.heads", 5, "encoder width is 24 with 5 heads"),
        ("encoder.image_size", 8, "masks on a 2×2 patch grid leave as few as"),
        ("stop.covariance", "untied", None),
        ("stop", {"covariance": "untied", "noise_std": 0.0}, "covariance is 'untied' and noise_std 0"),
        ("stop", {"covariance": "fixed", "bias_on_noise": True}, "bias_on_noise is true and covariance 'fixed'"),
        ("stop.penalty", "l1", "penalty is 'l1' and penalty_weight 0.0; give both, or none and 0"),
        ("stop.penalty_weight", 1.0, "penalty is 'none' and penalty_weight 1.0"),
        ("objective.target_layers", 2, "name is 'ijepa' and target_layers 2; only data2vec averages layers"),
        ("objective", {"name": "data2vec", "target_layers": 3}, "objective.target_layers is 3 and encoder.layers 2"),
        ("objective", {"name": "mae", "low_resolution": "bilinear"}, "name is 'mae' and low_resolution 'bilinear'"),
        ("init.source", "file", "source is 'file' and path 'components/mim/initialise.py'; scratch goes with path"),
        ("init.path", "data/raw/x.pth", "source is 'scratch' and path 'data/raw/x.pth'"),
        ("init", {"source": "timm", "path": "data/raw/x.pth"}, "source is 'timm' and model ''; model is timm's name"),
        (
            "optimisation.epochs",
            0,
            "optimisation.epochs is 0 and init.source 'scratch', which leaves nothing but noise",
        ),
        ("collapse.effective_rank_floor", 16.0, "effective rank of 16 images' features of width 24 is at most 16"),
        ("collapse.action", "fail", "action is 'fail' and both floors are 0"),
        ("optimisation.hold_after", 0.2, "hold_after is 0.2, with warmup_epochs 0.5 and epochs 2"),
        ("optimisation.hold_after", 2.0, "hold_after is 2.0, with warmup_epochs 0.5 and epochs 2"),
        ("optimisation.hold_after", 1.0, None),
        ("optimisation.start_lr", 0.1, "start_lr is 0.1 and lr 0.001; lr is the peak"),
        ("optimisation.final_lr", 0.1, "final_lr is 0.1 and lr 0.001; lr is the peak"),
        ("optimisation.final_ema", 0.9, "ema is 0.99 and final_ema 0.9"),
        ("optimisation.start_lr", float("inf"), "optimisation.start_lr is inf: input should be a finite number"),
        ("stop.noise_std", float("nan"), "stop.noise_std is nan: input should be"),
        ("masks", {"sampler": "random", "hidden_ratio": 1e-17}, "hides none; nothing would be predicted"),
        ("masks.sampler", "legacy", "4×4 patch grid with sampler legacy have blocks of"),
        ("masks", {"sampler": "random", "hidden_ratio": 0.9}, "leave as few as 1 context patches (hidden_ratio 0.9)"),
        ("masks.min_context", 12, "min_context asks for 12. Use a larger image_size"),
        ("masks.target_scale_min", 0.9, "target_scale_min is 0.9 and target_scale_max 0.25"),
        ("augmentation.crop_scale_min", 1.0, None),
        ("optimisation.warmup_epochs", 2.0, "warmup_epochs is 2.0 and epochs 2"),
        ("scale.workers", 3, "global_batch_size is 16 and scale.workers 3; the workers must share the batch evenly"),
        (
            "quality.test_split",
            "train",
            "train_split and test_split are both 'train'; images that were learned from prove",
        ),
        ("quality.knn_k", 41, "knn_k is 41 and train_images 40; no more can vote than there are"),
        (
            "quality.resize_short_side",
            14,
            "resize_short_side is 14, below encoder.image_size 16; a crop must fit: raise it to 18",
        ),
        ("quality.resize_short_side", 16, None),
        ("scale.device", "tpu", "scale.device is 'tpu': input should be 'cpu' or 'gpu'"),
    ],
)
def test_bad_values(tiny: dict[str, Any], path: str, value: Any, message: str | None) -> None:
    values = change(tiny, path, value)
    if message is None:
        validate(PretrainParams, values, "file")
        return
    with pytest.raises(ValueError) as error:
        validate(PretrainParams, values, "file")
    assert message in str(error.value)
    assert str(error.value).startswith("file")


def test_low_resolution_needs_a_grid_that_has_a_half(tiny: dict[str, Any]) -> None:
    values = change(change(tiny, "objective.low_resolution", "max_pool"), "encoder.image_size", 20)
    with pytest.raises(
        ValueError, match="low_resolution is 'max_pool' on a 5×5 patch grid; the grid must have even sides"
    ):
        validate(PretrainParams, values, "file")


def test_a_missing_value_is_named(tiny: dict[str, Any]) -> None:
    del tiny["stop"]["noise_std"]
    with pytest.raises(ValueError, match="stop.noise_std is missing"):
        validate(PretrainParams, tiny, "file")


def test_the_committed_values_are_complete_and_canonical(
    committed: Callable[[str], dict[str, Any]], repository: Path
) -> None:
    values = committed("pretrain")
    assert validate(PretrainParams, values, "file").model_dump() == values
    assert (repository / "params/pretrain.yaml").read_text() == canonical_yaml(values)


def test_the_command_refuses_at_once_and_leaves_nothing(tmp_path: Path, tiny: dict[str, Any], toy_images: Path) -> None:
    (tmp_path / "pretrain.yaml").write_text(canonical_yaml(change(tiny, "optimisation.lr", 7.0)))
    flags = ["--params", "pretrain.yaml", "--dataset", str(toy_images), "--encoder", "out/e", "--predictor", "out/p"]
    flags += ["--state", "out/s", "--history", "out/h", "--masks", "out/p.png", "--work", "out/w"]
    flags += ["--quality", str(toy_images), "--init", str(toy_images), "--spectrum", "out/c"]
    flags += ["--metrics", "out/m", "--run", "out/r"]
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "components", "pretrain", *flags],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2
    assert "error: pretrain.yaml: optimisation.lr is 7.0: input should be less than or equal to 1" in done.stderr
    assert not any(f"| {heavy}\n" in done.stderr.replace("  ", "") for heavy in ("torch", "ray", "mlflow"))
    assert [path.name for path in tmp_path.iterdir()] == ["pretrain.yaml"]
