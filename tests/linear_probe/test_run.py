import csv
import hashlib
import json
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure
from PIL import Image
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import confusion_matrix
from sklearn.neighbors import KNeighborsClassifier
from sklearn.preprocessing import StandardScaler

from components import tracking
from components.images import decoding
from components.images.store import Store, write, write_card
from components.images.transforms import direct_resize, normalise
from components.linear_probe.contract import (
    LinearProbeInputs,
    LinearProbeMetrics,
    LinearProbeOutputs,
    LinearProbeParams,
)
from components.linear_probe.probing import view
from components.linear_probe.run import run
from components.mim.encoder import Encoder, EncoderConfig
from components.mim.initialise import initialise
from components.mim.predictor import PredictorConfig
from components.mim.weights import build, load_encoder, save
from components.stage import read_yaml

SUBSETS = Path(__file__).parents[2] / "params/subsets"
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
    return LinearProbeInputs(
        encoder=folder / "encoder.safetensors", dataset=prepare(folder / "digits"), train_list=SUBSETS / "all.txt"
    )


def params(profile: str = "clean", **changes: object) -> LinearProbeParams:
    """The committed values on the digits, smaller; `changes` are the stage's, the task's or the heads'."""
    values = read_yaml(SUBSETS.parent / "linear_probe.yaml")
    task = values["tasks"]["digits"]
    changes = {"epochs": 20, "batch_size": 64, "learning_rates": [0.1, 1.0], "weight_decays": [0.0]} | changes
    for part in (values, task, task["heads"]):
        part |= {key: value for key, value in changes.items() if key in part}
    return LinearProbeParams.model_validate(values | {"profile": profile})


def outputs(folder: Path) -> LinearProbeOutputs:
    return LinearProbeOutputs(**{name: folder / name for name in LinearProbeOutputs.model_fields})


def listed(inputs: LinearProbeInputs, path: Path, text: str) -> tuple[LinearProbeInputs, str]:
    """The inputs with a list of this text, and its hash."""
    path.write_text(text)
    return inputs.model_copy(update={"train_list": path}), hashlib.sha256(text.encode()).hexdigest()


def table(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize("profile", ["clean", "paper"])
def test_an_encoder_that_never_learned_gains_nothing(inputs: LinearProbeInputs, tmp_path: Path, profile: str) -> None:
    metrics, files = run(params(profile), inputs, outputs(tmp_path)), outputs(tmp_path)
    assert (metrics.top1_gain, metrics.knn_top1_gain) == (0.0, 0.0)
    assert metrics.top1 == metrics.top1_untrained > 30
    assert (metrics.last_top1, metrics.last4_top1) == (metrics.last_top1_untrained, metrics.last4_top1_untrained)
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


def test_nearest_neighbours_and_logistic_regression_equal_scikit_learns(
    inputs: LinearProbeInputs, tmp_path: Path
) -> None:
    changes = {"epochs": 1, "train_limit": 100, "test_limit": 50, "logistic_lambdas": [0.1, 10.0]}
    metrics = run(params("paper", **changes), inputs, outputs(tmp_path))
    encoder, vectors, labels = load_encoder(inputs.encoder), {}, {}
    for split, total, limit in (("train", 350, 100), ("test", 150, 50)):
        store, rows = Store(inputs.dataset, split), [i * total // limit for i in range(limit)]
        pixels = normalise(np.stack([direct_resize(decoding.pixels(store, row), 32, 32) for row in rows]))
        vectors[split] = encoder(pixels).mean(dim=1).numpy().astype(np.float64)
        labels[split] = store.column("label")[rows]
    judge = KNeighborsClassifier(20, metric="cosine", weights=lambda distance: np.exp((1 - distance) / 0.07))
    judge.fit(vectors["train"], labels["train"])
    assert metrics.knn_top1 == pytest.approx(100 * judge.score(vectors["test"], labels["test"]))
    scaler = StandardScaler().fit(vectors["train"])
    train, test = scaler.transform(vectors["train"]), scaler.transform(vectors["test"])
    models = [
        LogisticRegression(C=1 / x, fit_intercept=False, max_iter=1000).fit(train, labels["train"]) for x in (0.1, 10)
    ]
    assert metrics.logistic_top1 == pytest.approx(100 * max(model.score(test, labels["test"]) for model in models))
    assert (metrics.logistic_top1_gain, metrics.train_images, metrics.scored) == (0.0, 100, 50)
    assert metrics.logistic_lambda in (0.1, 10.0)


def test_a_second_run_uses_the_features_again_and_scores_the_same(
    inputs: LinearProbeInputs, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first = run(params(epochs=3, flip=True, train_limit=100), inputs, outputs(tmp_path))
    assert "used again" not in capsys.readouterr().out
    second = run(params(epochs=3, flip=True, train_limit=100), inputs, outputs(tmp_path))
    told = capsys.readouterr().out
    assert told.count("used again") == 6  # train, train mirrored and test, of either encoder
    assert told.count("features of") == 6  # none was encoded
    assert first == second


@pytest.mark.parametrize("profile", ["clean", "paper"])
def test_random_crops_train_the_same_grid(
    inputs: LinearProbeInputs, tmp_path: Path, profile: str, capsys: pytest.CaptureFixture[str]
) -> None:
    chosen = params(profile, training="augmented", crop_scale_min=0.7, epochs=20, train_limit=150)
    metrics = run(chosen, inputs, outputs(tmp_path))
    heads = table(outputs(tmp_path).heads)
    assert len(heads) == 2 * 8
    assert metrics.top1 == metrics.top1_untrained > 15  # chance is 10
    assert [row["holdout_top1"] == "" for row in heads] == [profile == "paper"] * 16
    judge = "the test images themselves" if profile == "paper" else "held-out training images"
    assert f"top-1 {metrics.top1:.2f} %, the best of 8 heads on {judge}" in capsys.readouterr().out
    cached = run(params(profile, epochs=20, train_limit=150), inputs, outputs(tmp_path))
    assert cached.protocol != metrics.protocol
    assert [row["test_top1"] for row in table(outputs(tmp_path).heads)] != [row["test_top1"] for row in heads]


def test_a_class_token_is_a_feature_set_of_its_own(
    inputs: LinearProbeInputs, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    encoder = Encoder(EncoderConfig(**{**CONFIG.as_dict(), "class_token": True}))
    initialise(encoder, 7, "fan_in", "encoder.")
    save(tmp_path / "encoder.safetensors", encoder, {"seed": 7, "weight_init": "fan_in"})
    with_token = inputs.model_copy(update={"encoder": tmp_path / "encoder.safetensors"})
    metrics = run(params(epochs=3), with_token, outputs(tmp_path))
    rows = table(outputs(tmp_path).heads)
    assert {row["features"] for row in rows} == {"last", "last4", "class_token"}
    best = max(
        (row for row in rows[:12] if row["features"] == "class_token"), key=lambda row: float(row["holdout_top1"])
    )
    assert metrics.class_token_top1 == pytest.approx(float(best["test_top1"]), abs=1e-3)
    assert "class_token_top1" not in run(params(epochs=1), inputs, outputs(tmp_path)).model_dump(exclude_none=True)
    for profile, candidates in (
        ("clean", 2),
        ("paper", 1),
    ):  # the paper's logistic regression reads pooled patches alone
        capsys.readouterr()
        run(params(profile, epochs=1, logistic_lambdas=[1.0]), with_token, outputs(tmp_path))
        assert f"the best of {candidates} on" in capsys.readouterr().out.split("logistic regression")[1]


def test_a_list_names_the_training_images(
    inputs: LinearProbeInputs, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = [f"{i:04d}.JPEG" for i in range(0, 350, 2)]
    few, sha = listed(inputs, tmp_path / "half.txt", "\n".join(names))
    metrics = run(params(epochs=2, train_list_sha256=sha), few, outputs(tmp_path))
    assert (metrics.train_images, metrics.scored) == (175, 150)
    assert "linear_probe digits: all 175 images of half.txt found" in capsys.readouterr().out
    assert json.loads(outputs(tmp_path).protocol.read_text())["data"]["splits"]["train"] == {"rows": 350, "used": 175}


@pytest.mark.parametrize(
    ("text", "sha", "message"),
    [
        ("0001.JPEG\n", "0" * 64, r"list.txt' has sha256 .*, but train_list_sha256 is 0000"),
        (
            "0001.JPEG\n9999.JPEG\n",
            "",
            r"dataset 'digits', split 'train': 1 of the list's 2 images found among 350, '9999.JPEG'",
        ),
        ("0001.JPEG\n0001.jpg\n", "", r"list.txt' names '0001.jpg' twice"),
    ],
)
def test_a_list_that_is_not_the_protocols_is_refused(
    inputs: LinearProbeInputs, tmp_path: Path, text: str, sha: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    bad, found = listed(inputs, tmp_path / "list.txt", text)
    with pytest.raises(ValueError, match=message):
        run(params(train_list_sha256=sha or found), bad, outputs(tmp_path))
    assert capsys.readouterr().out == ""


def test_the_protocol_is_what_decides_the_scores_and_nothing_else(inputs: LinearProbeInputs, tmp_path: Path) -> None:
    def mark(**changes: Any) -> str:
        metrics: LinearProbeMetrics = run(
            params(**{"epochs": 1, "train_limit": 60, "test_limit": 50, **changes}), inputs, outputs(tmp_path)
        )
        record = json.loads(outputs(tmp_path).protocol.read_text())
        assert record["protocol"] == metrics.protocol
        return metrics.protocol

    base = mark()
    same = [mark(seed=3), mark(encoding_batch_size=7), mark(resize_short_side=999), mark(crop_scale_min=0.5)]
    same += [mark(workers=2, cpus_per_worker=1)]  # on features that are kept: nobody encodes
    others = [mark(epochs=3), mark(profile="paper"), mark(learning_rates=[0.1]), mark(test_limit=60), mark(flip=True)]
    assert set(same) == {base}
    assert len({base, *others}) == 6


def test_an_encoder_that_diverged_is_named_before_a_head_is_trained(
    inputs: LinearProbeInputs, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    encoder = load_encoder(inputs.encoder)
    encoder.norm.bias.data[0] = np.nan
    save(tmp_path / "encoder.safetensors", encoder, {"seed": 7, "weight_init": "fan_in"})
    bad = inputs.model_copy(update={"encoder": tmp_path / "encoder.safetensors"})
    with pytest.raises(
        ValueError, match=r"encoder '.*encoder.safetensors' \(pretrained\) gives features .* '0350.png' first"
    ):
        run(params(), bad, outputs(tmp_path))
    assert "heads" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("card", "changes", "message"),
    [
        ({}, {"test_split": "val"}, r"has no split 'val'; its splits are: train, test"),
        ({"kind": "scenes"}, {}, r"dataset 'digits' is of kind 'scenes'; this stage needs 'images'"),
        ({"name": "cifar10"}, {}, r"holds dataset 'cifar10' but dataset is 'digits'"),
        ({}, {"train_limit": 10, "knn_k": 11}, r"knn_k is 11 but there are 10 training images"),
        ({}, {"image_size": 36}, r"36×36 pixels; both sides must be multiples of the patch size 8"),
        (
            {},
            {"train_limit": 5, "knn_k": 1},
            r"linear_probe digits: 5 training images of \d classes .* no fewer images than",
        ),
        ({}, {"train_limit": 12, "knn_k": 1}, r"linear_probe digits: \d classes of the test images have no training"),
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
    with pytest.raises(
        ValueError, match=r"linear_probe digits: 30 of 30 images in split 'train' of dataset 'digits' have no label"
    ):
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
    pixels = view(settings)(torch.from_numpy(wide).permute(2, 0, 1))
    assert pixels.shape == (32, 32, 3)
    assert (pixels[:, 2].mean(), pixels[:, -3].mean()) == (left, right)
