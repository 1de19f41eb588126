import math

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import StandardScaler

from components.probe.logistic import classifier, sweep

N, D, CLASSES = 120, 6, 4


def draws(n: int, seed: int, spread: float = 2.0) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(seed)
    labels = generator.integers(0, CLASSES, n)
    centres = np.random.default_rng(99).normal(size=(CLASSES, D)) * 2
    scale = np.linspace(0.1, 5.0, D)
    return ((centres[labels] + generator.normal(size=(n, D)) * spread) * scale + 3).astype(np.float32), labels


@pytest.mark.parametrize("strength", [0.0025, 0.075, 4.0])
def test_lambda_means_what_it_means_in_the_released_code(strength: float) -> None:
    """Its objective is mean loss + λ/N/2·|W|², without an intercept: minimised here by torch in float64, to its end."""
    x, y = (torch.from_numpy(values) for values in draws(N, 0))
    x = (x.double() - x.double().mean(0)) / x.double().std(0, correction=0)
    weight = torch.zeros(CLASSES, D, dtype=torch.float64, requires_grad=True)
    optimiser = torch.optim.LBFGS(
        [weight], max_iter=2000, tolerance_grad=1e-12, tolerance_change=0, line_search_fn="strong_wolfe"
    )

    def objective() -> torch.Tensor:
        optimiser.zero_grad()
        loss = torch.nn.functional.cross_entropy(x @ weight.T, y) + strength / N / 2 * weight.square().sum()
        loss.backward()  # type: ignore[no-untyped-call]
        return loss

    optimiser.step(objective)  # type: ignore[arg-type]
    made = classifier(strength, intercept=False).fit(x.numpy(), y.numpy())
    np.testing.assert_allclose(made.coef_, weight.detach().numpy(), rtol=1e-4, atol=1e-5)


def test_paper_is_the_best_of_scikit_learns_on_the_test_rows() -> None:
    (x, y), (test, actual) = draws(N, 0), draws(300, 1)
    lambdas = [0.01, 1.0, 300.0]
    scaler = StandardScaler().fit(x.astype(float))
    scores = [
        100
        * LogisticRegression(C=1 / strength, fit_intercept=False, max_iter=1000, tol=1e-8)
        .fit(scaler.transform(x.astype(float)), y)
        .score(scaler.transform(test.astype(float)), actual)
        for strength in lambdas
    ]
    found = sweep({"last": x}, y, {"last": test}, actual, np.zeros(N, dtype=bool), lambdas, "test")
    assert [candidate.judged for candidate in found.sweep] == pytest.approx(scores)
    assert found.top1 == found.chosen.judged == max(scores)


def test_clean_chooses_on_held_out_rows_and_fits_again_on_all() -> None:
    (x, y), (test, actual) = draws(N, 0), draws(300, 1)
    hold, lambdas = np.random.default_rng(2).random(N) < 0.3, [0.01, 1.0, 300.0]

    def score(train: np.ndarray, labels: np.ndarray, judge: np.ndarray, answers: np.ndarray, strength: float) -> float:
        scaler = StandardScaler().fit(train.astype(float))
        made = LogisticRegression(C=1 / strength, max_iter=1000, tol=1e-8).fit(
            scaler.transform(train.astype(float)), labels
        )
        return float(100 * made.score(scaler.transform(judge.astype(float)), answers))

    held = [score(x[~hold], y[~hold], x[hold], y[hold], strength) for strength in lambdas]
    found = sweep({"last": x}, y, {"last": test}, actual, hold, lambdas, "test")
    assert [candidate.judged for candidate in found.sweep] == pytest.approx(held)
    best = lambdas[int(np.argmax(held))]
    assert found.chosen.strength == best
    assert found.top1 == pytest.approx(score(x, y, test, actual, best))
    spoiled = sweep({"last": x}, y, {"last": test}, (actual + 1) % CLASSES, hold, lambdas, "test")
    assert spoiled.chosen == found.chosen  # test labels decide nothing


def test_test_rows_do_not_move_the_statistics() -> None:
    """The released code standardises test features by their own; scaled ones would then score the same."""
    (x, y), (test, actual) = draws(N, 0, 0.5), draws(300, 1, 0.5)
    nothing = np.zeros(N, dtype=bool)
    right, shifted = (
        sweep({"last": x}, y, {"last": t}, actual, nothing, [1.0], "t").top1 for t in (test, test * 9 - 40)
    )
    assert right > 90 > shifted


def test_the_class_token_is_swept_too_and_separable_features_reach_all() -> None:
    (x, y), (test, actual) = draws(N, 0, 0.05), draws(300, 1, 0.05)
    noise = {n: np.random.default_rng(n).normal(size=(n, D)).astype(np.float32) for n in (N, 300)}
    found = sweep(
        {"last": noise[N], "class_token": x}, y, {"last": noise[300], "class_token": test}, actual,
        np.zeros(N, dtype=bool), [1.0, 10.0], "test",
    )  # fmt: skip
    assert (found.chosen.features, found.top1, len(found.sweep)) == ("class_token", 100.0, 4)


def test_shuffled_labels_stay_at_chance() -> None:
    (x, y), (test, actual) = draws(N, 0, 0.5), draws(2000, 1, 0.5)
    y, actual = (np.random.default_rng(5).permutation(labels) for labels in (y, actual))
    hold = np.arange(N) % 4 == 0
    found = sweep({"last": x}, y, {"last": test}, actual, hold, [1.0], "test")
    chance = max(np.bincount(actual)) / 2000
    assert abs(found.top1 / 100 - 1 / CLASSES) < 4 * math.sqrt(0.25 * 0.75 / 2000) + abs(chance - 1 / CLASSES)


def test_a_solver_short_of_its_end_is_told(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("components.probe.logistic.MAX_UPDATES", 2)
    x, y = draws(N, 0)
    sweep({"last": x}, y, {"last": x}, y, np.zeros(N, dtype=bool), [0.001], "pets")
    assert "pets: logistic regression with λ 0.001 stopped after 2 updates, short of its end" in capsys.readouterr().out
