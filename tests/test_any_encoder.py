"""Every evaluation takes every encoder: with class token and learned positions, timm's with registers at patch 14, BEiT's."""

import importlib
import json
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from PIL import Image

from components.images import store
from components.mim import weights
from components.mim.encoder import Encoder, EncoderConfig, VisionEncoder
from components.mim.initialise import initialise
from components.mim.predictor import Predictor, PredictorConfig
from components.mim.timm_encoder import timm_config, untrained
from components.stage import contract, read_yaml, validate

PROJECT = Path(__file__).parents[1]
SMALL = {"embed_dim": 24, "depth": 2, "num_heads": 2}


class Kind(NamedTuple):
    """An encoder, the image size for probes, and a frame's short side: whole patches of either."""

    make: Callable[[], VisionEncoder]
    size: int
    short_side: int


def ours(**changes: Any) -> VisionEncoder:
    values = {"image_size": 16, "patch_size": 4, "width": 24, "layers": 2, "heads": 2}
    encoder = Encoder(EncoderConfig(**(values | changes)))
    initialise(encoder, 0, "fan_in")
    return encoder


KINDS = {
    "ours with a class token and a table of positions": Kind(
        lambda: ours(class_token=True, positions="learned"), 16, 16
    ),
    "timm's with registers, patch 14": Kind(
        lambda: untrained(timm_config("vit_small_patch14_reg4_dinov2", SMALL | {"img_size": 28}), 0), 28, 56
    ),
    "BEiT's": Kind(lambda: untrained(timm_config("beit_base_patch16_224", SMALL | {"img_size": 32}), 0), 32, 64),
}


def png(pixels: np.ndarray) -> bytes:
    file = BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Prepared datasets `images` (labelled), `scenes` and `video` of noise."""
    folder, draw = tmp_path_factory.mktemp("data"), np.random.default_rng(0)

    def picture(height: int = 32, width: int = 32) -> bytes:
        return png(draw.integers(0, 256, (height, width, 3), dtype=np.uint8))

    def images(split: str, count: int) -> list[dict[str, Any]]:
        return [{"path": f"{split}/{i}.png", "image": picture(), "label": i % 3} for i in range(count)]

    def scenes(split: str, count: int) -> list[dict[str, Any]]:
        about = [{"count": 3 + i % 8, "distance": (7.5, 8.2, 8.7, 9.2, 9.7, 11.0)[i % 6]} for i in range(count)]
        return [{"path": f"{split}/{i}.png", "image": picture(), **values} for i, values in enumerate(about)]

    mask = np.zeros((64, 80), dtype=np.uint8)
    mask[20:40, 20:40] = 255
    frames = [
        {"path": f"v/{i:05d}.jpg", "image": picture(64, 80), "sequence": "v", "frame": i, "mask": png(mask)}
        for i in range(4)
    ]
    for kind, splits in {
        "images": {"train": images("train", 36), "test": images("test", 18)},
        "scenes": {"train": scenes("train", 96), "val": scenes("val", 24)},
        "video": {"val": frames},
    }.items():
        written = store.write(folder / kind, kind, splits, 1)
        card = {
            "name": kind,
            "kind": kind,
            "format": "image_folder",
            "classes": ["a", "b", "c"] if kind == "images" else [],
        }
        store.write_card(folder / kind, {**card, "splits": written, "mean": [0.5] * 3, "std": [0.2] * 3, "skipped": []})
    return folder


@pytest.fixture(scope="module", params=KINDS)
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Kind, Path]:
    kind, folder = KINDS[request.param], tmp_path_factory.mktemp("models")
    encoder, about = kind.make(), {"seed": 1, "weight_init": "fan_in", "noise_std": 0.25}
    weights.save(folder / "encoder.safetensors", encoder, about)
    width, side = encoder.config.width, kind.size // encoder.config.patch_size
    predictor = Predictor(
        PredictorConfig(
            encoder_width=width, output_width=width, width=16, layers=1, heads=2, mask_token=True, bias_on_noise=False,
            grid_side=side,
        )
    )  # fmt: skip
    initialise(predictor, 0, "fan_in")
    weights.save(folder / "predictor.safetensors", predictor, about)
    return kind, folder


def changes(word: str, kind: Kind) -> dict[str, Any]:
    """The committed values of a stage for the datasets and sizes here."""
    values = read_yaml(PROJECT / "params" / f"{word}.yaml")
    if word == "linear_probe":
        task = values["tasks"]["digits"] | {"dataset": "images", "image_size": kind.size, "epochs": 2}
        return values | {"knn_k": 3, "profile": "paper", "tasks": {"one": task | {"logistic_lambdas": [1.0]}}}
    if word == "finetune":
        one = values["finetunings"]["digits"]
        one |= {
            "dataset": "images",
            "image_size": kind.size,
            "resize_short_side": kind.size,
            "train_limit": 0,
            "train_per_class": 0,
        }
        one["optimisation"] |= {"epochs": 1, "warmup_epochs": 0.0, "batch_size": 12}
        return values | {"profile": "paper", "finetunings": {"one": one}}
    if word == "clevr":
        square = {"height": kind.size, "width": kind.size, "count_epochs": 2, "distance_epochs": 2}
        return values | square | {"dataset": "scenes", "profile": "paper"}
    return values | {"dataset": "video", "short_side": kind.short_side}


@pytest.mark.parametrize("word", ["linear_probe", "finetune", "clevr", "davis"])
def test_an_evaluation_scores_it(word: str, made: tuple[Kind, Path], data: Path, tmp_path: Path) -> None:
    (kind, models), legal = made, contract(word)
    params = validate(legal.params, changes(word, kind), word)
    sources = {
        "encoder": models / "encoder.safetensors",
        "predictor": models / "predictor.safetensors",
        "dataset": data / {"clevr": "scenes", "davis": "video"}.get(word, "images"),
        "train_list": PROJECT / "params/subsets/all.txt",
    }
    inputs = legal.inputs(**{name: sources[name] for name in legal.inputs.model_fields})
    outputs = legal.outputs(**{name: tmp_path / name for name in legal.outputs.model_fields})
    metrics = (
        importlib.import_module(f"components.{word}.run").run(params, inputs, outputs).model_dump(exclude_none=True)
    )
    protocol = json.loads((tmp_path / "protocol").read_text())
    assert metrics["protocol"] == protocol["protocol"]
    scores = {
        name: value
        for name, value in metrics.items()
        if "top1" in name and "gain" not in name or name.startswith("jf_mean_")
    }
    scores.pop("jf_mean_gain", None)
    assert len(scores) >= 2 and all(0 <= value <= 100 for value in scores.values()), scores
