"""Multinomial logistic regression on frozen features: the classifier for few labels."""

import warnings
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import StandardScaler

from components import progress

SETS = ("last", "class_token")
MAX_UPDATES = 1000


class Candidate(NamedTuple):
    """One classifier of the sweep and its percent right on what chooses: test rows in profile paper, else held-out ones."""

    features: str
    strength: float
    judged: float


class Result(NamedTuple):
    """The chosen classifier, its percent right on the test rows, and the whole sweep."""

    chosen: Candidate
    top1: float
    sweep: list[Candidate]

    def sentence(self, profile: str) -> str:
        """The score and what it was chosen on, for a person."""
        judge = "the test images themselves" if profile == "paper" else "held-out training images"
        return (
            f"logistic regression {self.top1:.2f} % with λ {self.chosen.strength:g} on {self.chosen.features}, the best of "
            f"{len(self.sweep)} on {judge}"
        )


def classifier(strength: float, intercept: bool) -> LogisticRegression:
    """scikit-learn's for the sum of the losses + strength/2 · |W|²: its C multiplies that sum beside |W|²/2.

    The released code divides both by the number of rows, which moves no minimum; it has no intercept.
    """
    # The bound is on the gradient of the mean loss, which starts near 1e-3 with 1000 classes: scikit-learn's own, 1e-4, would stop there.
    return LogisticRegression(C=1.0 / strength, solver="lbfgs", fit_intercept=intercept, tol=1e-8, max_iter=MAX_UPDATES)


def sweep(
    train: Mapping[str, np.ndarray],
    labels: np.ndarray,
    test: Mapping[str, np.ndarray],
    judged: np.ndarray,
    hold: np.ndarray,
    lambdas: Sequence[float],
    where: str,
) -> Result:
    """Chooses set and λ, and scores them on all test rows: feature sets [n,D] and [m,D], labels [n] and [m].

    With rows in the mask `hold` [n], they choose and the classifier is fitted again on all training rows, with an intercept, as
    classes may differ in size. Without any, the test rows choose and there is no intercept: what the released code does by hand.
    Features are standardised by the statistics of the rows that train; those of test rows play no part.
    """
    clean = bool(hold.any())
    candidates = []
    for name in train:
        kept, held = (train[name][~hold], train[name][hold]) if clean else (train[name], test[name])
        answers = judged if not clean else labels[hold]
        for strength in lambdas:
            right = _fit(kept, labels[~hold], held, strength, clean, where) == answers
            candidates.append(Candidate(name, strength, float(100 * right.mean())))
    best = max(candidates, key=lambda candidate: candidate.judged)  # the first of equals
    if not clean:
        return Result(best, best.judged, candidates)
    right = _fit(train[best.features], labels, test[best.features], best.strength, clean, where) == judged
    return Result(best, float(100 * right.sum() / len(judged)), candidates)


def _fit(
    train: np.ndarray, labels: np.ndarray, judge: np.ndarray, strength: float, intercept: bool, where: str
) -> np.ndarray:
    """The classes of `judge` [m,D] by a classifier of standardised `train` [n,D], in float64."""
    scaler = StandardScaler().fit(train.astype(np.float64))
    model = classifier(strength, intercept)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always", ConvergenceWarning)
        model.fit(scaler.transform(train.astype(np.float64)), labels)
    if any(issubclass(warning.category, ConvergenceWarning) for warning in told):
        progress.show(
            f"{where}: logistic regression with λ {strength:g} stopped after {MAX_UPDATES} updates, short of its end"
        )
    return np.asarray(model.predict(scaler.transform(judge.astype(np.float64))))
