"""`scale.compile`: the same numbers and names, the compiler at work in the first steps only, and one clear error where it cannot."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._dynamo.utils import counters

from components.mim import encoder, masks, objectives
from components.mim.grid import patch_grid
from components.mim.model import optimizer, target_encoder, update_target
from components.mim.positions import draw_noise
from components.mim.timm_encoder import timm_config, untrained
from components.pretrain.building import build
from components.pretrain.contract import PretrainParams

STEPS = 12


@pytest.fixture
def traced(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """torch.compile traces and guards as always, but runs what it traced without making code, which takes minutes here."""
    monkeypatch.setattr(encoder, "compile_each", partial(encoder.compile_each, backend="eager"))
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.fixture
def wide(tiny: dict[str, Any]) -> dict[str, Any]:
    """A grid large enough for contexts of many lengths, and layers enough to share code."""
    tiny["encoder"] |= {"image_size": 64, "layers": 3}
    tiny["predictor"] |= {"layers": 3}
    tiny["masks"] |= {"target_blocks": 3, "target_scale_min": 0.05, "context_scale_min": 0.5}
    return tiny


def losses(values: dict[str, Any], compiled: bool) -> tuple[list[float], list[int], list[int]]:
    """Of the first steps: the loss, the context's length, and how many graphs had been compiled by then."""
    values["scale"]["compile"] = compiled
    params = PretrainParams.model_validate(values)
    model = build(params, Path("scratch")).model
    target, adamw = target_encoder(model.encoder), optimizer(model, 1e-3, 0.1)
    grid, places, found = patch_grid(64, 4), torch.arange(8), ([], [], [])
    counters.clear()
    for step in range(STEPS):
        images = torch.randn(8, 3, 64, 64, generator=torch.Generator().manual_seed(step))
        drawn = masks.sample(0, step, places, grid, params.masks)
        wanted = objectives.targets(params.objective, target, images, 4)
        loss = model(images, drawn, draw_noise(params.stop, 0, step, places, drawn, 24, 16), wanted)
        adamw.zero_grad()
        loss.backward()
        adamw.step()
        update_target(target, model.encoder, 0.9)
        counts = loss.item(), drawn.context_BK.shape[1], counters["stats"]["unique_graphs"]
        for one, value in zip(found, counts, strict=True):
            one.append(value)
    assert not counters["graph_break"]
    return found


def check(values: dict[str, Any]) -> None:
    plain, lengths, none = losses(values, compiled=False)
    fast, _, graphs = losses(values, compiled=True)
    assert fast == pytest.approx(plain, rel=1e-5)
    assert none[-1] == 0 and len(set(lengths)) > STEPS // 2
    # Layers of the target encoder, the encoder, the predictor, and its last: each once, and again where the sizes of the first step
    # were equal by chance or an index too large for 32 bits.
    assert 4 <= graphs[-1] <= 8


def test_a_dozen_lengths_of_context_are_compiled_once(wide: dict[str, Any], traced: None) -> None:
    wide["scale"]["activation_checkpointing"] = True
    check(wide)


@pytest.mark.faults
@pytest.mark.parametrize("checkpointing", [False, True])
def test_compiled_by_inductor_it_learns_the_same(wide: dict[str, Any], checkpointing: bool) -> None:
    torch._dynamo.reset()
    wide["scale"]["activation_checkpointing"] = checkpointing
    check(wide)


def test_weights_keep_their_names_and_the_target_encoder_is_compiled_for_itself(
    tiny: dict[str, Any], traced: None
) -> None:
    plain = build(PretrainParams.model_validate(tiny), Path("scratch")).model
    tiny["scale"]["compile"] = True
    model = build(PretrainParams.model_validate(tiny), Path("scratch")).model
    assert list(model.state_dict()) == list(plain.state_dict())
    target = target_encoder(model.encoder)
    for part in (model.encoder, model.predictor, target):
        assert all(layer._compiled_call_impl is not None for layer in part.layer_modules())
    assert all(layer._compiled_call_impl is None for layer in target_encoder(plain.encoder).layer_modules())
    images = torch.randn(2, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    before = target(images)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    assert torch.equal(target(images), before)  # it runs its own weights


def test_without_a_compiler_nothing_starts(tiny: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "/nowhere/g++")
    tiny["scale"]["compile"] = True
    with pytest.raises(ValueError, match=r"scale\.compile is true and this machine has no /nowhere/g\+\+.* set scale"):
        build(PretrainParams.model_validate(tiny), Path("scratch"))


def test_beit_is_refused() -> None:
    beit = untrained(timm_config("beit_base_patch16_224", {"embed_dim": 24, "depth": 1, "num_heads": 2}), 0)
    with pytest.raises(ValueError, match="the layers of this encoder are not called as modules"):
        beit.compile_layers()
