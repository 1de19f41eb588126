import csv
from pathlib import Path

import numpy as np
import pytest

from components.images.store import Store, write, write_card
from components.probe.choice import Choice, Rows, accuracy, check, check_labels, choose, split
from components.probe.dataset import Part
from components.probe.grid import Head
from components.probe.heads import Task
from components.probe.tables import write_confusion, write_heads

from .arrays import CPU, cached, features, heads, stage

TASK = Task("test task", ["ant", "bee", "cat"], epochs=4)


def rows(n: int, seed: int) -> Rows:
    draws = np.random.default_rng(seed)
    labels = draws.integers(0, 3, n)
    x = (np.eye(3)[labels] + draws.normal(size=(n, 3))).astype(np.float32)
    return Rows(features({"last": x, "last4": np.tile(x, 2)}), labels)


def part(folder: Path, labels: list[int]) -> Part:
    """A split of a prepared dataset with these labels; its images are empty."""
    made = [{"path": f"train/{i:04d}", "image": b"", "label": label} for i, label in enumerate(labels)]
    splits = write(folder, "images", {"train": made}, shard_mib=1)
    card = {"name": "pets", "kind": "images", "format": "image_folder", "classes": list(TASK.classes), "splits": splits}
    write_card(folder, card | {"mean": [0.5] * 3, "std": [0.2] * 3, "skipped": []})
    return Part(Store(folder, "train"), np.arange(len(labels)))


def chosen(train: Rows, test: Rows, hold: np.ndarray | None, **changes: object) -> Choice:
    """The choice with the rows in `hold` held out of training, or on the test rows."""
    grid = heads(**{"batch_size": 32, "learning_rates": [0.01, 1.0], "weight_decays": [0.0]} | changes)
    held = None if hold is None else Rows(train.features.where(hold), train.labels[hold])
    kept = np.full(len(train.labels), True) if hold is None else ~hold
    sets = {name: train.features.of(name)[kept] for name in ("last", "last4")}
    return choose(grid, TASK, cached(sets, train.labels[kept]), test, held, 0, CPU, Path("unused"))


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


def test_the_paper_s_choice_leaves_the_class_token_out_and_clean_takes_it() -> None:
    heads = [Head(name, False, 0.1, 0.0) for name in ("last", "last4", "class_token")]
    judge, predictions = np.array([1.0, 2.0, 3.0]), np.zeros((3, 1), dtype=np.int64)
    paper, clean = (Choice(heads, holdout, judge, predictions) for holdout in (None, judge))
    assert (paper.best(), clean.best(), paper.best("class_token")) == (1, 2, 2)


def test_held_out_rows_train_nothing_and_choose_alone() -> None:
    train, test = rows(300, 0), rows(100, 1)
    hold = np.random.default_rng(2).random(300) < 0.25
    spoiled = train._replace(labels=np.where(hold, (train.labels + 1) % 3, train.labels))
    honest, other = (chosen(data, test, hold) for data in (train, spoiled))
    np.testing.assert_array_equal(honest.predictions, other.predictions)
    assert honest.holdout is not None and other.holdout is not None
    assert (honest.holdout > other.holdout + 20).all()


def test_without_held_out_rows_all_train_and_the_test_rows_choose() -> None:
    train, test = rows(300, 0), rows(100, 1)
    whole, part = chosen(train, test, None), chosen(train, test, np.arange(300) < 75)
    assert whole.holdout is None
    assert whole.score() == whole.test.max()
    assert not np.array_equal(whole.predictions, part.predictions)


def test_every_row_is_scored_once() -> None:
    labels = np.array([0, 1, 2, 0])
    predictions = np.array([[0, 1, 2, 0], [0, 1, 1, 1]])
    np.testing.assert_array_equal(accuracy(predictions, labels), [100.0, 50.0])
    with pytest.raises(ValueError, match=r"3 predictions for 4 labels; every image must be scored once"):
        accuracy(predictions[:, :3], labels)


@pytest.mark.parametrize(
    ("train", "test", "message"),
    [
        ([1, 1, 1], [1], r"3 training images of 1 classes"),
        ([], [1], r"0 training images of 0 classes"),
        (
            [0, 1],
            [0],
            r"2 training images of 2 classes and 1 test images for 3 classes; .* no fewer images than classes",
        ),
        ([0, 1, 1], [], r"0 test images"),
        ([0, 1, 1], [1, 2], r"1 classes of the test images have no training image: cat; .*raise train_limit"),
    ],
)
def test_labels_that_cannot_work_are_refused(train: list[int], test: list[int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        check(np.array(train, dtype=int), np.array(test, dtype=int), TASK)


@pytest.mark.parametrize(
    ("label", "message"),
    [
        (
            -1,
            r"1 of 4 images in split 'train' of dataset 'pets' have no label, 'train/0002' first, and there are 3 classes",
        ),
        (3, r"test task: 1 of 4 images .* of dataset 'pets' have a label above 2, 'train/0002' first"),
    ],
)
def test_labels_that_disagree_with_the_classes_are_refused(tmp_path: Path, label: int, message: str) -> None:
    bad = part(tmp_path / "pets", [0, 1, label, 2])
    with pytest.raises(ValueError, match=message):
        check_labels(TASK, bad, bad.labels())


def test_paper_holds_nothing_out_and_clean_by_path_alone(tmp_path: Path) -> None:
    train = part(tmp_path / "pets", [i % 3 for i in range(200)])
    paper, clean = (
        split(stage(name), TASK, train, train.labels(), train, train.labels()) for name in ("paper", "clean")
    )
    assert not paper.any()
    np.testing.assert_array_equal(clean, train.column("holdout") < 0.25)


def test_an_empty_hold_out_is_refused(tmp_path: Path) -> None:
    few = part(tmp_path / "pets", [0, 1, 2])
    with pytest.raises(ValueError, match=r"holdout_fraction 0.001 holds out none of 3 training images: raise it"):
        split(stage("clean", holdout_fraction=0.001), TASK, few, few.labels(), few, few.labels())


def test_a_diverged_head_is_never_right_and_never_chosen() -> None:
    """With batch norm a huge rate ends in NaN; the answer 0 that argmax gives then would be right for every row here."""
    train, test = rows(300, 0), rows(60, 1)
    test = test._replace(labels=np.zeros(60, dtype=int))
    sets, longer = {"last": train.features.of("last")}, TASK._replace(epochs=60)

    def choice(rates: list[float]) -> Choice:
        grid = heads(batch_size=32, learning_rates=rates, batch_norm="yes", weight_decays=[0.0])
        return choose(grid, longer, cached(sets, train.labels), test, None, 0, CPU, Path("unused"))

    mixed = choice([1000.0, 0.1])
    assert mixed.heads[0].learning_rate == 1000.0
    assert mixed.test[0] == 0.0
    assert (mixed.predictions[0] == -1).all()
    assert mixed.heads[mixed.best()].learning_rate == 0.1
    with pytest.raises(
        ValueError, match=r"test task: every head diverged; learning_rates is \[1000.0\]: add a lower one"
    ):
        choice([1000.0])


def test_tables_hold_every_head_and_every_row(tmp_path: Path) -> None:
    train, test = rows(120, 0), rows(41, 1)
    choices = {name: chosen(train, test, np.arange(120) < 30) for name in ("pretrained", "untrained")}
    write_heads(tmp_path / "heads.csv", choices)
    best = choices["pretrained"].best()
    write_confusion(tmp_path / "confusion.csv", TASK.classes, test.labels, choices["pretrained"].predictions[best])
    with (tmp_path / "heads.csv").open(newline="") as file:
        table = list(csv.DictReader(file))
    assert len(table) == 2 * 2 * 2 * 2
    best_rows = [row for row in table if row["chosen"] == "1"]
    assert [row["encoder"] for row in best_rows] == ["pretrained", "untrained"]
    assert float(best_rows[0]["holdout_top1"]) == max(float(row["holdout_top1"]) for row in table[:8])
    with (tmp_path / "confusion.csv").open(newline="") as file:
        pairs = list(csv.DictReader(file))
    assert len(pairs) == 41
    right = 100 * sum(pair["actual"] == pair["predicted"] for pair in pairs) / 41
    assert right == pytest.approx(float(best_rows[0]["test_top1"]), abs=1e-3)


def test_a_class_that_would_be_held_out_whole_keeps_one_image_to_learn_from(tmp_path: Path) -> None:
    """As iNaturalist's small classes would be; the other images are held out as they would be beside any."""
    labels = [i // 2 for i in range(80)]
    pairs, task = part(tmp_path / "pets", labels), Task("pairs", [str(n) for n in range(40)], 1)
    alone = (pairs.column("holdout") < 0.4).reshape(40, 2)
    hold = split(stage("clean", holdout_fraction=0.4), task, pairs, pairs.labels(), pairs, pairs.labels()).reshape(
        40, 2
    )
    assert alone.all(axis=1).any()
    np.testing.assert_array_equal(hold, np.where(alone.all(axis=1, keepdims=True), [True, False], alone))
