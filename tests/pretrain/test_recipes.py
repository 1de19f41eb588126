"""Every preset trains, at toy size: each parameter gets a gradient, and the recipe says what its source does."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch

from components.images.store import Store
from components.mim import schedules
from components.pretrain.batches import Batches
from components.pretrain.contract import PretrainParams
from components.pretrain.loop import Trainer
from components.pretrain.parallel import Alone
from components.stage import read_yaml, validate
from flows import presets

PROJECT = Path(__file__).parents[2]
PRESETS = sorted(path.stem for path in (PROJECT / "params/presets").glob("*.yaml") if path.stem != "published")
RECIPES = [name for name in presets.recipes(PROJECT) if name not in ("demo", "cifar10")]


def values(name: str) -> dict[str, Any]:
    """The preset over ViT-B/16, if it is no recipe itself: overlays such as legacy_masks need a grid of photographs."""
    return presets.compose(PROJECT, [name] if name in presets.recipes(PROJECT) else ["vit_b16", name])["pretrain"]


def toy_size(chosen: dict[str, Any]) -> dict[str, Any]:
    """The same recipe on 40-pixel images in 4×4 patches: a 10×10 grid, where every sampler works."""
    heads = 2
    chosen["encoder"] |= {"image_size": 40, "patch_size": 4, "width": 24, "layers": 2, "heads": heads}
    chosen["predictor"] |= {"width": 16, "layers": 1, "heads": heads}
    epochs = min(chosen["optimisation"]["epochs"], 2)  # 0 passes an imported encoder on
    chosen["optimisation"] |= {"global_batch_size": 8, "epochs": epochs, "warmup_epochs": epochs / 2}
    chosen["optimisation"]["hold_after"] = min(chosen["optimisation"]["hold_after"], 1.5)
    chosen["scale"] |= {"workers": 1, "device": "cpu", "loaders": 0, "precision": "fp32"}
    chosen["objective"]["target_layers"] = min(chosen["objective"]["target_layers"], 2)
    chosen["masks"]["min_context"] = min(chosen["masks"]["min_context"], 10)
    return chosen


@pytest.mark.parametrize("name", PRESETS)
def test_every_parameter_gets_a_gradient(name: str, toy_images: Path) -> None:
    params = validate(PretrainParams, toy_size(values(name)), name)
    assert isinstance(params, PretrainParams)
    batches = Batches(params, Store(toy_images, "train"), 0, 1)
    one = Trainer(params, batches, Alone(torch.device("cpu")), Path(params.init.path))
    rows = []
    batch = next(iter(batches.steps(0, 1)))
    one.set_schedules()
    one.update(batch, measure=True)
    for key, parameter in one.model.named_parameters():
        assert parameter.grad is not None and parameter.grad.abs().sum() > 0, key
    one.steps = 1  # the loop's own last step, with its row
    one.train(lambda row, own: rows.append(row), lambda: None)
    assert len(rows) == 1 and all(math.isfinite(value) for value in rows[0].values())


STOP, PLAIN = ("flip", 0.2, 0.5), (False, 0.0, 0.0)
RELEASED, ALGORITHM_1 = (False, True), (True, False)  # mask token, bias on noise
PAPER = {  # source: reference configs and the paper's tables, as method facts
    "vit_b16": ((768, 12, 12, 16), (6, 384, 12), (600, 15, 2048), (2e-4, 8e-4, 1e-4), (0.04, 0.4), (0.25, *RELEASED), STOP),
    "vit_l16": ((1024, 24, 16, 16), (12, 384, 16), (600, 15, 2048), (2e-4, 8e-4, 1e-4), (0.04, 0.4), (0.25, *RELEASED), STOP),
    "vit_h16": ((1280, 32, 16, 16), (12, 384, 16), (300, 40, 2048), (2e-4, 1e-3, 1e-6), (0.04, 0.4), (0.2, *RELEASED), STOP),
    "vit_h14": ((1280, 32, 16, 14), (12, 384, 16), (300, 40, 2048), (2e-4, 1e-3, 1e-6), (0.04, 0.4), (0.2, *ALGORITHM_1), STOP),
    "ijepa_vit_h14": ((1280, 32, 16, 14), (12, 384, 16), (300, 40, 2048), (2e-4, 1e-3, 1e-6), (0.04, 0.4), (0.0, *ALGORITHM_1), PLAIN),
    "ablation": ((768, 12, 12, 16), (6, 384, 12), (300, 15, 2048), (2e-4, 1e-3, 1e-4), (0.04, 0.4), (0.25, *ALGORITHM_1), STOP),
    "mae_vit_b16": (
        (768, 12, 12, 16), (8, 512, 16), (1600, 40, 4096), (0.0, 2.4e-3, 0.0), (0.05, 0.05), (0.0, *ALGORITHM_1), ("flip", 0.0, 0.0),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", PAPER)
def test_a_recipe_is_that_of_its_source(name: str) -> None:
    chosen = values(name)
    encoder, predictor, rates = chosen["encoder"], chosen["predictor"], chosen["optimisation"]
    stop, crops = chosen["stop"], chosen["augmentation"]
    found = (
        (encoder["width"], encoder["layers"], encoder["heads"], encoder["patch_size"]),
        (predictor["layers"], predictor["width"], predictor["heads"]),
        (rates["epochs"], rates["warmup_epochs"], rates["global_batch_size"]),
        (rates["start_lr"], rates["lr"], rates["final_lr"]),
        (rates["weight_decay"], rates["final_weight_decay"]),
        (stop["noise_std"], stop["mask_token"], stop["bias_on_noise"]),
        (crops["flip"] and "flip", crops["grayscale"], crops["blur"]),
    )
    assert found == PAPER[name]
    mae = name == "mae_vit_b16"
    assert rates["beta2"] == (0.95 if mae else 0.999) and (mae or (rates["ema"], rates["final_ema"]) == (0.996, 1.0))
    assert chosen["objective"]["name"] == ("mae" if mae else "ijepa") and encoder["class_token"] == mae
    assert chosen["masks"]["sampler"] == ("random" if mae else "multiblock")
    assert crops["crop_scale_min"] == (0.2 if mae else 0.3)


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_names_its_source_and_the_score_to_expect(name: str) -> None:
    text = presets.description(PROJECT, name)
    assert "score" in text and ("at " in text or "own" in text or "Table" in text)


def test_the_held_rates_of_vit_h_are_the_released_ones() -> None:
    """From epoch 250 of 300 on: learning rate 8.94e-5, weight decay 0.3759."""
    rates, per_epoch = values("vit_h16")["optimisation"], 625
    steps, hold = rates["epochs"] * per_epoch, round(rates["hold_after"] * per_epoch)
    for step in (hold, hold + 5000, steps - 1):
        lr = schedules.learning_rate(
            step, steps=steps, warmup_steps=40 * per_epoch, start=rates["start_lr"], peak=rates["lr"],
            final=rates["final_lr"], hold_after=hold,
        )  # fmt: skip
        decay = schedules.weight_decay(
            step, steps=steps, start=rates["weight_decay"], final=rates["final_weight_decay"], hold_after=hold
        )
        assert lr == pytest.approx(8.94e-5, rel=1e-3) and decay == pytest.approx(0.3759, rel=1e-3)


def test_overlays_say_what_their_names_do() -> None:
    forms = {
        name: read_yaml(PROJECT / f"params/presets/{name}.yaml")["pretrain"]["stop"]
        for name in ("stop_paper", "stop_released", "flexpredict", "ijepa")
    }
    assert forms["flexpredict"] == forms["stop_paper"]
    said = {name: (form["noise_std"], form["mask_token"], form["bias_on_noise"]) for name, form in forms.items()}
    assert said["stop_paper"] == (0.5, True, False) and said["stop_released"] == (0.25, False, True)
    assert said["ijepa"] == (0.0, True, False)
