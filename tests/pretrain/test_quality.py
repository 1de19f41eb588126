"""Quality while it trains: the linear probe's own features and neighbours, and the same numbers from any number of workers."""

import json
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
from torch import Tensor, distributed, multiprocessing, nn

from components.images import decoding
from components.images.store import Store
from components.images.transforms import View, normalise
from components.mim.encoder import VisionEncoder
from components.mim.model import target_encoder
from components.pretrain import quality
from components.pretrain.batches import Batches
from components.pretrain.building import build
from components.pretrain.contract import PretrainInputs, PretrainOutputs, PretrainParams
from components.pretrain.held_out import held_out
from components.pretrain.loop import Trainer
from components.pretrain.parallel import Alone, Replicated
from components.pretrain.quality import Quality, Row, ridge
from components.pretrain.quality_rule import verdict
from components.pretrain.run import run
from components.pretrain.sharding import Sharded
from components.pretrain.state import State
from components.probe.extraction import encode
from components.probe.neighbours import nearest

CPU = torch.device("cpu")


def parameters(tiny: dict[str, Any], **changed: Any) -> PretrainParams:
    return PretrainParams(**tiny | {"quality": tiny["quality"] | {"every_epochs": 1.0} | changed})


def watch(params: PretrainParams, toy: Path, parallel: Alone | None = None) -> Quality:
    made = Quality.of(params, toy, parallel or Alone(CPU), Batches(params, Store(toy, "train"), 0, 1))
    assert made
    return made


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


def scores(row: Row) -> Row:
    """All but the time it took."""
    return {name: value for name, value in row.items() if name != "quality_seconds"}


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


def in_a_process(rank: int, world: int, folder: Path, values: dict[str, Any], toy: Path, sharding: str) -> None:
    torch.set_num_threads(1)
    distributed.init_process_group("gloo", init_method=f"file://{folder}/group", rank=rank, world_size=world)
    params = PretrainParams(**values)
    model = build(params, Path(params.init.path)).model
    target = target_encoder(model.encoder)
    parallel = {"ddp": Replicated, "fsdp": Sharded}[sharding](CPU)
    parallel.distribute(model, target)
    made = watch(params, toy, parallel)
    rows = [scores(made.measure(target)) for _ in range(2)]
    (folder / f"{rank}.json").write_text(json.dumps(rows))
    distributed.destroy_process_group()


@pytest.mark.faults
@pytest.mark.parametrize("sharding", ["ddp", "fsdp"])
def test_real_processes_with_replicas_and_with_shards_come_to_what_one_does(
    tiny: dict[str, Any], toy_images: Path, tmp_path: Path, sharding: str
) -> None:
    params = parameters(tiny, train_images=39, test_images=22)
    expected = scores(watch(params, toy_images).measure(build(params, Path(params.init.path)).model.encoder))
    given = (2, tmp_path, params.model_dump(), toy_images, sharding)
    multiprocessing.spawn(in_a_process, given, nprocs=2)
    for rank in range(2):
        assert json.loads((tmp_path / f"{rank}.json").read_text()) == [expected, expected]


@pytest.mark.parametrize(
    ("every", "steps"), [(1.0, [1, 3, 6]), (0.1, [1, 2, 3, 4, 5, 6]), (1.5, [1, 4, 6]), (50.0, [1, 6])]
)
def test_it_is_due_at_the_first_step_at_regular_ones_and_at_the_last(
    tiny: dict[str, Any], toy_images: Path, every: float, steps: list[int]
) -> None:
    """Two epochs of three steps."""
    made = watch(parameters(tiny, every_epochs=every), toy_images)
    assert [step for step in range(1, 7) if made.due(step)] == steps


def test_it_is_off_at_0_and_where_nothing_is_learned(tiny: dict[str, Any], toy_images: Path, tmp_path: Path) -> None:
    """The dataset is not even looked at."""
    tiny["init"] |= {"source": "file", "path": "x"}
    tiny["optimisation"] |= {"epochs": 0, "warmup_epochs": 0.0}
    for params in (PretrainParams(**tiny), parameters(tiny)):
        batches = Batches(params, Store(toy_images, "train"), 0, 1)
        assert Quality.of(params, tmp_path, Alone(CPU), batches) is None


def trained(params: PretrainParams, toy: Path, state: State | None = None, stop: int = 0) -> Trainer:
    """Trained to the end, or asked to stop after step `stop`."""
    batches = Batches(params, Store(toy, "train"), 0, 1)
    made = Trainer(
        params,
        batches,
        Alone(CPU),
        Path(params.init.path),
        lambda: made.step + 1 == stop,
        Quality.of(params, toy, Alone(CPU), batches),
    )
    if state:
        made.restore(state)
    made.train(lambda row, own: None, lambda: None)
    return made


def test_the_stage_refuses_images_that_will_not_do_before_it_makes_anything(
    tiny: dict[str, Any], toy_images: Path, tmp_path: Path
) -> None:
    names = [*PretrainOutputs.model_fields]
    outputs = PretrainOutputs(**{name: tmp_path / name for name in names})
    inputs = PretrainInputs(dataset=toy_images, quality=toy_images, init=Path(tiny["init"]["path"]))
    with pytest.raises(ValueError, match="has no split 'val'; its splits are: train, test"):
        run(parameters(tiny, test_split="val"), inputs, outputs)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("objective", ["ijepa", "mae"])
def test_a_run_that_goes_on_measures_where_one_that_never_stopped_does_and_the_same(
    tiny: dict[str, Any], toy_images: Path, objective: str
) -> None:
    """Log points are rarer than measurements. The last one is that of the encoder that goes on, which MAE has but one of."""
    tiny["objective"]["name"] = objective
    params = parameters(tiny, every_epochs=0.7).model_copy(update={"log_every": 5})
    whole = trained(params, toy_images)
    half = trained(params, toy_images, stop=3)
    assert half.step == 3
    again = trained(params, toy_images, half.state())
    assert measurements(again) == measurements(whole)
    assert [step for step, _ in measurements(whole)] == [1, 2, 4, 6]
    assert scores(watch(params, toy_images).measure(whole.shown())) == measurements(whole)[-1][1]
    plain = trained(PretrainParams(**{**params.model_dump(), "quality": tiny["quality"]}), toy_images)
    for name, tensor in plain.model.state_dict().items():  # nothing of it goes back into training
        assert torch.equal(tensor, whole.model.state_dict()[name]), name
    assert not any(name.startswith("quality") for row in plain.history for name in row)


def measurements(done: Trainer) -> list[tuple[float, Row]]:
    return [
        (row["step"], {name: value for name, value in scores(row).items() if name.startswith("quality")})
        for row in done.history
        if "quality_knn_top1" in row
    ]


@pytest.mark.parametrize(
    ("scores", "expected"),
    [
        ([30.0, 40.0, 38.0], ""),
        ([12.0, 13.5], ""),
        ([30.0, 12.0], "k-NN top-1 is 12.0 %, no better than guessing (up to 12.0 %)"),
        ([52.0, 40.0, 31.9], "k-NN top-1 fell to 31.9 % from 52.0 % at step 1"),
        ([52.0, 40.0, 32.0], ""),
        ([52.0, 31.9, 45.0], ""),
    ],
)
def test_the_rule(scores: list[float], expected: str) -> None:
    """Half of what 52 has above 12 is 32. Points without a measurement say nothing, and stand in the way of nothing."""
    rows: list[Row] = []
    for score in scores:
        rows += [{"step": len(rows) + 1, "quality_knn_top1": score, "quality_guessing_top1": 12.0}]
        told = verdict(rows)
        rows += [{"step": len(rows) + 1}]
        assert verdict(rows) == ""
    assert told == expected
