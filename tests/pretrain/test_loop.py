"""The loop: exact resume, the same gradient for any split of the batch, a loud stop on NaN."""

import copy
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from components.images.store import Store
from components.images.transforms import normalise
from components.mim import masks
from components.mim.diagnostics import effective_rank
from components.mim.objectives import Targets, target_features
from components.mim.positions import draw_noise
from components.pretrain import loop, measuring
from components.pretrain.batches import Batches
from components.pretrain.contract import PretrainParams
from components.pretrain.loop import Row, Trainer
from components.pretrain.parallel import Alone
from components.pretrain.state import flat, read, write


def trainer(values: dict[str, Any], toy: Path, rank: int = 0, world: int = 1) -> Trainer:
    params = PretrainParams(**values)
    return Trainer(
        params,
        Batches(params, Store(toy, "train"), rank, world),
        Alone(torch.device("cpu")),
        Path(params.init.path),
    )


def unheard(row: Row, own: Row) -> None:
    pass


def unsaved() -> None:
    pass


@pytest.mark.parametrize("cut", [1, 2, 3, 4, 5])
def test_a_resumed_run_equals_an_uninterrupted_one_bit_by_bit(
    tiny: dict[str, Any], toy_images: Path, tmp_path: Path, cut: int
) -> None:
    whole = trainer(tiny, toy_images)
    assert whole.train(unheard, unsaved)
    first = trainer(tiny, toy_images)
    first.stopping = lambda: first.step == cut - 1  # asked in the step that makes it `cut`

    def save() -> None:
        if first.step == cut:
            write(tmp_path / "state.safetensors", first.state(), flat(first.state()))

    assert not first.train(unheard, save) and first.step == cut
    second = trainer(tiny, toy_images)
    second.restore(read(tmp_path / "state.safetensors"))
    assert second.train(unheard, unsaved)
    assert second.step == whole.step == 6
    for name, tensor in whole.model.state_dict().items():
        assert torch.equal(tensor, second.model.state_dict()[name]), name
    for name, tensor in whole.target.state_dict().items():
        assert torch.equal(tensor, second.target.state_dict()[name]), name
    timings = {"seconds", "seconds_per_step", "images_per_second", "data_wait", "memory_gib"}
    for one, other in zip(whole.history, second.history, strict=True):
        assert {key: one[key] for key in one if key not in timings} == {
            key: other[key] for key in one if key not in timings
        }


def test_checkpoints_come_at_most_ten_minutes_apart_and_change_no_number(
    tiny: dict[str, Any], toy_images: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny["checkpoint_every"] = 1000
    weights, saved = [], []
    for seconds in (1.0, 200.0):  # that a step takes
        one, found = trainer(tiny, toy_images), list[float]()
        clock = SimpleNamespace(monotonic=lambda one=one, seconds=seconds: seconds * one.step)
        for module in (loop, measuring):
            monkeypatch.setattr(module, "time", clock)
        one.train(unheard, lambda one=one, found=found: found.append(one.step))
        saved.append(found)
        weights.append(torch.cat([parameter.detach().flatten() for parameter in one.model.parameters()]))
    assert saved == [[6], [3, 6]]  # 600 s after the start; a step later would be too late
    assert torch.equal(*weights)


@pytest.mark.parametrize("workers", [2, 4])
def test_workers_average_to_the_gradient_of_one(tiny: dict[str, Any], toy_images: Path, workers: int) -> None:
    """Masks, noise and crops belong to places in the global batch, so parts of it add up to the whole."""

    def gradient(rank: int, world: int) -> list[torch.Tensor]:
        one = trainer(tiny, toy_images, rank, world)
        batch = next(iter(one.batches.steps(0, 1)))
        images, params = normalise(batch.pixels), one.params
        drawn = masks.sample(params.seed, 0, batch.places, one.grid, params.masks)
        noise = draw_noise(params.stop, params.seed, 0, batch.places, drawn, 24, 16)
        one.model(images, drawn, noise, Targets(target_features(one.target, images), None)).backward()
        return [parameter.grad for parameter in one.model.parameters() if parameter.grad is not None]

    shares = [gradient(rank, workers) for rank in range(workers)]
    for whole, *parts in zip(gradient(0, 1), *shares, strict=True):
        torch.testing.assert_close(torch.stack(parts).mean(dim=0), whole, rtol=1e-4, atol=1e-7)


def test_workers_see_the_crops_that_one_would(tiny: dict[str, Any], toy_images: Path) -> None:
    tiny["augmentation"] |= {"grayscale": 0.5, "blur": 0.5}
    params, store = PretrainParams(**tiny), Store(toy_images, "train")
    whole = next(iter(Batches(params, store, 0, 1).steps(4, 5)))
    for workers in (2, 4):
        shares = [next(iter(Batches(params, store, rank, workers).steps(4, 5))) for rank in range(workers)]
        assert torch.equal(torch.cat([share.pixels for share in shares]), whole.pixels)
        assert torch.equal(torch.cat([share.places for share in shares]), whole.places)


def test_a_collapse_is_marked_or_stops_after_a_checkpoint(tiny: dict[str, Any], toy_images: Path) -> None:
    tiny["collapse"] |= {"effective_rank_floor": 15.99, "patience": 3}
    rows, due = list[Row](), list[int]()
    trainer(tiny, toy_images).train(lambda row, own: rows.append(row), unsaved)
    assert [row["collapsed"] for row in rows] == [0, 0, 1, 1, 1, 1]
    tiny["collapse"]["action"] = "fail"
    with pytest.raises(
        ValueError, match=r"features have collapsed: effective_rank is .* at step 3, below 15.99 for 3 logged"
    ):
        failing = trainer(tiny, toy_images)
        failing.train(unheard, lambda: due.append(failing.step))
    assert due == [2, 3]  # the last one is the collapse's own


def test_the_rows_say_what_happened(tiny: dict[str, Any], toy_images: Path) -> None:
    tiny["log_every"] = 4
    rows, due = [], []
    one = trainer(tiny, toy_images)
    weight = copy.deepcopy(one.model.predictor.embed.weight)
    one.train(lambda row, own: rows.append(row), lambda: due.append(one.step))
    assert [row["step"] for row in rows] == [1, 2, 4, 6]
    assert due == [2, 4, 6]
    assert rows[-1]["A_norm"] == pytest.approx(one.model.predictor.embed.weight.norm().item())
    assert rows[-1]["A_norm"] != pytest.approx(weight.norm().item())
    assert rows[-1]["noise_ratio"] == pytest.approx(0.25 * rows[-1]["A_norm"] / 8**0.5)  # ‖A‖·std/√P over rms(ψ) = 1/√2
    images = normalise(next(iter(one.batches.steps(5, 6))).pixels)
    assert effective_rank(target_features(one.target, images).mean(dim=1)) == pytest.approx(
        rows[-1]["effective_rank"], rel=0.05
    )


def test_a_loss_that_is_no_number_stops_with_what_is_known(tiny: dict[str, Any], toy_images: Path) -> None:
    one = trainer(tiny, toy_images)

    def poison(row: Row, own: Row) -> None:
        if row["step"] == 3:
            nn.init.constant_(one.model.predictor.head.bias, float("nan"))

    with pytest.raises(
        ValueError, match=r"loss is nan at step 4 \(lr 0\.\d+\); the last finite one logged was 0\.\d+ at step 3"
    ):
        one.train(poison, unsaved)


def test_target_std_is_that_of_all_targets_of_the_batch(tiny: dict[str, Any], toy_images: Path) -> None:
    one, rows = trainer(tiny, toy_images), list[Row]()
    seen = list[torch.Tensor]()
    forward = one.forward

    def overheard(batch: Any) -> Any:
        done = forward(batch)
        seen.append(done[3].full_BND)
        return done

    one.forward = overheard  # type: ignore[method-assign]
    one.train(lambda row, own: rows.append(row), unsaved)
    for row, targets in zip(rows, seen, strict=True):
        assert row["target_std"] == pytest.approx(
            targets.flatten(0, 1).std(dim=0, correction=0).mean().item(), rel=1e-4
        )
        assert 0 < row["mask_coverage"] <= 1 and row["context_length"] >= 4


GOLDEN = json.loads((Path(__file__).parents[1] / "goldens/schedules.json").read_text())


@pytest.mark.parametrize("recipe", GOLDEN)
def test_a_trainer_has_the_rates_of_the_reference(tiny: dict[str, Any], toy_images: Path, recipe: str) -> None:
    golden = GOLDEN[recipe]
    tiny["optimisation"] |= {
        "epochs": golden["epochs"], "warmup_epochs": float(golden["warmup_epochs"]), "ema": golden["ema"][0], "final_ema": 1.0,
    } | {name: golden[name] for name in ("start_lr", "lr", "final_lr", "weight_decay", "final_weight_decay")}  # fmt: skip
    one = trainer(tiny, toy_images)
    one.batches = SimpleNamespace(steps_per_epoch=golden["iterations_per_epoch"])  # type: ignore[assignment]
    one.steps = golden["epochs"] * golden["iterations_per_epoch"]

    def rates(step: int) -> tuple[float, ...]:
        one.step = step
        one.set_schedules()
        decayed, plain = one.adamw.param_groups
        assert decayed["lr"] == plain["lr"] == one.lr and plain["weight_decay"] == 0
        assert decayed["weight_decay"] == one.weight_decay
        return one.lr, one.weight_decay, one.momentum

    columns = zip(golden["iteration"], golden["lr_at"], golden["weight_decay_at"], golden["ema_at"], strict=True)
    for step, *expected in columns:
        assert rates(step) == pytest.approx(expected, rel=1e-9)
    held = float(golden["epochs"] // 2)
    one.params = PretrainParams(**(tiny | {"optimisation": tiny["optimisation"] | {"hold_after": held}}))
    at = round(held * golden["iterations_per_epoch"])
    free, last = rates(at - 1), rates(one.steps - 1)
    assert last[:2] == pytest.approx(rates(at)[:2], rel=1e-12) and last[0] < free[0]
    assert last[2] > free[2]  # the momentum goes on


def test_bf16_computes_layers_in_bf16_and_sums_in_fp32(tiny: dict[str, Any], toy_images: Path) -> None:
    losses = {}
    for precision in ("fp32", "bf16"):
        tiny["scale"]["precision"] = precision
        one, seen, streams = trainer(tiny, toy_images), set[torch.dtype](), set[torch.dtype]()
        for part in (one.model.encoder, one.target):
            assert part is not None
            layer = part.blocks[1]
            layer.register_forward_pre_hook(lambda _, inputs, streams=streams: streams.add(inputs[0].dtype))
            layer.attn.qkv.register_forward_hook(lambda _, __, output, seen=seen: seen.add(output.dtype))
        rows = list[Row]()
        one.train(lambda row, own, rows=rows: rows.append(row), unsaved)
        assert streams == {torch.float32}
        assert seen == {torch.float32 if precision == "fp32" else torch.bfloat16}
        assert all(parameter.dtype == torch.float32 for parameter in one.model.parameters())
        losses[precision] = [row["loss"] for row in rows]
    assert losses["bf16"] == pytest.approx(losses["fp32"], rel=2e-2) and losses["bf16"] != losses["fp32"]


def test_a_state_of_another_model_stops_the_stage(tiny: dict[str, Any], toy_images: Path) -> None:
    state = trainer(tiny, toy_images).state()
    tiny["encoder"]["layers"] = 3
    with pytest.raises(RuntimeError, match="Missing key.*blocks.2"):
        trainer(tiny, toy_images).restore(state)
