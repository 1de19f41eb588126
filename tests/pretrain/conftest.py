"""Params of a run that takes a second."""

import copy
from typing import Any

import pytest


@pytest.fixture
def tiny(tiny_values: dict[str, Any]) -> dict[str, Any]:
    """`tiny_values`, to be changed."""
    return copy.deepcopy(tiny_values)


@pytest.fixture(scope="session")
def tiny_values() -> dict[str, Any]:
    """Valid pretrain values: 16-pixel images in 4×4 patches, 2 epochs of 3 steps of 16 images."""
    return {
        "seed": 0,
        "weight_init": "fan_in",
        "dataset": "toy",
        "init": {"source": "scratch", "path": "components/mim/initialise.py", "part": "target_encoder", "model": ""},
        "encoder": {
            "image_size": 16, "patch_size": 4, "width": 24, "layers": 2, "heads": 2, "class_token": False,
            "positions": "sincos",
        },
        "predictor": {"width": 16, "layers": 1, "heads": 2, "positions": "sincos", "passes": "block"},
        "stop": {
            "noise_std": 0.25, "covariance": "learned", "apply_to": "masked", "mask_token": True, "bias_on_noise": False,
            "penalty": "none", "penalty_weight": 0.0,
        },
        "masks": {
            "sampler": "multiblock", "target_blocks": 2, "target_scale_min": 0.15, "target_scale_max": 0.25, "target_aspect_min": 0.75,
            "target_aspect_max": 1.5, "context_scale_min": 0.85, "context_scale_max": 1.0, "min_context": 4,
            "hidden_ratio": 0.75,
        },
        "objective": {
            "name": "ijepa", "loss": "smooth_l1", "target_layers": 1, "low_resolution": "none", "normalise_pixels": True,
        },
        "augmentation": {"crop_scale_min": 0.5, "crop_scale_max": 1.0, "flip": True, "grayscale": 0.0, "blur": 0.0},
        "optimisation": {
            "epochs": 2, "warmup_epochs": 0.5, "global_batch_size": 16, "start_lr": 1e-4, "lr": 1e-3, "final_lr": 1e-5,
            "hold_after": 0.0, "weight_decay": 0.04, "final_weight_decay": 0.4, "decay_A": True, "beta2": 0.999,
            "clip_norm": 0.0, "ema": 0.99, "final_ema": 1.0, "skip_budget": 0,
        },
        "collapse": {"action": "warn", "effective_rank_floor": 0.0, "feature_std_floor": 0.0, "patience": 2},
        "quality": {
            "every_epochs": 0.0, "dataset": "toy", "train_split": "train", "test_split": "test", "train_images": 40, "test_images": 24,
            "resize_short_side": 0, "knn_k": 5,
        },
        "scale": {
            "backend": "ray", "workers": 1, "device": "cpu", "cpus_per_worker": 1, "images_at_once": 0, "sharding": "ddp", "loaders": 0,
            "precision": "fp32", "activation_checkpointing": False, "compile": False,
        },
        "log_every": 1,
        "checkpoint_every": 2,
        "keep_last": 2,
        "keep_every": 0,
    }  # fmt: skip
