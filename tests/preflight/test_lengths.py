"""Mean lengths are those of the samplers: over 300 steps, within what such a mean can be off by."""

from pathlib import Path

import pytest
import torch

from components.mim import masks
from components.mim.grid import patch_grid
from components.preflight.lengths import lengths
from components.pretrain.contract import PretrainParams
from components.stage import read_yaml


def sampled(params: PretrainParams, steps: int, images: int) -> tuple[float, float]:
    """Mean K and T of the real sampler."""
    grid, places = patch_grid(params.encoder.image_size, params.encoder.patch_size), torch.arange(images)
    context = target = 0.0
    for step in range(steps):
        drawn = masks.sample(7, step, places, grid, params.masks)
        context += drawn.context_BK.shape[1] / steps
        target += sum(block.shape[1] for block in drawn.targets) / len(drawn.targets) / steps
    return context, target


@pytest.mark.parametrize("preset", ["vit_b16", "vit_h14", "mae_vit_b16", "cifar10"])
def test_the_recipes_lengths(repository: Path, preset: str) -> None:
    params = PretrainParams.model_validate(read_yaml(repository / f"params/presets/{preset}.yaml")["pretrain"])
    context, target = sampled(params, 300, 1)
    found = lengths(params)
    assert found.context == pytest.approx(context, rel=0.03)
    assert found.target == pytest.approx(target, rel=0.03)


def test_the_legacy_context_shrinks_with_a_workers_batch(repository: Path) -> None:
    values = read_yaml(repository / "params/presets/vit_b16.yaml")["pretrain"]
    values["masks"]["sampler"] = "legacy"
    found = {}
    for workers in (32, 128):
        values["scale"]["workers"] = workers
        params = PretrainParams.model_validate(values)
        found[workers] = lengths(params).context
        assert found[workers] == pytest.approx(sampled(params, 60, 2048 // workers)[0], rel=0.08)
    assert found[32] < found[128]


def test_passes_of_the_predictor(repository: Path) -> None:
    params = PretrainParams.model_validate(read_yaml(repository / "params/pretrain.yaml"))
    tokens = lengths(params)._replace(prefix=1, context=10, blocks=3, target=4)
    assert tokens.passes(joint=False) == [(15, 4)] * 3
    assert tokens.passes(joint=True) == [(23, 12)]
