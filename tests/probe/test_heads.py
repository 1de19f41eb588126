import math

import numpy as np
import pytest
import torch

from components.probe.heads import Head, batches, fit, grid
from components.probe.params import HeadParams

CLASSES = 4


def params(**changes: object) -> HeadParams:
    values: dict[str, object] = {
        "seed": 3,
        "profile": "paper",
        "holdout_fraction": 0.2,
        "batch_size": 64,
        "learning_rates": [0.05, 2.0],
        "weight_decays": [0.0, 0.03],
        "batch_norm": "both",
        "layers": 4,
        "encoding_batch_size": 32,
    }
    return HeadParams.model_validate(values | changes)


def blobs(n: int, width: int, spread: float, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    draws = np.random.default_rng(seed)
    centres = np.random.default_rng(99).normal(size=(CLASSES, width)) * 3
    labels = draws.integers(0, CLASSES, n)
    scale = np.linspace(0.2, 3.0, width)
    return ((centres[labels] + draws.normal(size=(n, width)) * spread) * scale + 1).astype(np.float32), labels


def by_torch(head: Head, x: np.ndarray, y: np.ndarray, settings: HeadParams, epochs: int) -> torch.nn.Sequential:
    """One head by torch's own layers and optimiser, one step after the other."""
    linear, norm = torch.nn.Linear(x.shape[1], CLASSES), torch.nn.BatchNorm1d(x.shape[1])
    torch.nn.init.zeros_(linear.weight)
    torch.nn.init.zeros_(linear.bias)
    model = torch.nn.Sequential(norm, linear) if head.batch_norm else torch.nn.Sequential(linear)
    peak = head.learning_rate * settings.batch_size / 256
    groups = [
        {"params": list(linear.parameters()), "weight_decay": head.weight_decay},
        {"params": list(norm.parameters()), "weight_decay": 0.0},
    ]
    optimiser = torch.optim.SGD(groups, lr=peak, momentum=0.9, nesterov=True)
    order = list(batches(len(x), settings.batch_size, epochs, settings.seed))
    for step, (_, rows) in enumerate(order, 1):
        for group in optimiser.param_groups:
            group["lr"] = peak * (0.01 + 0.99 * (1 + math.cos(math.pi * step / len(order))) / 2)
        optimiser.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(torch.from_numpy(x[rows.numpy()])), torch.from_numpy(y)[rows])
        loss.backward()  # type: ignore[no-untyped-call]
        optimiser.step()
    return model.eval()


def test_every_head_equals_the_same_head_trained_by_torch() -> None:
    settings, epochs = params(), 3
    (x, y), (test, _) = blobs(200, 12, 2.5), blobs(50, 12, 2.5, seed=1)
    trained = fit(settings, epochs, {"a": x, "b": x[:, :5].copy()}, y, CLASSES, "test")
    predictions = trained.predict({"a": test, "b": test[:, :5].copy()})
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


@pytest.mark.parametrize("batch_norm", ["no", "yes"])
def test_separable_classes_are_told_apart_without_a_fault(batch_norm: str) -> None:
    (x, y), (test, actual) = blobs(400, 16, 0.1), blobs(300, 16, 0.1, seed=1)
    trained = fit(params(batch_norm=batch_norm, weight_decays=[0.0]), 10, {"a": x}, y, CLASSES, "test")
    assert (trained.predict({"a": test}) == actual).all()


def test_equal_seeds_give_equal_bits_and_others_do_not() -> None:
    x, y = blobs(150, 8, 3.0)
    first, second, other = (
        fit(params(seed=seed), 2, {"a": x}, y, CLASSES, "test").groups[1].weight for seed in (1, 1, 2)
    )
    assert torch.equal(first, second)
    assert not torch.equal(first, other)


def test_an_epoch_visits_every_row_once_in_batches_of_like_size() -> None:
    visits = list(batches(rows=101, batch_size=25, epochs=3, seed=0))
    assert [epoch for epoch, _ in visits] == [0] * 5 + [1] * 5 + [2] * 5
    assert {len(rows) for _, rows in visits} == {20, 21}
    epochs = [torch.cat([rows for e, rows in visits if e == epoch]) for epoch in range(3)]
    for order in epochs:
        assert sorted(order.tolist()) == list(range(101))
    assert not torch.equal(epochs[0], epochs[1])


def test_heads_with_near_equal_learning_rates_stay_apart() -> None:
    heads = grid(params(learning_rates=[1e-6, 1.1e-6, 1e-7], weight_decays=[0.0]), ["last", "last4"])
    assert len(heads) == len(set(heads)) == 12


def test_bad_features_are_refused() -> None:
    x, y = blobs(20, 4, 1.0)
    x[3, 2] = np.nan
    with pytest.raises(ValueError, match=r"digits: feature set 'last' is not finite"):
        fit(params(), 1, {"last": x}, y, CLASSES, "digits")
    with pytest.raises(ValueError, match=r"digits: 1 training images; heads need 2"):
        fit(params(), 1, {"last": x[:1]}, y[:1], CLASSES, "digits")
