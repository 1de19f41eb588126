"""When quality is measured, in runs that stop and go on and in processes of their own, and what its rule says."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import distributed, multiprocessing

from components.images.store import Store
from components.mim.model import target_encoder
from components.pretrain.batches import Batches
from components.pretrain.building import build
from components.pretrain.contract import PretrainInputs, PretrainOutputs, PretrainParams
from components.pretrain.loop import Trainer
from components.pretrain.parallel import Alone, Replicated
from components.pretrain.quality import Quality, Row
from components.pretrain.quality_rule import verdict
from components.pretrain.run import run
from components.pretrain.sharding import Sharded
from components.pretrain.state import State

from .looks import CPU, parameters, scores, watch


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
