"""Every switch changes the numbers that it should, and no others."""

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from components.images.store import Store
from components.images.transforms import normalise
from components.mim import masks, objectives
from components.mim.encoder import gather
from components.mim.positions import draw_noise
from components.pretrain.batches import Batches
from components.pretrain.contract import PretrainParams
from components.pretrain.loop import Trainer
from components.pretrain.parallel import Alone
from components.stage import validate

Numbers = dict[str, list[Tensor]]


def start(values: dict[str, Any], toy: Path) -> Trainer:
    params = validate(PretrainParams, values, "test")
    assert isinstance(params, PretrainParams)
    batches = Batches(params, Store(toy, "train"), 0, 1)
    return Trainer(params, batches, Alone(torch.device("cpu")), Path(params.init.path))


def numbers(values: dict[str, Any], toy: Path) -> Numbers:
    """What a run with these values draws, predicts, is told and learns in its first two steps."""
    one = start(values, toy)
    params, model = one.params, one.model
    first = {f"first {name}": [tensor.clone()] for name, tensor in model.state_dict().items()}
    steps = list(one.batches.steps(0, 2))
    images, places = normalise(steps[0].pixels), steps[0].places
    drawn = masks.sample(params.seed, 0, places, one.grid, params.masks)
    noise = draw_noise(params.stop, params.seed, 0, places, drawn, params.encoder.width, params.predictor.width)
    targets = objectives.targets(params.objective, one.target, images, params.encoder.patch_size)
    with torch.no_grad():
        quiet = model.predict(images, drawn, None)
    loss = model(images, drawn, noise, targets)
    loss.backward()
    gradients = {f"gradient {name}": [p.grad.clone()] for name, p in model.named_parameters() if p.grad is not None}
    assert len(gradients) == len(list(model.parameters()))
    for batch in steps:
        one.set_schedules()
        one.update(batch, measure=True)
        one.step += 1
    return {
        "crops": [steps[0].pixels],
        "masks": [drawn.context_BK, *drawn.targets],
        "noise": [t for part in (noise or ()) if part is not None for t in part],
        "targets": [t for t in targets if t is not None],
        "predictions": quiet,
        "loss": [loss.detach()],
        "target encoder": [p.clone() for p in one.target.parameters()] if one.target else [],
        **first,
        **gradients,
        **{f"after {name}": [tensor.clone()] for name, tensor in model.state_dict().items()},
    }


def same(one: list[Tensor], other: list[Tensor]) -> bool:
    return len(one) == len(other) and all(
        a.shape == b.shape and torch.equal(a, b) for a, b in zip(one, other, strict=True)
    )


@pytest.fixture(scope="module")
def known() -> dict[str, Numbers]:
    return {}


LEARNT = {"gradient", "after", "target encoder"}
ALL = {"masks", "noise", "targets", "predictions", "loss", "first"} | LEARNT
SWITCHES: list[tuple[dict[str, Any], set[str]]] = [
    # what is set, and the only numbers that may change; each of them must, in at least one tensor
    ({"stop.noise_std": 0.5}, {"noise", "loss"} | LEARNT),
    ({"stop.covariance": "untied"}, {"first predictor.noise_embed.weight", "loss"} | LEARNT),
    ({"stop.covariance": "fixed"}, {"noise", "loss"} | LEARNT),
    ({"stop.apply_to": "context"}, {"noise", "loss"} | LEARNT),
    ({"stop.apply_to": "both"}, {"noise", "loss"} | LEARNT),
    ({"stop.mask_token": False, "stop.bias_on_noise": True}, {"first predictor.mask_token", "predictions", "loss"} | LEARNT),
    ({"stop.bias_on_noise": True}, {"gradient predictor.embed.bias", "after", "target encoder"}),  # b is 0 at first
    ({"stop.penalty": "l1", "stop.penalty_weight": 0.1}, {"loss", "gradient predictor.embed.weight", "after", "target encoder"}),
    ({"stop.penalty": "l2", "stop.penalty_weight": 0.1}, {"loss", "gradient predictor.embed.weight", "after", "target encoder"}),
    ({"masks.sampler": "random"}, {"masks", "noise", "predictions", "loss"} | LEARNT),
    ({"masks.target_blocks": 3}, {"masks", "noise", "predictions", "loss"} | LEARNT),
    ({"predictor.passes": "joint"}, {"predictions", "loss"} | LEARNT),
    ({"predictor.positions": "learned"}, {"first predictor.positions", "predictions", "loss"} | LEARNT),
    ({"encoder.positions": "learned"}, {"first encoder.positions", "targets", "predictions", "loss"} | LEARNT),
    ({"encoder.class_token": True}, {"first encoder.class_token", "targets", "predictions", "loss"} | LEARNT),
    ({"objective.loss": "l2"}, {"loss"} | LEARNT),
    ({"objective.name": "data2vec", "objective.target_layers": 2}, {"targets", "loss"} | LEARNT),
    ({"objective.name": "mae"}, {"first predictor.head", "targets", "predictions", "loss"} | LEARNT),
    ({"objective.low_resolution": "bilinear"}, {"first predictor.low_head", "targets", "loss"} | LEARNT),
    ({"objective.low_resolution": "max_pool"}, {"first predictor.low_head", "targets", "loss"} | LEARNT),
    ({"objective.normalise_pixels": False}, set()),  # features have no pixels to normalise
    ({"optimisation.decay_A": False}, {"after", "target encoder"}),
    ({"optimisation.beta2": 0.95}, {"after", "target encoder"}),
    ({"optimisation.clip_norm": 1e-3}, {"after", "target encoder"}),
    ({"optimisation.ema": 0.5}, {"target encoder", "after"}),
    ({"optimisation.lr": 2e-3}, {"after", "target encoder"}),
    ({"optimisation.start_lr": 5e-4}, {"after", "target encoder"}),
    ({"optimisation.warmup_epochs": 1.0}, {"after", "target encoder"}),
    ({"optimisation.weight_decay": 0.2}, {"after", "target encoder"}),
    ({"optimisation.final_weight_decay": 0.04}, {"after", "target encoder"}),
    ({"optimisation.final_ema": 0.99}, {"target encoder"}),
    ({"scale.precision": "bf16"}, {"after", "target encoder"}),
    ({"masks.target_scale_min": 0.4, "masks.target_scale_max": 0.5, "masks.min_context": 1},
     {"masks", "noise", "predictions", "loss"} | LEARNT),
    ({"masks.context_scale_min": 0.5, "masks.context_scale_max": 0.6, "masks.min_context": 1},
     {"masks", "predictions", "loss"} | LEARNT),
    ({"masks.target_aspect_max": 4.0, "masks.min_context": 1}, {"masks", "noise", "predictions", "loss"} | LEARNT),
    ({"augmentation.crop_scale_min": 0.9}, {"crops", "targets", "predictions", "loss"} | LEARNT),
    ({"weight_init": "fixed"}, {"first", "targets", "predictions", "loss"} | LEARNT),
    ({"weight_init": "xavier"}, {"first", "targets", "predictions", "loss"} | LEARNT),
    ({"augmentation.grayscale": 0.5}, {"crops", "targets", "predictions", "loss"} | LEARNT),
    ({"augmentation.blur": 0.5}, {"crops", "targets", "predictions", "loss"} | LEARNT),
    ({"augmentation.flip": False}, {"crops", "targets", "predictions", "loss"} | LEARNT),
    ({"collapse.action": "fail", "collapse.feature_std_floor": 1e-9}, set()),
    ({"scale.activation_checkpointing": True}, set()),
    ({"seed": 1}, ALL | {"crops"}),
]  # fmt: skip


def changed(values: dict[str, Any], settings: dict[str, Any]) -> dict[str, Any]:
    values = copy.deepcopy(values)
    for path, value in settings.items():
        *folders, leaf = path.split(".")
        inner = values
        for folder in folders:
            inner = inner[folder]
        inner[leaf] = value
    return values


@pytest.mark.parametrize(
    ("settings", "expected"), SWITCHES, ids=lambda v: next(iter(v)) if isinstance(v, dict) and v else ""
)
def test_a_switch_changes_what_it_should_and_nothing_else(
    known: dict[str, Numbers], tiny: dict[str, Any], toy_images: Path, settings: dict[str, Any], expected: set[str]
) -> None:
    before = known.setdefault("tiny", numbers(tiny, toy_images)) if "tiny" not in known else known["tiny"]
    after = numbers(changed(tiny, settings), toy_images)
    moved = {name for name in before.keys() | after.keys() if not same(before.get(name, []), after.get(name, []))}
    stray = {name for name in moved if not any(name.startswith(allowed) for allowed in expected)}
    assert not stray, sorted(stray)
    idle = {allowed for allowed in expected if not any(name.startswith(allowed) for name in moved)}
    assert not idle, sorted(idle)


def test_decay_of_a_touches_a_alone(tiny: dict[str, Any], toy_images: Path) -> None:
    """One step: everything else moves as before, A by lr·decay·A less."""
    found = []
    for decay in (True, False):
        one = start(changed(tiny, {"optimisation.decay_A": decay, "optimisation.weight_decay": 0.4}), toy_images)
        first = one.model.predictor.embed.weight.detach().clone()
        one.set_schedules()
        one.update(next(iter(one.batches.steps(0, 1))), measure=False)
        found.append({name: tensor.clone() for name, tensor in one.model.state_dict().items()})
    name = "predictor.embed.weight"
    assert all(torch.equal(tensor, found[1][key]) for key, tensor in found[0].items() if key != name)
    torch.testing.assert_close(found[1][name] - found[0][name], one.lr * one.weight_decay * first, rtol=1e-3, atol=1e-7)


def test_the_penalty_is_the_mean_of_a_or_its_square(tiny: dict[str, Any], toy_images: Path) -> None:
    measure: Callable[[dict[str, Any]], float] = lambda s: numbers(changed(tiny, s), toy_images)["loss"][0].item()  # noqa: E731
    weight = start(tiny, toy_images).model.predictor.embed.weight.detach()
    for kind, size in (("l1", weight.abs().mean()), ("l2", weight.square().mean())):
        added = measure({"stop.penalty": kind, "stop.penalty_weight": 3.0}) - measure({})
        assert added == pytest.approx(3.0 * size.item(), rel=1e-4)


def test_one_block_is_the_same_joint_or_alone(tiny: dict[str, Any], toy_images: Path) -> None:
    for settings in ({"masks.target_blocks": 1}, {"masks.sampler": "random"}):
        one, other = (
            numbers(changed(tiny, {**settings, "predictor.passes": passes}), toy_images)
            for passes in ("block", "joint")
        )
        assert all(same(one[name], other[name]) for name in one)


def test_data2vec_of_one_layer_is_i_jepa_where_the_final_norm_is_an_identity(
    tiny: dict[str, Any], toy_images: Path
) -> None:
    one = numbers(tiny, toy_images)  # fresh LayerNorms have weight 1 and bias 0
    other = numbers(changed(tiny, {"objective.name": "data2vec"}), toy_images)
    torch.testing.assert_close(one["targets"][0], other["targets"][0], rtol=1e-4, atol=1e-5)


def test_pixels_are_normalised_when_asked_and_random_masks_hide_what_is_asked(
    tiny: dict[str, Any], toy_images: Path
) -> None:
    mae = {"objective.name": "mae", "masks.sampler": "random"}
    one, other = (numbers(changed(tiny, {**mae, "objective.normalise_pixels": on}), toy_images) for on in (True, False))
    assert not same(one["targets"], other["targets"]) and same(one["predictions"], other["predictions"])
    assert one["targets"][0].var(dim=-1).mean().item() == pytest.approx(1.0, abs=0.01)
    half = numbers(changed(tiny, {**mae, "masks.hidden_ratio": 0.5}), toy_images)
    assert [part.shape[1] for part in one["masks"]] == [4, 12] and [part.shape[1] for part in half["masks"]] == [8, 8]


def test_low_resolution_counts_as_much_as_the_full(tiny: dict[str, Any], toy_images: Path) -> None:
    one = start(changed(tiny, {"objective.low_resolution": "bilinear"}), toy_images)
    batch = next(iter(one.batches.steps(0, 1)))
    images = normalise(batch.pixels)
    drawn = masks.sample(0, 0, batch.places, one.grid, one.params.masks)
    targets = objectives.targets(one.params.objective, one.target, images, 4)
    assert targets.low_BND is not None
    states = one.model.states(images, drawn, None)
    losses = [
        objectives.mean_loss([head(s) for s in states], [gather(wanted, block) for block in drawn.targets], "smooth_l1")
        for head, wanted in (
            (one.model.predictor.head, targets.full_BND),
            (one.model.predictor.low_head, targets.low_BND),
        )
    ]
    assert losses[0].item() != pytest.approx(losses[1].item(), rel=1e-3)
    torch.testing.assert_close(one.model(images, drawn, None, targets), (losses[0] + losses[1]) / 2)


def test_clipping_scales_every_gradient_alike(tiny: dict[str, Any], toy_images: Path) -> None:
    found = []
    for clip in (0.0, 1e-3):
        one = start(changed(tiny, {"optimisation.clip_norm": clip}), toy_images)
        one.set_schedules()
        done = one.update(next(iter(one.batches.steps(0, 1))), measure=True)
        found.append((done.gradient_norm, [p.grad.clone() for p in one.model.parameters() if p.grad is not None]))
    (norm, free), (logged, clipped) = found
    assert logged == norm > 1e-3  # the curve shows the norm before
    for a, b in zip(free, clipped, strict=True):
        torch.testing.assert_close(b, a * (1e-3 / norm), rtol=1e-3, atol=1e-12)
