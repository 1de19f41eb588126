"""Time, memory and ways out, by hand on devices of round numbers."""

from pathlib import Path
from typing import Any

import pytest

from components.preflight.devices import DEVICES, GIB, Device, device
from components.preflight.memory import CONTEXT, FRAGMENTS
from components.preflight.prediction import costs, predict, warnings
from components.pretrain.contract import PretrainParams
from components.stage import read_yaml


def recipe(repository: Path, preset: str, **scale: Any) -> PretrainParams:
    values = read_yaml(repository / f"params/presets/{preset}.yaml")["pretrain"]
    values["scale"] |= scale
    return PretrainParams.model_validate(values)


def test_a_step_is_matrix_products_and_then_the_update(repository: Path) -> None:
    cost = costs(recipe(repository, "vit_s16", precision="bf16"))
    slow = Device("slow", "gpu", 1e12, 1e11, 1e12, 1e9)
    found = predict(cost, slow, 0.5)
    products, update = 128 * cost.flops.model / 0.5e12, (28 * cost.size.trained + 12 * cost.size.target) / 1e9
    assert found.step_s == pytest.approx(products + update)
    assert found.images_per_s == pytest.approx(1024 / found.step_s)
    assert found.hours(3600 * found.images_per_s) == pytest.approx(1)


def test_fp32_runs_at_the_fp32_peak_and_so_does_bf16_without_units_for_it() -> None:
    assert DEVICES["a100-80"].rate("bf16", 1.0) == 312e12
    assert DEVICES["a100-80"].rate("fp32", 1.0) == 19.5e12
    assert DEVICES["v100"].rate("bf16", 1.0) == 15.7e12


def test_the_largest_batch_is_the_last_that_fits(repository: Path) -> None:
    params = recipe(repository, "vit_h14", activation_checkpointing=False, precision="bf16", workers=32)
    largest = predict(costs(params), DEVICES["a100-40"]).largest
    cost = costs(params)
    held = cost.memory
    each = (held.activations + held.working) / cost.images

    def needed(images: int) -> float:
        return CONTEXT + FRAGMENTS * (held.tensors + (images - cost.images) * each)

    assert needed(largest) <= 40 * GIB < needed(largest + 1)


def test_what_does_not_fit_names_the_ways_out_and_each_of_them_fits(repository: Path) -> None:
    params = recipe(repository, "vit_h14", activation_checkpointing=False, precision="bf16", workers=2)
    cost, card = costs(params), DEVICES["a100-80"]
    assert not predict(cost, card).fits
    (told,) = warnings(cost, [predict(cost, card)])
    assert told.startswith("does not fit: 1024 images on a device need ")
    assert (
        "scale.activation_checkpointing true" not in told
        or predict(
            costs(recipe(repository, "vit_h14", activation_checkpointing=True, precision="bf16", workers=2)), card
        ).fits
    )
    workers = int(told.split("scale.workers ")[1].split()[0])
    batch = params.optimisation.global_batch_size
    fewer = next(other for other in range(workers - 1, 0, -1) if batch % other == 0)
    for count, fits in ((workers, True), (fewer, False)):
        other = recipe(repository, "vit_h14", activation_checkpointing=False, precision="bf16", workers=count)
        assert predict(costs(other), card).fits == fits


def test_what_is_unwise_is_told_once_for_all_devices(repository: Path) -> None:
    fp32 = costs(recipe(repository, "vit_b16", precision="fp32"))
    (told,) = warnings(fp32, [predict(fp32, each) for each in DEVICES.values()])
    assert "a100-40, a100-80, h100, h200" in told and "set scale.precision to bf16" in told
    bf16 = costs(recipe(repository, "vit_b16", precision="bf16"))
    (told,) = warnings(bf16, [predict(bf16, each) for each in DEVICES.values()])
    assert told.startswith("v100 has no units for bf16")


def test_an_unknown_device_is_refused_with_the_known_ones() -> None:
    with pytest.raises(
        ValueError, match="device is 'h1000'; it must be one of v100, a100-40, a100-80, h100, h200, cpu"
    ):
        device("h1000")


@pytest.mark.parametrize(
    ("preset", "card", "workers", "epochs", "hours"),
    [("ijepa_vit_h14", "a100-80", 16, 300, 72), ("vit_h16", "a100-80", 32, 300, 38)],
)
def test_published_hours_are_above_the_prediction_but_not_far(
    repository: Path, preset: str, card: str, workers: int, epochs: int, hours: float
) -> None:
    """I-JEPA's abstract: ViT-H/14 on 16 A100s in under 72 hours; its first version: ViT-H/16 on 32 in under 38."""
    params = recipe(repository, preset, workers=workers, precision="bf16", activation_checkpointing=False)
    predicted = predict(costs(params), DEVICES[card]).hours(epochs * 1_281_167)
    assert 0.5 * hours < predicted < hours
