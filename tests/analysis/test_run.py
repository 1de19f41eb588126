"""The whole stage on toy runs: every kind of encoder, objective and dataset; and what is refused."""

from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from components.analysis.contract import AnalysisMetrics, AnalysisOutputs, AnalysisParams
from components.analysis.run import pictures, run
from components.images import store
from components.stage import load_params

RELEASED = {"mask_token": False, "bias_on_noise": True}


def params(**changes: Any) -> AnalysisParams:
    small = {"dataset": "toy", "split": "test", "images": 5, "shown_images": 2, "draws": 2}
    committed = load_params("analysis", Path(__file__).parents[2] / "params/analysis.yaml").model_dump()
    return AnalysisParams.model_validate(committed | small | changes)


def outputs(folder: Path) -> AnalysisOutputs:
    files = {name: folder / f"{name}.png" for name in AnalysisOutputs.model_fields}
    return AnalysisOutputs(**files | {"metrics": folder / "metrics.json", "run": folder / "run.json"})


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"stop": {"noise_std": 0.0}},
        {
            "stop": RELEASED,
            "encoder": {"class_token": True, "positions": "learned"},
            "predictor": {"positions": "learned"},
        },
        {"stop": {"covariance": "untied", "apply_to": "both"}, "objective": {"low_resolution": "bilinear"}},
        {"stop": {"covariance": "fixed"}, "objective": {"name": "data2vec", "target_layers": 2}},
        {
            "objective": {"name": "mae"},
            "masks": {"sampler": "random"},
            "encoder": {"image_size": 48, "class_token": True},
        },
        {"masks": {"sampler": "legacy", "min_context": 1}, "encoder": {"image_size": 80}},
        {
            "timm": ("vit_tiny_patch16_224", {"img_size": 64, "depth": 2}),
            "encoder": {
                "image_size": 64,
                "patch_size": 16,
                "width": 192,
                "heads": 3,
                "positions": "learned",
                "class_token": True,
            },
        },
    ],
)
def test_any_run_is_drawn(make: Callable, toy_images: Path, tmp_path: Path, changes: dict[str, Any]) -> None:
    """Toy pictures are smaller than the crops, and scaled to them."""
    made, paths = make(**changes), outputs(tmp_path / "out")
    found = run(params(), made.inputs(toy_images), paths)
    figures = set(AnalysisOutputs.model_fields) - {"metrics", "run"}
    assert {path.name for path in (tmp_path / "out").iterdir()} == {f"{name}.png" for name in figures}
    for name in figures:
        with Image.open(getattr(paths, name)) as image:
            assert image.format == "PNG" and min(image.size) > 300
    noisy = made.load().noisy
    assert (found.position_blur > 0) == (found.position_similarity < 0.9999) == noisy
    assert noisy or found.prediction_locality == found.prediction_locality_noiseless
    assert 0 < found.target_locality <= 100 and 0 < found.pca_explained <= 100
    weight = made.load().predictor.embed.weight
    assert found.A_norm_l1 == pytest.approx(weight.abs().sum().item() / weight.numel(), rel=1e-5)
    assert found.mask_token_norm_l1 == pytest.approx(made.load().mark().abs().mean().item())


def test_the_seed_draws_and_nothing_else_does(make: Callable, toy_images: Path, tmp_path: Path) -> None:
    made = make(stop={"noise_std": 0.5})

    def measured(folder: str, **changes: Any) -> tuple[AnalysisMetrics, dict[str, bytes]]:
        found = run(params(**changes), made.inputs(toy_images), outputs(tmp_path / folder))
        return found, {path.name: path.read_bytes() for path in (tmp_path / folder).iterdir()}

    first, other = measured("first"), measured("other", seed=1)
    assert measured("again") == first
    assert first[0].prediction_locality != other[0].prediction_locality
    assert first[0].pca_explained == other[0].pca_explained and first[0].position_blur == other[0].position_blur
    alike = {name for name in first[1] if first[1][name] == other[1][name]}
    assert alike == {"norms.png", "spectrum.png", "patch_pca.png"}


def dataset(folder: Path, kind: str, count: int, extra: dict[str, Any]) -> Path:
    """`count` pictures, 40 wide and 24 high, red in the middle 24 columns and blue beside them."""
    pixels = np.zeros((24, 40, 3), np.uint8)
    pixels[:, :, 2], pixels[:, 8:32] = 255, (255, 0, 0)
    buffer = BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG")
    rows = [{"path": f"{i}.png", "image": buffer.getvalue(), **extra} for i in range(count)]
    folder.mkdir()
    splits = store.write(folder, kind, {"train": rows, "test": rows[:0]}, shard_mib=1)
    card = {
        "name": "toy",
        "kind": kind,
        "format": "x",
        "classes": [],
        "splits": splits,
        "mean": [0.5] * 3,
        "std": [0.2] * 3,
    }
    store.write_card(folder, card | {"skipped": []})
    return folder


@pytest.mark.parametrize(
    ("kind", "extra"),
    [
        ("images", {"label": -1}),
        ("scenes", {"count": 3, "distance": 8.0}),
        ("video", {"sequence": "a", "frame": 0, "mask": b""}),
    ],
)
def test_pictures_of_every_kind_are_cut_to_their_central_square(
    tmp_path: Path, kind: str, extra: dict[str, Any]
) -> None:
    folder = dataset(tmp_path / "toy", kind, 3, extra)
    found = pictures(params(split="train", images=2), folder, 16)
    assert found.shape == (2, 16, 16, 3) and found.dtype == torch.uint8
    assert (found[:, :, 1:-1, 0] > 250).all() and (found[:, :, 1:-1, 2] < 5).all()
    assert len(pictures(params(split="train", images=9), folder, 16)) == 3  # all of a smaller split


def test_pictures_are_spread_over_the_split(toy_images: Path) -> None:
    """Four of 24, in order."""
    found = pictures(params(images=4), toy_images, 16)
    stored = store.Store(toy_images, "test")
    for picture, row in zip(found, (0, 6, 12, 18), strict=True):
        np.testing.assert_array_equal(picture, np.asarray(stored.image(row)))


def test_datasets_that_cannot_be_shown_are_refused(make: Callable, toy_images: Path, tmp_path: Path) -> None:
    made, paths = make(), outputs(tmp_path / "out")
    with pytest.raises(ValueError, match="holds dataset 'toy' but dataset is 'imagenet'; make the two agree"):
        run(params(dataset="imagenet"), made.inputs(toy_images), paths)
    with pytest.raises(ValueError, match="has no split 'val'; its splits are: train, test"):
        run(params(split="val"), made.inputs(toy_images), paths)
    empty = dataset(tmp_path / "toy", "images", 2, {"label": 0})
    with pytest.raises(ValueError, match="split 'test' of dataset 'toy' has no pictures; name another one .*: train$"):
        run(params(), made.inputs(empty), paths)
    assert not (tmp_path / "out").exists()


def test_more_shown_than_measured_is_refused() -> None:
    with pytest.raises(ValueError, match="shown_images is 6 and images 5; the pictures shown are among those measured"):
        params(shown_images=6)
