import csv
from pathlib import Path

import numpy as np
import pytest

from components.probe.choice import (
    Choice,
    Rows,
    Task,
    accuracy,
    check,
    choose,
    held_out,
    split,
    write_confusion,
    write_heads,
)
from components.probe.heads import Head
from components.probe.params import HeadParams

TASK = Task("test task", ["ant", "bee", "cat"], epochs=4)


def params(profile: str, **changes: object) -> HeadParams:
    values: dict[str, object] = {
        "seed": 0,
        "profile": profile,
        "holdout_fraction": 0.25,
        "batch_size": 32,
        "learning_rates": [0.01, 1.0],
        "weight_decays": [0.0],
        "batch_norm": "both",
        "layers": 4,
        "encoding_batch_size": 32,
    }
    return HeadParams.model_validate(values | changes)


def rows(n: int, seed: int) -> Rows:
    draws = np.random.default_rng(seed)
    labels = draws.integers(0, 3, n)
    features = (np.eye(3)[labels] + draws.normal(size=(n, 3))).astype(np.float32)
    return Rows(
        {"last": features, "last4": np.tile(features, 2)}, labels, np.array([f"train/{i:04d}" for i in range(n)])
    )


def test_paper_chooses_on_the_test_rows_and_clean_on_the_held_out_ones() -> None:
    heads = [Head("last", False, rate, 0.0) for rate in (0.1, 0.2, 0.3)]
    test, holdout = np.array([50.0, 70.0, 60.0]), np.array([40.0, 40.0, 55.0])
    predictions = np.zeros((3, 10), dtype=np.int64)
    paper, clean = (Choice(heads, judge, test, predictions) for judge in (None, holdout))
    assert paper.score() == 70.0
    assert clean.score() == 60.0
    assert paper.sentence() == "top-1 70.00 %, the best of 3 heads on the test images themselves"
    assert clean.sentence() == "top-1 60.00 %, the best of 3 heads on held-out training images"


def test_the_best_of_a_feature_set_and_the_first_of_equals() -> None:
    heads = [Head(name, False, rate, 0.0) for name in ("last", "last4") for rate in (0.1, 0.2)]
    choice = Choice(heads, None, np.array([0.0, 0.0, 9.0, 9.0]), np.zeros((4, 1), dtype=np.int64))
    assert (choice.best("last"), choice.best("last4"), choice.best()) == (0, 2, 2)


def test_held_out_rows_train_nothing_in_clean() -> None:
    train, test = rows(300, 0), rows(100, 1)
    hold = held_out(train.paths, 0.25)
    spoiled = train._replace(labels=np.where(hold, (train.labels + 1) % 3, train.labels))
    honest, other = (choose(params("clean"), TASK, data, test) for data in (train, spoiled))
    np.testing.assert_array_equal(honest.predictions, other.predictions)
    assert honest.holdout is not None and other.holdout is not None
    assert (honest.holdout > other.holdout + 20).all()


def test_paper_trains_on_every_row() -> None:
    train, test = rows(300, 0), rows(100, 1)
    hold = held_out(train.paths, 0.25)
    whole = choose(params("paper"), TASK, train, test)
    part = choose(params("paper"), TASK, train.where(~hold), test)
    assert whole.holdout is None
    assert not np.array_equal(whole.predictions, part.predictions)
    np.testing.assert_allclose(choose(params("clean"), TASK, train, test).test, part.test)


def test_a_path_is_held_out_whatever_stands_beside_it() -> None:
    paths = np.array([f"train/dog/{i:05d}.jpg" for i in range(4000)])
    mask = held_out(paths, 0.1)
    assert 0.085 < mask.mean() < 0.115
    order = np.random.default_rng(0).permutation(4000)[:1000]
    np.testing.assert_array_equal(held_out(paths[order], 0.1), mask[order])
    assert (held_out(paths, 0.2) >= mask).all()
    # `printf train/dog/000NN.jpg | sha256sum` starts below 0x1999… for these: the choice may never move.
    assert [int(i) for i in np.flatnonzero(mask)[:4]] == [10, 13, 15, 23]


def test_every_row_is_scored_once() -> None:
    labels = np.array([0, 1, 2, 0])
    predictions = np.array([[0, 1, 2, 0], [0, 1, 1, 1]])
    np.testing.assert_array_equal(accuracy(predictions, labels), [100.0, 50.0])
    with pytest.raises(ValueError, match=r"3 predictions for 4 labels; every image must be scored once"):
        accuracy(predictions[:, :3], labels)


@pytest.mark.parametrize(
    ("train", "test", "message"),
    [
        ([0, 1, -1, -1], [0], r"test task: 2 of 4 training images have no label; .*<split>/<class>/"),
        ([0, 1], [-1, 0], r"1 of 2 test images have no label"),
        ([1, 1], [1], r"2 training images of 1 classes"),
        ([], [1], r"0 training images of 0 classes"),
        ([0, 1], [], r"0 test images"),
        ([0, 1], [1, 2], r"1 classes of the test images have no training image: cat; .*raise train_limit"),
    ],
)
def test_labels_that_cannot_work_are_refused(train: list[int], test: list[int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        check(np.array(train, dtype=int), np.array(test, dtype=int), TASK)


def test_an_empty_hold_out_is_refused() -> None:
    few = rows(3, 0)
    with pytest.raises(ValueError, match=r"holdout_fraction 0.001 holds out none of 3 training images: raise it"):
        split(params("clean", holdout_fraction=0.001), TASK, few.labels, few.paths, few.labels)


def test_a_diverged_head_is_never_right_and_never_chosen() -> None:
    """With batch norm a huge rate ends in NaN; the answer 0 that argmax gives then would be right for every row here."""
    train, test = rows(300, 0), rows(60, 1)
    test = test._replace(labels=np.zeros(60, dtype=int))
    wild = params("paper", learning_rates=[1000.0, 0.1], batch_norm="yes")
    choice = choose(wild, Task("test task", TASK.classes, 60), train, test)
    assert choice.heads[0].learning_rate == 1000.0
    assert choice.test[0] == 0.0
    assert (choice.predictions[0] == -1).all()
    assert choice.heads[choice.best()].learning_rate == 0.1
    hopeless = params("paper", learning_rates=[1000.0], batch_norm="yes")
    with pytest.raises(
        ValueError, match=r"test task: every head diverged; learning_rates is \[1000.0\]: add a lower one"
    ):
        choose(hopeless, Task("test task", TASK.classes, 60), train, test)


def test_tables_hold_every_head_and_every_row(tmp_path: Path) -> None:
    train, test = rows(120, 0), rows(41, 1)
    choices = {name: choose(params("clean"), TASK, train, test) for name in ("pretrained", "untrained")}
    write_heads(tmp_path / "heads.csv", choices)
    best = choices["pretrained"].best()
    write_confusion(tmp_path / "confusion.csv", TASK.classes, test.labels, choices["pretrained"].predictions[best])
    with (tmp_path / "heads.csv").open(newline="") as file:
        table = list(csv.DictReader(file))
    assert len(table) == 2 * 2 * 2 * 2
    chosen = [row for row in table if row["chosen"] == "1"]
    assert [row["encoder"] for row in chosen] == ["pretrained", "untrained"]
    assert float(chosen[0]["holdout_top1"]) == max(float(row["holdout_top1"]) for row in table[:8])
    with (tmp_path / "confusion.csv").open(newline="") as file:
        pairs = list(csv.DictReader(file))
    assert len(pairs) == 41
    right = 100 * sum(pair["actual"] == pair["predicted"] for pair in pairs) / 41
    assert right == pytest.approx(float(chosen[0]["test_top1"]), abs=1e-3)


@pytest.mark.parametrize("field", ["learning_rates", "weight_decays"])
def test_a_grid_with_a_value_twice_is_refused(field: str) -> None:
    with pytest.raises(ValueError, match=rf"{field} is \[0.1, 0.1\]; each value may stand once"):
        params("paper", **{field: [0.1, 0.1]})
