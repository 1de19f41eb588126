"""Quality while it trains: the linear probe's own features and neighbours, and the same numbers from any number of workers."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch
from sklearn.linear_model import Ridge
from sklearn.preprocessing import StandardScaler
from torch import Tensor, nn

from components.images import decoding
from components.images.store import Store
from components.images.transforms import View, normalise
from components.mim.encoder import VisionEncoder
from components.pretrain import quality
from components.pretrain.building import build
from components.pretrain.contract import PretrainParams
from components.pretrain.held_out import held_out
from components.pretrain.parallel import Alone
from components.pretrain.quality import Row, ridge
from components.pretrain.quality_rule import verdict
from components.probe.extraction import encode
from components.probe.neighbours import nearest

from .looks import CPU, parameters, scores, watch


class Told(nn.Module):
    """Stands for an encoder: tokens by the content of an image, through `say`, which gets its place in the toy dataset."""

    def __init__(self, toy: Path, say: Callable[[str, int], Tensor]) -> None:
        super().__init__()
        self._say = say
        self._places = {}
        for split in ("train", "test"):
            images = Store(toy, split)
            for row in range(len(images)):
                pixels = torch.from_numpy(np.asarray(images.image(row)).copy())
                self._places[self._key(normalise(pixels[None])[0])] = (split, row)

    @staticmethod
    def _key(image_CHW: Tensor) -> float:
        return round(float(image_CHW.double().square().sum()), 6)

    def forward(self, images_BCHW: Tensor) -> Tensor:
        return torch.stack([self._say(*self._places[self._key(image)]) for image in images_BCHW])[:, None]


def measured(params: PretrainParams, toy: Path, say: Callable[[str, int], Tensor]) -> Row:
    return watch(params, toy).measure(cast(VisionEncoder, Told(toy, say)))


def test_neighbours_are_those_of_the_linear_probe(tiny: dict[str, Any], toy_images: Path) -> None:
    """On features encoded as that stage does, in batches of another size."""
    params = parameters(tiny)
    encoder, held = build(params, Path(params.init.path)).model.encoder, held_out(params.quality, toy_images)
    row = watch(params, toy_images).measure(encoder)
    view, encoded = View(16, 16, 0, mirror=False), []
    for part in (held.train, held.test):
        pixels = [torch.from_numpy(view(decoding.pixels(part.store, int(row)))) for row in part.rows]
        encoded.append(torch.cat([encode(encoder, torch.stack(some), 1) for some in (pixels[:7], pixels[7:])]).numpy())
    train, test = encoded
    right = nearest(train, held.labels, test, params.quality.knn_k, 4) == held.judged
    assert row["quality_knn_top1"] == pytest.approx(100 * right.mean())
    probe = ridge(torch.from_numpy(train.copy()), held.labels, torch.from_numpy(test.copy()))
    assert row["quality_probe_top1"] == pytest.approx(100 * (probe == held.judged).mean())
    assert row["quality_guessing_top1"] == held.guessing


def test_the_probe_is_ridge_regression_on_standardised_features() -> None:
    """scikit-learn's, by another solver; the sixth feature has no spread."""
    generator = np.random.default_rng(0)
    labels, judged = generator.integers(0, 3, 60), generator.integers(0, 3, 40)
    train, test = (
        np.column_stack([generator.normal(of[:, None] * np.arange(5), 3.0), np.full(len(of), 7.0)]).astype(np.float32)
        for of in (labels, judged)
    )
    scaler = StandardScaler().fit(train.astype(np.float64))
    model = Ridge(alpha=quality.STRENGTH * 60, solver="svd").fit(
        scaler.transform(train.astype(np.float64)), np.eye(3)[labels]
    )
    expected = model.predict(scaler.transform(test.astype(np.float64))).argmax(axis=1)
    assert len(set(expected.tolist())) == 3
    np.testing.assert_array_equal(ridge(torch.from_numpy(train), labels, torch.from_numpy(test)), expected)


def test_features_that_name_the_class_score_everything(tiny: dict[str, Any], toy_images: Path) -> None:
    labels = {split: Store(toy_images, split).column("label") for split in ("train", "test")}
    row = measured(parameters(tiny), toy_images, lambda split, place: torch.eye(4)[labels[split][place]])
    assert row["quality_knn_top1"] == row["quality_probe_top1"] == 100
    assert not verdict([{"step": 1, **row}])


def test_features_without_anything_to_do_with_the_class_score_what_guessing_does(
    tiny: dict[str, Any], toy_images: Path
) -> None:
    noise = {split: torch.randn(48, 3, generator=torch.Generator().manual_seed(0)) for split in ("train", "test")}
    row = measured(parameters(tiny), toy_images, lambda split, place: noise[split][place + 7 * (split == "test")])
    assert row["quality_knn_top1"] < row["quality_guessing_top1"] > row["quality_probe_top1"]


def test_a_collapsed_encoder_is_at_chance_and_told_of(tiny: dict[str, Any], toy_images: Path) -> None:
    row = measured(parameters(tiny), toy_images, lambda split, place: torch.ones(24))
    assert row["quality_knn_top1"] == row["quality_probe_top1"] == 25  # one class of four for all
    assert "k-NN top-1 is 25.0 %, no better than guessing (up to 51.5 %)" in verdict([{"step": 1, **row}])


def test_features_that_are_no_numbers_stop_it(tiny: dict[str, Any], toy_images: Path) -> None:
    with pytest.raises(
        ValueError, match="features of labelled images of 'toy' are no numbers; the encoder has diverged"
    ):
        measured(parameters(tiny), toy_images, lambda split, place: torch.full((3,), float("nan")))


class Threads(Alone):
    """One worker of several, each in a thread of this process."""

    def __init__(self, rank: int, world: int, shared: SimpleNamespace) -> None:
        super().__init__(CPU)
        self.rank, self.world, self._shared = rank, world, shared

    def gather(self, tensor: Tensor) -> Tensor:
        self._shared.parts[self.rank] = tensor
        self._shared.barrier.wait(timeout=60)
        return torch.cat([self._shared.parts[rank] for rank in range(self.world)])


@pytest.mark.parametrize(("world", "train_images", "test_images"), [(2, 40, 24), (3, 39, 23), (8, 5, 1)])
def test_workers_share_the_images_and_come_to_the_same(
    tiny: dict[str, Any], toy_images: Path, world: int, train_images: int, test_images: int
) -> None:
    """Also where they are not shared evenly, and where some have none; each calls the encoder as often, as FSDP needs."""
    params = parameters(tiny, train_images=train_images, test_images=test_images)
    calls = dict.fromkeys(range(world), 0)
    encoder = build(params, Path(params.init.path)).model.encoder
    expected = scores(watch(params, toy_images).measure(encoder))
    shared = SimpleNamespace(parts={}, barrier=threading.Barrier(world))

    def work(rank: int) -> Row:
        class Counted(nn.Module):
            def forward(self, images: Tensor) -> Tensor:
                calls[rank] += 1
                tokens: Tensor = encoder(images)
                return tokens

        return scores(watch(params, toy_images, Threads(rank, world, shared)).measure(cast(VisionEncoder, Counted())))

    with ThreadPoolExecutor(world) as pool:
        rows = list(pool.map(work, range(world)))
    assert rows == [expected] * world
    assert len(set(calls.values())) == 1
