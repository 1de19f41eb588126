"""What one worker does: accumulates, leaves out or explains steps that are no number, names a way out of too little memory."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from components.images.store import Store
from components.pretrain import checkpoints, session
from components.pretrain.batches import Batches
from components.pretrain.contract import PretrainParams
from components.pretrain.loop import Row, Trainer
from components.pretrain.parallel import Alone
from components.pretrain.session import Job, smaller, work

CPU = torch.device("cpu")


def job(values: dict[str, Any], toy: Path, folder: Path) -> Job:
    found = checkpoints.newest(folder)
    return Job(PretrainParams(**values), toy, Path(values["init"]["path"]), toy, folder, found)


def poisoned(monkeypatch: pytest.MonkeyPatch, bad: dict[int, list[int]], what: float = float("nan")) -> None:
    """In these steps, the images at these places in the batch make the loss no number."""
    forward = Trainer.forward

    def spoilt(self: Trainer, batch: Any) -> Any:
        loss, *rest = forward(self, batch)
        if set(bad.get(self.step + 1, [])) & set(batch.places.tolist()):
            loss = loss * what
        return loss, *rest

    monkeypatch.setattr(Trainer, "forward", spoilt)


def test_a_loss_that_is_no_number_ends_with_images_and_a_dump(
    tiny: dict[str, Any], toy_images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    poisoned(monkeypatch, {4: [3, 9]})
    with pytest.raises(ValueError) as told:  # noqa: PT011 - its text is looked at below
        work(job(tiny, toy_images, tmp_path), Alone(CPU), lambda row, own: None, lambda: False)
    params, store = PretrainParams(**tiny), Store(toy_images, "train")
    images = Batches(params, store, 0, 1).images(3)
    paths = [str(store.column("path")[index]) for index in images[[3, 9], 1]]
    assert re.match(
        r"loss is nan at step 4 \(lr 0\.\d+\); the last finite one logged was 0\.\d+ at step 3\. Alone, .* give no number either\. "
        r"Lower optimisation\.lr, or set optimisation\.clip_norm\. Its batch and losses are in ",
        str(told.value),
    )
    assert f"Alone, {paths[0]}, {paths[1]} give" in str(told.value)
    dump = load_file(str(told.value).rpartition(" are in ")[2])
    assert (~dump["losses"].isfinite()).nonzero().flatten().tolist() == [3, 9]
    assert torch.equal(dump["images"], torch.from_numpy(images))
    assert torch.equal(dump["pixels"], Batches(params, store, 0, 1).batch(3).pixels)
    found = checkpoints.newest(tmp_path)  # the checkpoint before is whole
    assert found is not None and checkpoints.step_of(found) == 2


def test_steps_within_the_budget_change_nothing_and_are_counted(
    tiny: dict[str, Any],
    toy_images: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    poisoned(monkeypatch, {3: [0], 5: [1]})
    tiny["optimisation"]["skip_budget"] = 1
    rows = list[Row]()
    with pytest.raises(ValueError, match=r"loss is nan at step 5 .*, after 1 that were left out; "):
        work(job(tiny, toy_images, tmp_path / "one"), Alone(CPU), lambda row, own: rows.append(row), lambda: False)
    assert [(row["step"], row["skipped"]) for row in rows] == [(1, 0), (2, 0), (4, 1)]  # nothing to show of the third
    tiny["optimisation"]["skip_budget"] = 2
    assert work(job(tiny, toy_images, tmp_path / "two"), Alone(CPU), lambda row, own: None, lambda: False)
    found = checkpoints.newest(tmp_path / "two")
    assert found and checkpoints.step_of(found) == 6
    state = checkpoints.load(found)
    assert state["skipped"] == 2 and all("loss" in row for row in state["history"])


def test_a_step_that_is_left_out_moves_no_weight(
    tiny: dict[str, Any], toy_images: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    poisoned(monkeypatch, {1: [0]})
    tiny["optimisation"]["skip_budget"] = 1
    params = PretrainParams(**tiny)
    one = Trainer(params, Batches(params, Store(toy_images, "train"), 0, 1), Alone(CPU), Path("scratch"))
    before = [tensor.clone() for part in (one.model, one.target) for tensor in part.state_dict().values()]
    one.set_schedules()
    assert one.update(one.batches.batch(0), measure=False).left_out and one.skipped == 1
    after = [tensor for part in (one.model, one.target) for tensor in part.state_dict().values()]
    assert all(map(torch.equal, before, after)) and not one.adamw.state


def test_a_gradient_that_is_no_number_counts_as_well(
    tiny: dict[str, Any], toy_images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Under a loss that is one: a step of it would make every weight nan, and the checkpoint after it worthless."""

    class Spoil(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, loss: torch.Tensor) -> torch.Tensor:
            return loss.clone()

        @staticmethod
        def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
            return gradient * float("nan")

    forward = Trainer.forward

    def spoilt(self: Trainer, batch: Any) -> Any:
        loss, *rest = forward(self, batch)
        return (Spoil.apply(loss) if self.step == 2 else loss), *rest

    monkeypatch.setattr(Trainer, "forward", spoilt)
    with pytest.raises(ValueError, match=r"gradient norm is nan at step 3 .* Its images \(here\): .* and 11 more\."):
        work(job(tiny, toy_images, tmp_path), Alone(CPU), lambda row, own: None, lambda: False)


@pytest.mark.parametrize("at_once", [1, 5, 8])
@pytest.mark.parametrize("objective", ["ijepa", "mae"])
def test_a_batch_in_parts_gives_the_gradient_and_the_curves_of_the_whole(
    tiny: dict[str, Any], toy_images: Path, at_once: int, objective: str
) -> None:
    if objective == "mae":
        tiny["objective"] |= {"name": "mae", "loss": "l2"}
        tiny["masks"] |= {"sampler": "random"}
    gradients, rows = list[list[torch.Tensor]](), list[Row]()
    for images in (0, at_once):
        tiny["scale"]["images_at_once"] = images
        params = PretrainParams(**tiny)
        one = Trainer(params, Batches(params, Store(toy_images, "train"), 0, 1), Alone(CPU), Path("scratch"))
        one.set_schedules()
        done = one.update(one.batches.batch(0), measure=True)
        rows.append(one._row(done))
        gradients.append([parameter.grad for parameter in one.model.parameters() if parameter.grad is not None])
    for whole, parts in zip(*gradients, strict=True):
        torch.testing.assert_close(parts, whole, rtol=1e-4, atol=1e-7)
    assert rows[1] == pytest.approx(rows[0], rel=1e-4, abs=1e-6)


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB.\nmore"),
        RuntimeError(
            "[enforce fail at alloc_cpu.cpp:117] DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes."
        ),
        MemoryError(),
    ],
)
def test_too_little_memory_names_the_ways_out(
    tiny: dict[str, Any], toy_images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def full(self: Trainer, batch: Any) -> None:
        raise error

    monkeypatch.setattr(Trainer, "forward", full)
    with pytest.raises(
        ValueError,
        match=r"out of memory with 16 images at once of a worker's 16 \(optimisation.global_batch_size 16, scale.workers 1, 1 passes a "
        r"step, activation_checkpointing false\): set scale.images_at_once to 8, which changes no result or "
        r"set scale.activation_checkpointing to true; `make preflight`",
    ):
        work(job(tiny, toy_images, tmp_path), Alone(CPU), lambda row, own: None, lambda: False)


def test_real_memory_that_runs_out_is_told_so(tiny: dict[str, Any], toy_images: Path, tmp_path: Path) -> None:
    """torch's own refusal of an allocation that no machine has room for."""
    with pytest.raises((MemoryError, RuntimeError)) as refused:
        torch.empty(2**60, dtype=torch.uint8)
    assert session._out_of_memory(refused.value)
    assert not session._out_of_memory(RuntimeError("mat1 and mat2 shapes cannot be multiplied"))


def test_another_error_of_torch_stays_what_it_is(
    tiny: dict[str, Any], toy_images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(self: Trainer, batch: Any) -> None:
        nn.Linear(2, 2)(torch.ones(1, 3))

    monkeypatch.setattr(Trainer, "forward", broken)
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        work(job(tiny, toy_images, tmp_path), Alone(CPU), lambda row, own: None, lambda: False)


def test_ways_out_that_change_results_or_are_none_are_not_named_as_such(tiny: dict[str, Any]) -> None:
    """Masks of the released sampler depend on the passes; and a pass of one image cannot be halved."""
    tiny["masks"] |= {"sampler": "legacy", "min_context": 1, "target_scale_min": 0.5, "target_scale_max": 0.5}
    assert "set scale.images_at_once to 8 or set scale.activation_checkpointing" in smaller(PretrainParams(**tiny), "")
    tiny["scale"] |= {"images_at_once": 1, "activation_checkpointing": True}
    told = smaller(PretrainParams(**tiny), "")
    assert "images_at_once to" not in told and "): give each worker a machine with more memory; " in told


def test_a_state_of_another_model_stops_and_is_no_lost_worker(
    tiny: dict[str, Any], toy_images: Path, tmp_path: Path
) -> None:
    tiny["optimisation"]["epochs"] = 1
    assert work(job(tiny, toy_images, tmp_path), Alone(CPU), lambda row, own: None, lambda: False)
    tiny["predictor"]["width"] = 8
    with pytest.raises(
        ValueError, match=f"step-00000003 does not fit this model: predictor.*remove {tmp_path} to begin at"
    ):
        work(job(tiny, toy_images, tmp_path), Alone(CPU), lambda row, own: None, lambda: False)
