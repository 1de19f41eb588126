import math
from collections.abc import Iterator

import numpy as np
import pytest
import torch

from components.probe.grid import Head, grid, plan
from components.probe.group import start
from components.probe.heads import Task, fit
from components.probe.params import HeadParams

from .arrays import CPU, cached, features, heads

CLASSES = 4
SEED = 3


def task(epochs: int, classes: int = CLASSES) -> Task:
    return Task("test", [f"class {i}" for i in range(classes)], epochs)


def blobs(n: int, width: int, spread: float, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    draws = np.random.default_rng(seed)
    centres = np.random.default_rng(99).normal(size=(CLASSES, width)) * 3
    labels = draws.integers(0, CLASSES, n)
    scale = np.linspace(0.2, 3.0, width)
    return ((centres[labels] + draws.normal(size=(n, width)) * spread) * scale + 1).astype(np.float32), labels


class Lars(torch.optim.Optimizer):
    """LARS as its paper has it, one tensor after the other: vectors are not adapted, momentum is plain."""

    def __init__(self, groups: list[dict[str, object]], lr: float) -> None:
        super().__init__(groups, {"lr": lr, "weight_decay": 0.0})

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for value in group["params"]:
                slope = value.grad + group["weight_decay"] * value
                if value.dim() > 1 and value.norm() > 0 and slope.norm() > 0:
                    slope = slope * 0.001 * value.norm() / slope.norm()
                state = self.state[value]
                state["mu"] = 0.9 * state.get("mu", torch.zeros_like(value)) + slope
                value -= group["lr"] * state["mu"]


def rates(settings: HeadParams, epochs: int, steps: int) -> Iterator[float]:
    """The factor at the learning rate in each update, by the formulas."""
    for step in range(1, steps + 1):
        epoch = (step - 1) // (steps // epochs)
        if settings.schedule == "cosine":
            yield 0.01 + 0.99 * (1 + math.cos(math.pi * step / steps)) / 2
        else:
            yield 0.1 ** len([milestone for milestone in settings.milestones if epoch >= milestone])


def by_torch(head: Head, x: np.ndarray, y: np.ndarray, settings: HeadParams, epochs: int) -> torch.nn.Sequential:
    """One head by torch's own layers and optimiser, one step after the other."""
    linear, norm = torch.nn.Linear(x.shape[1], CLASSES), torch.nn.BatchNorm1d(x.shape[1])
    torch.nn.init.zeros_(linear.weight)
    torch.nn.init.zeros_(linear.bias)
    if settings.optimiser == "lars":
        linear.weight.data.copy_(start(SEED, head.features, CLASSES, x.shape[1]))
    model = torch.nn.Sequential(norm, linear) if head.batch_norm else torch.nn.Sequential(linear)
    peak = head.learning_rate * settings.batch_size / 256
    groups: list[dict[str, object]] = [{"params": list(linear.parameters()), "weight_decay": head.weight_decay}]
    groups += [{"params": list(norm.parameters()), "weight_decay": 0.0}] if head.batch_norm else []
    optimiser: torch.optim.Optimizer = (
        Lars(groups, peak)
        if settings.optimiser == "lars"
        else torch.optim.SGD(groups, lr=peak, momentum=0.9, nesterov=True)
    )
    steps = list(plan(settings, len(x), epochs, SEED))
    for step, factor in zip(steps, rates(settings, epochs, len(steps)), strict=True):
        for group in optimiser.param_groups:
            group["lr"] = peak * factor
        optimiser.zero_grad()
        batch = torch.from_numpy(x[step.rows.numpy()])
        torch.nn.functional.cross_entropy(model(batch), torch.from_numpy(y)[step.rows]).backward()  # type: ignore[no-untyped-call]
        optimiser.step()
    return model.eval()


RECIPES = [
    {},
    {"schedule": "step", "milestones": [1, 2]},
    {"optimiser": "lars", "learning_rates": [5.0, 100.0], "schedule": "step", "milestones": [2]},
]


@pytest.mark.parametrize("recipe", RECIPES)
def test_every_head_equals_the_same_head_trained_by_torch(recipe: dict[str, object]) -> None:
    settings, epochs = heads(**recipe), 3
    (x, y), (test, _) = blobs(200, 12, 2.5), blobs(50, 12, 2.5, seed=1)
    trained = fit(settings, task(epochs), cached({"a": x, "b": x[:, :5]}, y), SEED, CPU)
    predictions = trained.predict(features({"a": test, "b": test[:, :5]}))
    assert len(trained.heads) == 16
    for index, head in enumerate(trained.heads):
        width = {"a": 12, "b": 5}[head.features]
        model = by_torch(head, x[:, :width].copy(), y, settings, epochs)
        group = trained.groups[index // 4]
        assert (group.features, group.batch_norm) == (head.features, head.batch_norm)
        torch.testing.assert_close(group.weight[index % 4], model[-1].weight.data, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(group.bias[index % 4], model[-1].bias.data, rtol=1e-4, atol=1e-5)
        if head.batch_norm:
            torch.testing.assert_close(group.scale[index % 4], model[0].weight.data, rtol=1e-4, atol=1e-5)
            torch.testing.assert_close(group.shift[index % 4], model[0].bias.data, rtol=1e-4, atol=1e-5)
            torch.testing.assert_close(group.mean, model[0].running_mean, rtol=1e-5, atol=1e-6)
            torch.testing.assert_close(group.variance, model[0].running_var, rtol=1e-5, atol=1e-6)
        expected = model(torch.from_numpy(test[:, :width].copy())).argmax(1).numpy()
        np.testing.assert_array_equal(predictions[index], expected)


@pytest.mark.parametrize("recipe", [{}, {"optimiser": "lars", "learning_rates": [20.0]}])
@pytest.mark.parametrize("batch_norm", ["no", "yes"])
def test_separable_classes_are_told_apart_without_a_fault(recipe: dict[str, object], batch_norm: str) -> None:
    (x, y), (test, actual) = blobs(400, 16, 0.1), blobs(300, 16, 0.1, seed=1)
    trained = fit(heads(batch_norm=batch_norm, weight_decays=[0.0], **recipe), task(30), cached({"a": x}, y), SEED, CPU)
    assert (trained.predict(features({"a": test})) == actual).all()


def test_shuffled_labels_stay_at_chance() -> None:
    """Within four standard deviations of the binomial of 2000 rows; each head is one of them."""
    (x, y), (test, actual) = blobs(400, 16, 0.5), blobs(2000, 16, 0.5, seed=1)
    y, actual = (np.random.default_rng(5).permutation(labels) for labels in (y, actual))
    trained = fit(heads(), task(5), cached({"a": x}, y), SEED, CPU)
    right = (trained.predict(features({"a": test})) == actual).mean(axis=1)
    assert np.abs(right - 1 / CLASSES).max() < 4 * math.sqrt(0.25 * 0.75 / 2000)


def test_equal_seeds_give_equal_bits_and_others_do_not() -> None:
    x, y = blobs(150, 8, 3.0)
    first, second, other = (
        fit(heads(), task(2), cached({"a": x}, y), seed, CPU).groups[1].weight for seed in (1, 1, 2)
    )
    assert torch.equal(first, second)
    assert not torch.equal(first, other)


def test_an_epoch_visits_every_row_once_in_batches_of_like_size() -> None:
    visits = list(plan(heads(batch_size=25), rows=101, epochs=3, seed=0))
    assert [step.epoch for step in visits] == [0] * 5 + [1] * 5 + [2] * 5
    assert {len(step.rows) for step in visits} == {20, 21}
    epochs = [torch.cat([step.rows for step in visits if step.epoch == epoch]) for epoch in range(3)]
    for order in epochs:
        assert sorted(order.tolist()) == list(range(101))
    assert not torch.equal(epochs[0], epochs[1])
    later = list(plan(heads(batch_size=25), rows=101, epochs=3, seed=0, first=1))
    assert all(torch.equal(a.rows, b.rows) and a[::2] == b[::2] for a, b in zip(later, visits[5:], strict=True))


def test_the_rate_falls_where_vissl_says() -> None:
    """8, 16 and 24 of 28 epochs for ImageNet; the cosine ends at a hundredth, as CLEVR's 0.01 to 0.0001."""
    steps = [step.factor for step in plan(heads(schedule="step", milestones=[8, 16, 24]), 64, 28, 0)]
    np.testing.assert_allclose(steps, [1.0] * 8 + [0.1] * 8 + [0.01] * 8 + [0.001] * 4)
    cosine = [step.factor for step in plan(heads(), 6400, 5, 0)]
    assert cosine[-1] == pytest.approx(0.01) and cosine[249] == pytest.approx(0.505)


def test_heads_with_near_equal_learning_rates_stay_apart() -> None:
    made = grid(heads(learning_rates=[1e-6, 1.1e-6, 1e-7], weight_decays=[0.0]), ["last", "last4"])
    assert len(made) == len(set(made)) == 12


def test_one_row_is_refused() -> None:
    x, y = blobs(1, 4, 1.0)
    with pytest.raises(ValueError, match=r"test: 1 training images; heads need 2"):
        fit(heads(), task(1), cached({"last": x}, y), SEED, CPU)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"learning_rates": [0.1, 0.1]}, r"learning_rates is \[0.1, 0.1\]; each value may stand once"),
        ({"weight_decays": [0.1, 0.1]}, r"weight_decays is \[0.1, 0.1\]; each value may stand once"),
        ({"schedule": "step"}, r"milestones is \[\]; schedule 'step' needs one or more"),
        (
            {"schedule": "step", "milestones": [8, 4]},
            r"milestones is \[8, 4\]; schedule 'step' needs one or more, in order",
        ),
    ],
)
def test_grids_that_contradict_themselves_are_refused(changes: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        heads(**changes)


def test_a_milestone_behind_the_end_is_refused() -> None:
    heads(milestones=[30]).fit_into(4)  # a cosine reads none
    with pytest.raises(ValueError, match=r"heads.milestones is \[4, 8\], but there are 8 epochs; the last milestone"):
        heads(schedule="step", milestones=[4, 8]).fit_into(8)
