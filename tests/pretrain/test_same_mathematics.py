"""However a batch is shared among workers and passes, it is the same training: real processes over gloo, 21 steps of 32 images.

What is drawn must be equal to the last bit. Sums come in another order, so losses and weights may differ, at most ten times as much as
those of one worker do that takes each batch from its end to its start, which is equal in exact arithmetic. This measure is taken of
every tensor for itself, because some are all rounding: keys' biases have no gradient in exact arithmetic, and Adam makes steps of full
size of what is left.
"""

import copy
import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from . import ranks

WORKER = Path(__file__).with_name("recorded_worker.py")
STEPS, IMAGES = 21, 32
FACTOR = 10.0
ROUNDING = torch.finfo(torch.float32).eps
"""Nothing need be nearer: a tensor of few numbers can come out of both orders with the same bits."""
Jobs = dict[int, dict[str, dict[str, Any]]]
"""By the number of workers and a name: what is not as usual."""
ALONE: dict[str, dict[str, Any]] = {"one": {}, "backwards": {"backwards": True}}
FEW: Jobs = {
    1: ALONE | {"5 at once": {"scale": {"images_at_once": 5}}},
    2: {
        "ddp": {"kind": "ddp"},
        "fsdp, 5 at once, checkpointing": {
            "kind": "fsdp",
            "scale": {"images_at_once": 5, "activation_checkpointing": True},
        },
    },
}
MORE: Jobs = {
    1: ALONE | {"4 × 8": {"scale": {"images_at_once": 8}}},
    2: {
        "ddp, 5 at once": {"kind": "ddp", "scale": {"images_at_once": 5}},
        "fsdp": {"kind": "fsdp"},
        "fsdp, resumed": {"kind": "fsdp", "stop": 7},
    },
}

Found = dict[str, Any]


def jobs(
    values: dict[str, Any], dataset: Path, chosen: dict[str, dict[str, Any]], workers: int
) -> list[dict[str, Any]]:
    made = []
    for name, changes in chosen.items():
        params = copy.deepcopy(values)
        params["scale"] |= {"workers": workers} | changes.get("scale", {})
        kind = changes.get("kind", "alone")
        params["scale"]["sharding"] = "fsdp" if kind == "fsdp" else "ddp"
        more = {"kind": kind, "backwards": changes.get("backwards", False), "stop": changes.get("stop", 0)}
        made.append({"name": name, "params": params, "dataset": str(dataset), **more})
    return made


@pytest.fixture(scope="module", params=[FEW, pytest.param(MORE, marks=pytest.mark.faults)], ids=["few", "more"])
def found(
    request: pytest.FixtureRequest,
    toy_images: Path,
    tmp_path_factory: pytest.TempPathFactory,
    tiny_values: dict[str, Any],
) -> dict[str, Found]:
    """What each way left: `drawn` by name and step, `losses`, `norms` and the `tensors` of the last state."""
    values = copy.deepcopy(tiny_values)
    values["optimisation"] |= {"global_batch_size": IMAGES, "epochs": 14, "warmup_epochs": 2.0, "clip_norm": 0.5}
    values["augmentation"] |= {"grayscale": 0.3, "blur": 0.3}
    folder, commands = tmp_path_factory.mktemp("same"), dict[str, list[str]]()
    for workers, chosen in request.param.items():
        file = folder / f"{workers}.json"
        file.write_text(json.dumps(jobs(values, toy_images, chosen, workers)))
        for rank in range(workers):
            meeting = str(folder / "meeting")
            commands[f"{workers}-{rank}"] = [sys.executable, str(WORKER), str(rank), str(workers), meeting, str(file)]
    ranks.run(commands, folder)
    read = {}
    for workers, chosen in request.param.items():
        for name in chosen:
            parts = [torch.load(folder / f"{name}-{rank}.pt", weights_only=True) for rank in range(workers)]
            read[name] = parts[0] | {"drawn": joined([part["drawn"] for part in parts])}
    return read


def joined(workers: list[dict[tuple[str, int], tuple[list[int], torch.Tensor]]]) -> dict[tuple[str, int], torch.Tensor]:
    """What was drawn in a step, for every place of the global batch; each is one worker's."""
    found = {}
    for key in workers[0]:
        places = [place for worker in workers for place in worker[key][0]]
        assert places == list(range(IMAGES))
        found[key] = torch.cat([worker[key][1] for worker in workers])
    return found


def distance(a: torch.Tensor, b: torch.Tensor) -> float:
    """Relative to `b`, by the 2-norm."""
    return ((a.double() - b.double()).norm() / b.double().norm().clamp_min(1e-30)).item()


def test_crops_masks_and_noise_are_equal_bit_by_bit(found: dict[str, Found]) -> None:
    expected = found["one"]["drawn"]
    assert len(expected) == STEPS * (1 + 1 + 2 * 2)  # crop, context, and two blocks with their noise
    for name in found.keys() - {"backwards"}:
        drawn = found[name]["drawn"]
        assert drawn.keys() == expected.keys()
        for key, tensor in expected.items():
            assert torch.equal(drawn[key], tensor), (name, key)


def test_losses_and_weights_are_equal_to_rounding(found: dict[str, Found]) -> None:
    one, allowed = found["one"], found["backwards"]
    assert len(one["losses"]) == STEPS and one["losses"][-1] != pytest.approx(one["losses"][0], rel=0.05)  # it learns
    for name in found.keys() - {"one", "backwards"}:
        other = found[name]
        assert other["losses"] == pytest.approx(one["losses"], rel=1e-5), name
        assert other["norms"] == pytest.approx(one["norms"], rel=1e-4), name
        assert other["tensors"].keys() == one["tensors"].keys()
        for key, tensor in one["tensors"].items():
            theirs = other["tensors"][key]
            assert theirs.shape == tensor.shape and theirs.dtype == tensor.dtype
            near = max(FACTOR * distance(allowed["tensors"][key], tensor), ROUNDING)
            assert distance(theirs, tensor) <= near, (name, key)


def test_the_allowance_is_tight(found: dict[str, Found]) -> None:
    one, other = found["one"]["tensors"], found["backwards"]["tensors"]
    model = [key for key in one if key.startswith(("model", "target")) and "qkv.bias" not in key]
    drift = sorted(distance(other[key], one[key]) for key in model)
    assert 0 < drift[len(drift) // 2] < 1e-6 and drift[-1] < 1e-4


@pytest.mark.faults
@pytest.mark.parametrize("found", [MORE], ids=["more"], indirect=True)
def test_shards_after_a_restart_are_equal_bit_by_bit(found: dict[str, Found]) -> None:
    whole, resumed = found["fsdp"], found["fsdp, resumed"]
    assert resumed["losses"] == whole["losses"]
    for key, tensor in whole["tensors"].items():
        assert torch.equal(resumed["tensors"][key], tensor), key
