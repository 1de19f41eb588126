import numpy as np
import pytest
from sklearn.neighbors import KNeighborsClassifier

from components.probe.neighbours import nearest


def draws() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    generator = np.random.default_rng(5)
    labels = generator.integers(0, 5, 700)
    centres = generator.normal(size=(5, 10))
    train = (centres[labels] + generator.normal(size=(700, 10)) * 1.5).astype(np.float32)
    test = (centres[generator.integers(0, 5, 600)] + generator.normal(size=(600, 10)) * 1.5).astype(np.float32)
    return train, labels, test


@pytest.mark.parametrize("at_once", [97, 65_536])
@pytest.mark.parametrize("k", [1, 7, 20, 700])
def test_equals_brute_force(k: int, at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The bank in parts, fewer of them than neighbours too, or whole."""
    monkeypatch.setattr("components.probe.neighbours.BANK_AT_ONCE", at_once)
    train, labels, test = draws()
    winners = []
    for row in test.astype(np.float64):
        similarity = train @ row / np.linalg.norm(train, axis=1) / np.linalg.norm(row)
        votes = np.zeros(5)
        for index in np.argsort(-similarity)[:k]:
            votes[labels[index]] += np.exp(similarity[index] / 0.07)
        winners.append(votes.argmax())
    np.testing.assert_array_equal(nearest(train, labels, test, k, 5), winners)


def test_equals_scikit_learn() -> None:
    train, labels, test = draws()
    judge = KNeighborsClassifier(20, metric="cosine", weights=lambda distance: np.exp((1 - distance) / 0.07))
    np.testing.assert_array_equal(nearest(train, labels, test, 20, 5), judge.fit(train, labels).predict(test))


def test_more_neighbours_than_images_are_refused() -> None:
    train, labels, test = draws()
    with pytest.raises(ValueError, match=r"knn_k is 701 but there are 700 training images; lower knn_k"):
        nearest(train, labels, test, 701, 5)


def test_of_equal_rows_the_first_ones_vote(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each row stands four times, with another label; parts of the bank and of the rows change nothing."""
    train, _, test = draws()
    bank, labels = np.tile(train, (4, 1)), np.repeat(np.arange(4), len(train))
    winners = []
    for row in test.astype(np.float64):
        similarity = bank @ row / np.linalg.norm(bank, axis=1) / np.linalg.norm(row)
        votes = np.zeros(4)
        for index in np.lexsort((np.arange(len(bank)), -np.round(similarity, 9)))[:6]:
            votes[labels[index]] += np.exp(similarity[index] / 0.07)
        winners.append(votes.argmax())
    np.testing.assert_array_equal(nearest(bank, labels, test, 6, 4), winners)
    monkeypatch.setattr("components.probe.neighbours.ROWS_AT_ONCE", 37)
    monkeypatch.setattr("components.probe.neighbours.BANK_AT_ONCE", 700)
    np.testing.assert_array_equal(nearest(bank, labels, test, 6, 4), winners)
