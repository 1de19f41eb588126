"""The stage as a whole on toy images."""

import csv
import json
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure
from PIL import Image

from components import progress, tracking
from components.finetune.classifier import load
from components.finetune.contract import FinetuneInputs, FinetuneOutputs
from components.finetune.examples import drawn, read
from components.finetune.run import run
from components.images import decoding
from components.images.store import Store, write, write_card
from components.images.transforms import View, normalise
from components.mim.weights import save
from components.probe.heads import Task

from .toys import encoder, params, sha256

Place = Callable[[Path], FinetuneOutputs]


def table(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def dataset(folder: Path, labels: dict[str, list[int]], classes: int = 4) -> Path:
    """A dataset "toy" of noise with these labels."""
    generator = np.random.default_rng(0)

    def rows(split: str) -> list[dict[str, Any]]:
        made = []
        for i, label in enumerate(labels[split]):
            file = BytesIO()
            Image.fromarray(generator.integers(0, 255, (16, 16, 3), dtype=np.uint8)).save(file, "PNG")
            made.append({"path": f"{split}/{label}/{i:04d}.png", "image": file.getvalue(), "label": label})
        return made

    splits = write(folder, "images", {split: rows(split) for split in labels}, shard_mib=1)
    names = [f"class {i}" for i in range(classes)]
    card = {"name": "toy", "kind": "images", "format": "image_folder", "classes": names, "splits": splits}
    write_card(folder, card | {"mean": [0.5] * 3, "std": [0.2] * 3, "skipped": []})
    return folder


def test_an_encoder_that_never_learned_gains_nothing(inputs: FinetuneInputs, tmp_path: Path, outputs: Place) -> None:
    files = outputs(tmp_path / "out")
    metrics = run(params(train_per_class=6), inputs, files)
    assert (metrics.top1_gain, metrics.best_epoch, metrics.train_loss_final) == (
        0.0,
        metrics.best_epoch_untrained,
        metrics.train_loss_final_untrained,
    )
    assert metrics.scored == 24 and 0 < metrics.learned_from < 24
    rows = table(files.history)
    assert [int(row["epoch"]) for row in rows] == [1, 2, 3, 4]
    assert all(row["top1_pretrained"] == row["top1_untrained"] for row in rows)
    best = max(rows, key=lambda row: float(row["top1_pretrained"]))
    assert int(best["epoch"]) == metrics.best_epoch
    assert float(rows[-1]["lr"]) == pytest.approx(1e-5) and metrics.train_loss_final == float(
        rows[-1]["train_loss_pretrained"]
    )
    pairs = table(files.confusion)
    assert 100 * sum(pair["actual"] == pair["predicted"] for pair in pairs) / 24 == pytest.approx(metrics.top1)
    protocol = json.loads(files.protocol.read_text())
    assert protocol["protocol"] == metrics.protocol and protocol["data"]["splits"]["test"]["used"] == 24
    assert len(list(files.work.glob("*/finished"))) == 1  # kept, as its results may not be stored yet


def test_toy_images_are_learned_and_the_file_says_what_the_score_says(
    inputs: FinetuneInputs, tmp_path: Path, outputs: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn_figures: dict[str, Figure] = {}
    monkeypatch.setattr(tracking, "log_plot", drawn_figures.__setitem__)
    files = outputs(tmp_path / "out")
    metrics = run(params("paper", epochs=12, lr=0.01, layer_decay=1.0, crop_scale_min=0.8), inputs, files)
    assert metrics.top1 == 100.0 and metrics.learned_from == 48
    best = max(float(row["top1_pretrained"]) for row in table(files.history))
    assert best == metrics.top1
    model, about = load(files.model)
    store = Store(inputs.dataset, "test")
    view = about["view"]
    assert view == {"image_size": 16, "resize": "direct", "resize_short_side": 16}
    pixels = np.stack([View(16, 16, 0, mirror=False)(decoding.pixels(store, i)) for i in range(len(store))])
    guessed = model(normalise(torch.from_numpy(pixels))).argmax(dim=1)
    names = [about["class_names"][i] for i in guessed]
    assert names == [pair["predicted"] for pair in table(files.confusion)]
    assert list(drawn_figures) == ["curves.png", "confusion.png"]
    _, loss, accuracy = drawn_figures["curves.png"].axes
    assert [line.get_label() for line in loss.lines] == ["pretrained", "untrained"]
    np.testing.assert_allclose(
        accuracy.lines[0].get_ydata(), [float(row["top1_pretrained"]) for row in table(files.history)]
    )


def test_labels_without_meaning_stay_near_chance(inputs: FinetuneInputs, tmp_path: Path, outputs: Place) -> None:
    generator = np.random.default_rng(3)
    labels = {"train": generator.integers(0, 4, 64).tolist(), "test": generator.integers(0, 4, 300).tolist()}
    made = inputs.model_copy(update={"dataset": dataset(tmp_path / "noise", labels)})
    metrics = run(params(epochs=6, lr=0.01), made, outputs(tmp_path / "out"))
    assert metrics.top1 == pytest.approx(25, abs=100 * 3 * (0.25 * 0.75 / 300) ** 0.5)
    assert metrics.scored == 300


@pytest.mark.parametrize("moment", ["pretrained: epoch 2", "untrained: epoch 1", "untrained: top-1"])
def test_killed_at_any_moment_it_ends_as_if_never_stopped(
    inputs: FinetuneInputs, tmp_path: Path, outputs: Place, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    whole, cut = outputs(tmp_path / "whole"), outputs(tmp_path / "cut")
    chosen = params("paper", epochs=3, drop_path=0.2, mixup=0.8, rand_augment="rand-m5-inc1")
    metrics, show, lines = run(chosen, inputs, whole), progress.show, list[str]()

    def interrupt(text: str) -> None:
        if moment in text:
            raise KeyboardInterrupt
        lines.append(text)

    monkeypatch.setattr(progress, "show", interrupt)
    with pytest.raises(KeyboardInterrupt):
        run(chosen, inputs, cut)
    assert not cut.model.exists() and not cut.history.exists()
    monkeypatch.setattr(progress, "show", lambda text: (lines.append(text), show(text)))
    del lines[:]
    lighter = chosen.model_copy(update={"scoring_batch_size": 3})  # whose memory ran out goes on where it was
    assert run(lighter, inputs, cut) == metrics
    assert any("goes on after epoch" in line for line in lines)
    for name in ("model", "history", "confusion", "protocol"):
        assert getattr(cut, name).read_bytes() == getattr(whole, name).read_bytes(), name


def test_the_protocol_ignores_what_means_nothing(inputs: FinetuneInputs, tmp_path: Path, outputs: Place) -> None:
    def protocol(profile: str = "clean", **changes: Any) -> str:
        made = outputs(tmp_path / str(len(list(tmp_path.iterdir()))))
        return run(params(profile, epochs=1, warmup_epochs=0.0, **changes), inputs, made).protocol

    plain = protocol()
    assert plain == protocol(seed=1, micro_batch_size=4, scoring_batch_size=3, train_limit=48)
    assert len({plain, protocol("paper"), protocol(lr=0.002), protocol(train_per_class=9)}) == 4


def test_images_per_class_are_drawn_exactly_and_by_the_seed(inputs: FinetuneInputs) -> None:
    def rows(**changes: Any) -> list[int]:
        chosen = params("paper", **changes)
        return read("toy", chosen, chosen.finetunings["toy"], inputs).train.rows.tolist()

    labels = Store(inputs.dataset, "train").column("label")
    few = rows(train_per_class=5)
    assert np.bincount(labels[few]).tolist() == [5, 5, 5, 5] and few == sorted(few)
    assert few == rows(train_per_class=5) != rows(train_per_class=5, seed=1)
    assert rows() == list(range(48)) and len(rows(train_limit=20)) == 20


def test_a_class_s_draw_does_not_depend_on_other_classes() -> None:
    labels, task = np.array([0] * 10 + [1] * 30), Task("toy", ["a", "b"], 1)
    every = drawn(task, np.arange(40), labels, 4, 0)
    alone = drawn(task, np.arange(10), labels[:10], 4, 0)
    assert every[:4].tolist() == alone.tolist()


def test_the_held_out_images_are_none_of_those_learned_from(inputs: FinetuneInputs) -> None:
    found = read("toy", params(), params().finetunings["toy"], inputs)
    train, judge = set(found.train.rows.tolist()), set(found.judge.rows.tolist())
    assert judge and not train & judge and train | judge == set(range(48))
    paper = read("toy", params("paper"), params("paper").finetunings["toy"], inputs)
    assert paper.judge is paper.test


def test_a_list_says_which_images_are_used(inputs: FinetuneInputs, tmp_path: Path) -> None:
    path = tmp_path / "some.txt"
    path.write_text("".join(f"{i % 4}/{i:03d}.png\n" for i in range(40, 16, -1)))
    chosen = params("paper", train_list_sha256=sha256(path))
    found = read("toy", chosen, chosen.finetunings["toy"], inputs.model_copy(update={"train_list": path}))
    assert found.train.rows.tolist() == list(range(17, 41))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"batch_size": 49}, r"finetune toy: optimisation.batch_size is 49, but there are 48 training images"),
        ({"train_per_class": 13}, r"class 'a' has 12 training images, but train_per_class is 13"),
        ({"train_limit": 9}, r"1 classes of the test images have no training image: d; no head can learn them"),
        ({"test_split": "val"}, r"has no split 'val'; its splits are: train, test"),
        ({"dataset": "other"}, r"holds dataset 'toy' but dataset is 'other'"),
        ({"image_size": 18}, r"image is 18×18 pixels; both sides must be multiples of the patch size 4"),
        ({"pooling": "class_token"}, r"pooling is 'class_token', but the encoder has none"),
        ({"train_list_sha256": "0" * 64}, r"it is another list"),
        ({"profile": "clean", "holdout_fraction": 1e-9}, r"holds out none of 48 training images"),
    ],
)
def test_bad_input_is_refused_before_an_image_is_seen(
    inputs: FinetuneInputs, tmp_path: Path, outputs: Place, changes: dict[str, Any], message: str
) -> None:
    profile = changes.pop("profile", "paper")
    with pytest.raises(ValueError, match=message):
        run(params(profile, **changes), inputs, outputs(tmp_path / "out"))
    assert not (tmp_path / "out" / "model").exists()


@pytest.mark.parametrize(
    ("labels", "classes", "message"),
    [
        ([0, 1, -1, 2], 4, r"2 of 8 images in split 'train' of dataset 'toy' have no label"),
        ([0, 1, 5, 2], 4, r"2 of 8 images in split 'train' of dataset 'toy' have a label above 3"),
        ([0, 1, 0, 1], 12, r"8 training images of 2 classes and 2 test images for 12 classes"),
    ],
)
def test_labels_that_cannot_be_learned_are_refused(
    inputs: FinetuneInputs, tmp_path: Path, outputs: Place, labels: list[int], classes: int, message: str
) -> None:
    made = dataset(tmp_path / "bad", {"train": labels * 2, "test": [0, 1]}, classes)
    with pytest.raises(ValueError, match=message):
        run(params("paper", batch_size=2), inputs.model_copy(update={"dataset": made}), outputs(tmp_path / "out"))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"micro_batch_size": 3}, "micro_batch_size is 3, which does not divide the batch_size 8 of 'toy'"),
        ({"mixup": 0.8, "batch_size": 7}, "batch_size is 7, but mixup and cutmix pair the images"),
        ({"warmup_epochs": 4.0}, "the warm-up must end before training does"),
        ({"final_lr": 0.1}, "final_lr is 0.1 and lr 0.003"),
        ({"crop_scale_min": 1.0, "crop_scale_max": 0.5}, "the first must not exceed the second"),
        ({"rand_augment": "rand-m9.5"}, "String should match pattern"),
        ({"test_split": "train"}, "train_split and test_split are both 'train'"),
        ({"resize": "short_side_center_crop", "resize_short_side": 12}, "resize_short_side is 12, below image_size 16"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        params(**changes)


def test_bf16_and_any_encoder_run(inputs: FinetuneInputs, tmp_path: Path, outputs: Place) -> None:
    from components.mim.timm_encoder import timm_config, untrained

    size = {"img_size": 16, "patch_size": 4, "embed_dim": 24, "depth": 2, "num_heads": 2}
    for name in ("vit_tiny_patch16_224", "beit_base_patch16_224"):
        path = tmp_path / f"{name}.safetensors"
        save(path, untrained(timm_config(name, size), 5), {"seed": 5, "weight_init": "fan_in"})
        chosen = params(epochs=1, warmup_epochs=0.0, precision="bf16", pooling="class_token", norm="new")
        metrics = run(chosen, inputs.model_copy(update={"encoder": path}), outputs(tmp_path / name))
        assert metrics.top1_gain == 0.0 and metrics.scored == 24
    assert encoder().config.layers == 2
