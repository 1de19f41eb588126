"""A toy finetuning: 48 striped images of 4 classes, a ViT of two layers, a recipe of a second."""

import hashlib
from pathlib import Path
from typing import Any

import torch

from components.finetune.classifier import Classifier
from components.finetune.contract import FinetuneParams
from components.mim.encoder import Encoder, EncoderConfig
from components.mim.initialise import initialise

CONFIG = EncoderConfig(image_size=16, patch_size=4, width=24, layers=2, heads=2)


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def encoder(config: EncoderConfig = CONFIG, seed: int = 0) -> Encoder:
    made = Encoder(config)
    initialise(made, seed, "fan_in", "encoder.")
    return made


def classifier(made: Any = None, **how: Any) -> Classifier:
    """Over `made`, with a head large enough that every parameter has a gradient worth the name."""
    settings = {"pooling": "average", "norm": "encoder", "classes": 4} | how
    model = Classifier(made if made is not None else encoder(), **settings)
    model.initialise(0)
    with torch.no_grad():
        model.head.weight.mul_(1e4)
    return model


def params(profile: str = "clean", **changes: Any) -> FinetuneParams:
    """A legal recipe with some values changed, wherever in it they stand."""
    augmentation = {
        "crop_scale_min": 0.5, "crop_scale_max": 1.0, "flip": False, "rand_augment": "none",
        "random_erasing": 0.0, "mixup": 0.0, "cutmix": 0.0,
    }  # fmt: skip
    optimisation = {
        "epochs": 4, "warmup_epochs": 1.0, "batch_size": 8, "lr": 0.003, "final_lr": 1e-5, "weight_decay": 0.05,
        "layer_decay": 0.75, "label_smoothing": 0.1, "drop_path": 0.0,
    }  # fmt: skip
    member = {
        "dataset": "toy", "train_split": "train", "test_split": "test", "train_limit": 0, "test_limit": 0,
        "image_size": 16, "resize": "direct", "resize_short_side": 16, "train_list": "all.txt",
        "train_list_sha256": hashlib.sha256(b"*\n").hexdigest(), "train_per_class": 0, "pooling": "average", "norm": "encoder",
        "augmentation": augmentation, "optimisation": optimisation,
    }  # fmt: skip
    top = {
        "device": "cpu", "seed": 0, "profile": profile, "holdout_fraction": 0.2, "precision": "fp32", "workers": 0,
        "micro_batch_size": 0, "scoring_batch_size": 10, "finetunings": {"toy": member},
    }  # fmt: skip
    for name, value in changes.items():
        next(place for place in (top, member, augmentation, optimisation) if name in place)[name] = value
    return FinetuneParams.model_validate(top)
