"""Params of a run that takes a second."""

from typing import Any

import pytest


@pytest.fixture
def tiny() -> dict[str, Any]:
    """Valid pretrain values: 16-pixel images in 4×4 patches, 2 epochs of 3 steps of 16 images."""
    return {
        "seed": 0,
        "weight_init": "fan_in",
        "dataset": "toy",
        "encoder": {"image_size": 16, "patch_size": 4, "width": 24, "layers": 2, "heads": 2},
        "predictor": {"width": 16, "layers": 1, "heads": 2},
        "stop": {"noise_std": 0.25, "mask_token": True, "bias_on_noise": False},
        "masks": {
            "target_blocks": 2, "target_scale_min": 0.15, "target_scale_max": 0.25, "target_aspect_min": 0.75,
            "target_aspect_max": 1.5, "context_scale_min": 0.85, "context_scale_max": 1.0, "min_context": 4,
        },
        "augmentation": {"crop_scale_min": 0.5, "crop_scale_max": 1.0, "flip": True},
        "optimisation": {
            "epochs": 2, "warmup_epochs": 0.5, "global_batch_size": 16, "start_lr": 1e-4, "lr": 1e-3, "final_lr": 1e-5,
            "weight_decay": 0.04, "final_weight_decay": 0.4, "ema": 0.99, "final_ema": 1.0,
        },
        "scale": {"workers": 1, "device": "cpu", "cpus_per_worker": 1, "precision": "fp32"},
        "log_every": 1,
        "checkpoint_every": 2,
    }  # fmt: skip
