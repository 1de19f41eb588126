import csv
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure
from PIL import Image
from sklearn.datasets import load_digits
from sklearn.metrics import confusion_matrix
from sklearn.neighbors import KNeighborsClassifier

from components import tracking
from components.features import pooled
from components.images.store import Store, write, write_card
from components.linear_probe.contract import LinearProbeInputs, LinearProbeOutputs, LinearProbeParams
from components.linear_probe.run import run, view
from components.mim.encoder import EncoderConfig
from components.mim.predictor import PredictorConfig
from components.mim.weights import build, load_encoder, save

CONFIG = EncoderConfig(image_size=32, patch_size=8, width=48, layers=5, heads=3)


def png(pixels: np.ndarray) -> bytes:
    buffer = BytesIO()
    Image.fromarray(pixels).resize((32, 32)).convert("RGB").save(buffer, "PNG")
    return buffer.getvalue()


def prepare(folder: Path, **changes: Any) -> Path:
    """The first 500 of scikit-learn's digits as a prepared dataset."""
    digits, labels = load_digits(return_X_y=True)
    rows = [
        {"path": f"{i:04d}.png", "image": png((digits[i].reshape(8, 8) * 15).astype(np.uint8)), "label": int(labels[i])}
        for i in range(500)
    ]
    splits = write(folder, "images", {"train": rows[:350], "test": rows[350:]}, shard_mib=1)
    card = {"name": "digits", "kind": "images", "format": "digits", "classes": [f"digit {i}" for i in range(10)]}
    write_card(folder, card | {"splits": splits, "mean": [0.5] * 3, "std": [0.25] * 3, "skipped": []} | changes)
    return folder


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> LinearProbeInputs:
    """The digits and an encoder saved before its first step: the pretrained one and the untrained one are the same."""
    folder = tmp_path_factory.mktemp("probe")
    predictor = PredictorConfig(
        encoder_width=48, output_width=48, width=16, layers=1, heads=1, mask_token=True, bias_on_noise=False
    )
    model = build(CONFIG, predictor, seed=7, weight_init="fan_in")
    save(folder / "encoder.safetensors", model.encoder, {"seed": 7, "weight_init": "fan_in"})
    return LinearProbeInputs(encoder=folder / "encoder.safetensors", dataset=prepare(folder / "digits"))


def params(profile: str = "clean", **changes: object) -> LinearProbeParams:
    shared: dict[str, object] = {"seed": 0, "profile": profile, "holdout_fraction": 0.2, "batch_size": 64, "layers": 4}
    grid = {"learning_rates": [0.1, 1.0], "weight_decays": [0.0], "batch_norm": "both", "encoding_batch_size": 64}
    task = {
        "dataset": "digits",
        "train_split": "train",
        "test_split": "test",
        "train_limit": 0,
        "test_limit": 0,
        "image_size": 32,
        "resize": "direct",
        "resize_short_side": 32,
    }
    top = {key: changes.pop(key) for key in ("epochs", "knn_k") if key in changes}
    values = shared | grid | {"epochs": 20, "knn_k": 20} | top | {"tasks": {"digits": task | changes}}
    return LinearProbeParams.model_validate(values)


def outputs(folder: Path) -> LinearProbeOutputs:
    names = {"confusion": "confusion.csv", "heads": "heads.csv", "metrics": "metrics.json", "run": "run.json"}
    return LinearProbeOutputs(**{field: folder / name for field, name in names.items()})


def table(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize("profile", ["clean", "paper"])
def test_an_encoder_that_never_learned_gains_nothing(inputs: LinearProbeInputs, tmp_path: Path, profile: str) -> None:
    metrics, files = run(params(profile), inputs, outputs(tmp_path)), outputs(tmp_path)
    assert (metrics.top1_gain, metrics.knn_top1_gain) == (0.0, 0.0)
    assert metrics.top1 == metrics.top1_untrained > 30
    heads = table(files.heads)
    assert len(heads) == 2 * 8
    assert [row for row in heads[:8]] == [row | {"encoder": "pretrained"} for row in heads[8:]]
    judge = "test_top1" if profile == "paper" else "holdout_top1"
    for name, score in (("", metrics.top1), ("last", metrics.last_top1), ("last4", metrics.last4_top1)):
        legal = [row for row in heads[:8] if name in ("", row["features"])]
        best = max(legal, key=lambda row: float(row[judge]))
        assert score == pytest.approx(float(best["test_top1"]), abs=1e-3)
    pairs = table(files.confusion)
    assert len(pairs) == metrics.scored == 150
    assert {pair["actual"] for pair in pairs} == {f"digit {i}" for i in range(10)}
    right = 100 * sum(pair["actual"] == pair["predicted"] for pair in pairs) / 150
    assert right == pytest.approx(metrics.top1)


def test_the_drawn_confusion_is_that_of_the_table(
    inputs: LinearProbeInputs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: dict[str, Figure] = {}
    monkeypatch.setattr(tracking, "log_plot", drawn.__setitem__)
    run(params(epochs=2), inputs, outputs(tmp_path))
    pairs = table(outputs(tmp_path).confusion)
    expected = confusion_matrix(
        [pair["actual"] for pair in pairs],
        [pair["predicted"] for pair in pairs],
        labels=[f"digit {i}" for i in range(10)],
        normalize="true",
    )
    assert list(drawn) == ["confusion.png"]
    axes = drawn["confusion.png"].axes[0]
    np.testing.assert_allclose(np.asarray(axes.images[0].get_array()), 100 * expected)
    assert [label.get_text() for label in axes.get_yticklabels()] == [f"digit {i}" for i in range(10)]


def test_nearest_neighbours_equal_scikit_learn_on_the_same_images(inputs: LinearProbeInputs, tmp_path: Path) -> None:
    metrics = run(params(epochs=1, train_limit=100, test_limit=50), inputs, outputs(tmp_path))
    encoder, vectors, labels = load_encoder(inputs.encoder), {}, {}
    for split, total, limit in (("train", 350, 100), ("test", 150, 50)):
        store, rows = Store(inputs.dataset, split), [i * total // limit for i in range(limit)]
        settings = params().tasks["digits"]
        found = pooled(encoder, store, rows, partial(view, settings=settings), layers=1, batch_size=9, label="witness")
        vectors[split], labels[split] = found["last"], store.column("label")[rows]
    judge = KNeighborsClassifier(20, metric="cosine", weights=lambda distance: np.exp((1 - distance) / 0.07))
    judge.fit(vectors["train"], labels["train"])
    assert metrics.knn_top1 == pytest.approx(100 * judge.score(vectors["test"], labels["test"]))
    assert metrics.scored == 50


@pytest.mark.parametrize(
    ("card", "changes", "message"),
    [
        ({}, {"test_split": "val"}, r"has no split 'val'; its splits are: train, test"),
        ({"kind": "scenes"}, {}, r"dataset 'digits' is of kind 'scenes'; this stage needs 'images'"),
        ({"name": "cifar10"}, {}, r"holds dataset 'cifar10' but dataset is 'digits'"),
        ({}, {"train_limit": 10, "knn_k": 11}, r"knn_k is 11 but there are 10 training images"),
        ({}, {"image_size": 36}, r"36×36 pixels; both sides must be multiples of the patch size 8"),
        ({}, {"train_limit": 5, "knn_k": 1}, r"linear_probe digits: \d classes of the test images have no training"),
    ],
)
def test_bad_input_is_refused_before_an_image_is_encoded(
    inputs: LinearProbeInputs,
    tmp_path: Path,
    card: dict[str, str],
    changes: dict[str, object],
    message: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    dataset = prepare(tmp_path / "digits", **card) if card else inputs.dataset
    bad = inputs.model_copy(update={"dataset": dataset})
    with pytest.raises(ValueError, match=message):
        run(params("paper", **changes), bad, outputs(tmp_path))
    assert capsys.readouterr().out == ""


def test_images_without_labels_are_refused(inputs: LinearProbeInputs, tmp_path: Path) -> None:
    image = png(np.zeros((8, 8), np.uint8))
    rows = [{"path": f"{i}.png", "image": image, "label": -1} for i in range(30)]
    splits = write(tmp_path / "digits", "images", {"train": rows, "test": rows[:3]}, shard_mib=1)
    card = {"name": "digits", "kind": "images", "format": "image_folder", "classes": [], "splits": splits}
    write_card(tmp_path / "digits", card | {"mean": [0.5] * 3, "std": [0.5] * 3, "skipped": []})
    with pytest.raises(ValueError, match=r"linear_probe digits: \d+ of \d+ training images have no label"):
        run(params(), inputs.model_copy(update={"dataset": tmp_path / "digits"}), outputs(tmp_path))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"test_split": "train"}, "train_split and test_split are both 'train'"),
        ({"resize": "short_side_center_crop", "resize_short_side": 16}, "resize_short_side is 16, below image_size 32"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(changes: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        params(**changes)


@pytest.mark.parametrize(
    ("resize", "left", "right"),
    [("direct", 255, 0), ("short_side_center_crop", 255, 255)],
)
def test_a_wide_image_is_squashed_or_cut(resize: str, left: int, right: int) -> None:
    wide = np.zeros((40, 120, 3), np.uint8)
    wide[:, 40:80] = 255
    wide[:, :40] = (255, 255, 255) if resize == "direct" else (0, 0, 0)
    settings = params(resize=resize, resize_short_side=32).tasks["digits"]
    pixels = view(Image.fromarray(wide), settings)
    assert pixels.shape == (32, 32, 3)
    assert (pixels[:, 2].mean(), pixels[:, -3].mean()) == (left, right)
