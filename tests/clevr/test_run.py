import csv
import json
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure
from PIL import Image, ImageOps
from sklearn.metrics import confusion_matrix

from components import tracking
from components.clevr.contract import ClevrInputs, ClevrOutputs, ClevrParams
from components.clevr.labels import COUNT_CLASSES, DISTANCE_CLASSES
from components.clevr.run import both_views, run
from components.images.store import Store, write, write_card
from components.mim.encoder import EncoderConfig
from components.mim.predictor import PredictorConfig
from components.mim.weights import build, save
from components.probe.dataset import Part, spread, subjects
from components.stage import read_yaml

DISTANCES = (7.0, 8.2, 8.7, 9.3, 9.9, 12.0)


def scene(index: int) -> dict[str, Any]:
    """`count` bright squares at random places of a 24×48 image whose ground is the darker the closer the nearest is."""
    draws = np.random.default_rng(index)
    count, depth = 3 + index % 8, index // 8 % 6
    pixels = np.full((24, 48, 3), 20 + 30 * depth, np.uint8)
    for place in draws.permutation(18)[:count]:
        top, left = place // 6 * 8 + 2, place % 6 * 8 + 2
        pixels[top : top + 5, left : left + 5] = (255, 40, 40)
    buffer = BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG")
    return {"path": f"{index:05d}.png", "image": buffer.getvalue(), "count": count, "distance": DISTANCES[depth]}


def prepare(folder: Path, train: list[dict[str, Any]], val: list[dict[str, Any]], kind: str = "scenes") -> Path:
    splits = write(folder, kind, {"train": train, "val": val}, shard_mib=1)
    card = {"name": "shapes", "kind": kind, "format": "clevr", "classes": [], "splits": splits}
    write_card(folder, card | {"mean": [0.5] * 3, "std": [0.25] * 3, "skipped": []})
    return folder


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> ClevrInputs:
    """Small scenes and an encoder saved before its first step: the pretrained one and the untrained one are the same."""
    folder = tmp_path_factory.mktemp("clevr")
    predictor = PredictorConfig(
        encoder_width=48, output_width=48, width=16, layers=1, heads=1, mask_token=True, bias_on_noise=False
    )
    config = EncoderConfig(image_size=24, patch_size=8, width=48, layers=2, heads=3)
    about = {"seed": 7, "weight_init": "fan_in"}
    save(folder / "encoder.safetensors", build(config, predictor, seed=7, weight_init="fan_in").encoder, about)
    dataset = prepare(folder / "shapes", [scene(i) for i in range(480)], [scene(i) for i in range(480, 630)])
    return ClevrInputs(encoder=folder / "encoder.safetensors", dataset=dataset)


def params(**changes: object) -> ClevrParams:
    """The committed values on these scenes; `changes` are the stage's or the heads'."""
    values = read_yaml(Path(__file__).parents[2] / "params/clevr.yaml")
    own = {"height": 24, "width": 48, "count_epochs": 30, "distance_epochs": 30, "batch_size": 64}
    grid = {"learning_rates": [0.1, 1.0], "weight_decays": [0.0]}
    for part in (values, values["heads"]):
        part |= {key: value for key, value in (own | grid | changes).items() if key in part}
    return ClevrParams.model_validate(values)


def outputs(folder: Path) -> ClevrOutputs:
    return ClevrOutputs(**{name: folder / name for name in ClevrOutputs.model_fields})


def table(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_both_tasks_are_learned_and_an_encoder_that_never_learned_gains_nothing(
    inputs: ClevrInputs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: dict[str, Figure] = {}
    monkeypatch.setattr(tracking, "log_plot", drawn.__setitem__)
    metrics, files = run(params(), inputs, outputs(tmp_path)), outputs(tmp_path)
    assert (metrics.count_top1_gain, metrics.distance_top1_gain) == (0.0, 0.0)
    assert metrics.scored == 150
    assert metrics.count_top1 > 60
    assert metrics.distance_top1 > 90
    for confusion, heads, top1, classes, actual in (
        (files.count_confusion, files.count_heads, metrics.count_top1, COUNT_CLASSES, lambda i: 3 + i % 8),
        (files.distance_confusion, files.distance_heads, metrics.distance_top1, DISTANCE_CLASSES, lambda i: i // 8 % 6),
    ):
        pairs = table(confusion)
        offset = 3 if classes is COUNT_CLASSES else 0
        assert [pair["actual"] for pair in pairs] == [classes[actual(i) - offset] for i in range(480, 630)]
        right = 100 * sum(pair["actual"] == pair["predicted"] for pair in pairs) / 150
        assert right == pytest.approx(top1)
        axes = drawn.pop(f"{confusion.name}.png").axes[0]
        assert [label.get_text() for label in axes.get_yticklabels()] == list(classes)
        told, given = ([pair[name] for pair in pairs] for name in ("actual", "predicted"))
        expected = 100 * confusion_matrix(told, given, labels=list(classes), normalize="true")
        np.testing.assert_allclose(np.asarray(axes.images[0].get_array()), expected)
        rows = table(heads)
        chosen = [row for row in rows if row["chosen"] == "1"]
        assert [row["encoder"] for row in chosen] == ["pretrained", "untrained"]
        assert float(chosen[0]["test_top1"]) == pytest.approx(top1, abs=1e-3)
        assert float(chosen[0]["holdout_top1"]) == max(float(row["holdout_top1"]) for row in rows)
    assert not drawn


def test_each_training_scene_is_also_seen_in_a_mirror(inputs: ClevrInputs, tmp_path: Path) -> None:
    """The second half of the training features are those of the mirrored files."""
    originals = [scene(i) for i in range(20)]
    mirrored = []
    for row in originals:
        buffer = BytesIO()
        ImageOps.mirror(Image.open(BytesIO(row["image"]))).save(buffer, "PNG")
        mirrored.append(row | {"image": buffer.getvalue()})
    folder, subject = (
        prepare(tmp_path / "pair", originals, mirrored),
        next(subjects(inputs.encoder, 24, 48, torch.device("cpu"))),
    )
    parts = [Part(Store(folder, split), spread(20, 0)) for split in ("train", "val")]
    (plain, turned), (other, back) = (both_views(params(), part, subject, tmp_path / "work") for part in parts)
    np.testing.assert_allclose(turned.matrix, other.matrix, rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(plain.matrix, back.matrix, rtol=1e-6, atol=1e-6)
    assert np.abs(plain.matrix - turned.matrix).max() > 1e-3


def test_the_protocol_follows_what_decides_the_scores(inputs: ClevrInputs, tmp_path: Path) -> None:
    def mark(**changes: object) -> str:
        quick = {"count_epochs": 1, "distance_epochs": 1, "train_limit": 96, "test_limit": 48}
        metrics = run(params(**(quick | changes)), inputs, outputs(tmp_path))
        record = json.loads(outputs(tmp_path).protocol.read_text())
        assert record["protocol"] == metrics.protocol
        assert record["data"]["splits"]["val"] == {"rows": 150, "used": 48}
        return metrics.protocol

    base = mark()
    assert {mark(seed=1), mark(encoding_batch_size=5), mark(workers=2, cpus_per_worker=1)} == {base}
    assert len({base, mark(distance_epochs=2), mark(profile="paper")}) == 3


def test_the_recipes_for_photographs_are_vissls() -> None:
    """SGD at 0.01 per 256 images, decay 5e-4, cosine, 50 and 100 epochs, squashed to 224 × 224."""
    for name in ("vit_b16", "vit_l16", "vit_h14", "mae_vit_b16"):
        values = read_yaml(Path(__file__).parents[2] / f"params/presets/{name}.yaml")["clevr"]
        grid = {"learning_rates": [0.01], "weight_decays": [0.0005], "batch_norm": "both", "batch_size": 256}
        assert values["heads"].items() >= (grid | {"optimiser": "sgd", "schedule": "cosine"}).items()
        own = {"count_epochs": 50, "distance_epochs": 100, "height": 224, "width": 224, "profile": "paper", "layers": 4}
        assert values.items() >= own.items()


def test_a_class_without_a_training_scene_is_refused(inputs: ClevrInputs, tmp_path: Path) -> None:
    train = [scene(i) for i in range(200) if scene(i)["count"] != 10]
    few = inputs.model_copy(
        update={"dataset": prepare(tmp_path / "shapes", train, [scene(i) for i in range(200, 260)])}
    )
    with pytest.raises(ValueError, match=r"clevr count: 1 classes of the test images have no training image: 10; "):
        run(params(), few, outputs(tmp_path))


def test_a_scene_out_of_range_is_refused(inputs: ClevrInputs, tmp_path: Path) -> None:
    train = [scene(i) for i in range(100)]
    train[4]["distance"] = 0.0
    bad = inputs.model_copy(update={"dataset": prepare(tmp_path / "shapes", train, [scene(200)])})
    with pytest.raises(ValueError, match=r"scene '00004.png' has distance 0.0 .*above 0 and at most 100"):
        run(params(), bad, outputs(tmp_path))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"test_split": "test"}, r"has no split 'test'; its splits are: train, val"),
        ({"dataset": "clevr"}, r"holds dataset 'shapes' but dataset is 'clevr'"),
        ({"width": 44}, r"24×44 pixels; both sides must be multiples of the patch size 8"),
    ],
)
def test_bad_settings_are_refused_before_a_scene_is_encoded(
    inputs: ClevrInputs,
    tmp_path: Path,
    changes: dict[str, object],
    message: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(ValueError, match=message):
        run(params(**changes), inputs, outputs(tmp_path))
    assert capsys.readouterr().out == ""
