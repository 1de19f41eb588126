"""What the preflight counts is what torch counts of the real model: parameters, FLOPs and saved bytes, to the last or nearly."""

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from components.mim import masks, objectives
from components.mim.grid import patch_grid
from components.mim.model import MaskedImageModel, optimizer, target_encoder
from components.mim.positions import draw_noise
from components.preflight.dataset import Dataset
from components.preflight.flops import flops
from components.preflight.lengths import Lengths, lengths
from components.preflight.memory import activations, disk, memory
from components.preflight.parameters import parameters
from components.pretrain.building import build
from components.pretrain.contract import PretrainParams
from components.stage import read_yaml

BATCH = 8
WIDE = {"image_size": 64, "patch_size": 8, "width": 64, "layers": 3, "heads": 4}
CHANGES: dict[str, dict[str, dict[str, Any]]] = {
    "as committed": {},
    "a larger grid": {"encoder": WIDE},
    "one joint pass": {"predictor": {"passes": "joint"}, "encoder": WIDE},
    "no noise": {"stop": {"noise_std": 0.0}},
    "noise on both": {"stop": {"apply_to": "both"}, "encoder": WIDE},
    "noise on the context, joint": {"stop": {"apply_to": "context"}, "predictor": {"passes": "joint"}},
    "untied, two scales": {"stop": {"covariance": "untied"}, "objective": {"low_resolution": "bilinear"}},
    "fixed, released tokens": {
        "stop": {"covariance": "fixed"},
        "masks": {"sampler": "legacy", "min_context": 4},
        "encoder": WIDE,
    },
    "bias on noise": {"stop": {"mask_token": False, "bias_on_noise": True}},
    "learned positions": {
        "encoder": {"positions": "learned", "class_token": True},
        "predictor": {"positions": "learned"},
    },
    "data2vec": {"objective": {"name": "data2vec", "target_layers": 2}},
    "mae": {
        "objective": {"name": "mae", "loss": "l2"},
        "masks": {"sampler": "random"},
        "encoder": {"class_token": True},
    },
    "checkpointing": {"scale": {"activation_checkpointing": True}, "encoder": WIDE},
    "bf16": {"scale": {"precision": "bf16"}, "encoder": WIDE},
}


def changed(repository: Path, changes: dict[str, dict[str, Any]]) -> PretrainParams:
    values = read_yaml(repository / "params/pretrain.yaml")
    for section, chosen in changes.items():
        values[section] |= chosen
    return PretrainParams.model_validate(values)


class OneStep:
    """A forward pass of the real model on one draw of masks, whose lengths the cost model is told."""

    def __init__(self, params: PretrainParams) -> None:
        self.params = params
        self.model: MaskedImageModel = build(params, Path("scratch")).model
        self.target = None if params.objective.name == "mae" else target_encoder(self.model.encoder)
        places, grid = torch.arange(BATCH), patch_grid(params.encoder.image_size, params.encoder.patch_size)
        self.masks = masks.sample(0, 3, places, grid, params.masks)
        widths = params.encoder.width, params.predictor.width
        self.noise = draw_noise(params.stop, 0, 3, places, self.masks, *widths)
        side = params.encoder.image_size
        self.images = torch.randn(BATCH, 3, side, side, generator=torch.Generator().manual_seed(0))
        lengths_here = [target.shape[1] for target in self.masks.targets]
        self.tokens = lengths(params)._replace(
            context=self.masks.context_BK.shape[1], target=sum(lengths_here) / len(lengths_here)
        )

    def loss(self) -> torch.Tensor:
        bf16 = self.params.scale.precision == "bf16"
        with torch.autocast("cpu", torch.bfloat16) if bf16 else nullcontext():
            wanted = objectives.targets(self.params.objective, self.target, self.images, self.params.encoder.patch_size)
            loss: torch.Tensor = self.model(self.images, self.masks, self.noise, wanted)
        return loss

    def saved(self) -> int:
        """Bytes of the distinct storages that autograd saved, without the parameters' own."""
        weights = {parameter.untyped_storage().data_ptr() for parameter in self.model.parameters()}
        found: dict[int, int] = {}
        kept = []  # so that no address is used twice

        def pack(tensor: torch.Tensor) -> torch.Tensor:
            storage = tensor.untyped_storage()
            if storage.data_ptr() not in weights:
                found[storage.data_ptr()] = storage.nbytes()
            kept.append(tensor)
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            self.loss()
        return sum(found.values())


@pytest.mark.parametrize("name", CHANGES)
def test_parameters_are_those_of_the_model_and_its_files(repository: Path, name: str) -> None:
    params = changed(repository, CHANGES[name])
    one, size = OneStep(params), parameters(params)
    model = one.model

    def count(module: Any) -> int:
        return sum(parameter.numel() for parameter in module.parameters())

    assert (size.encoder, size.predictor) == (count(model.encoder), count(model.predictor))
    assert size.target == (count(one.target) if one.target else 0)
    assert size.tensors == len(list(model.parameters()))
    held = memory(params, size, lengths(params), BATCH)
    assert held.parameters == held.gradients == 4 * count(model)
    assert held.target == 4 * size.target
    adamw = optimizer(model, 1e-3, 0.1)
    one.loss().backward()
    adamw.step()
    moments = [value for state in adamw.state.values() for value in state.values()]
    assert held.optimiser == sum(value.numel() * value.element_size() for value in moments)
    saved = [*model.state_dict().values(), *(one.target.state_dict().values() if one.target else ()), *moments]
    assert disk(params, size, Dataset(None, None, "")).checkpoint == sum(
        value.numel() * value.element_size() for value in saved
    )


@pytest.mark.parametrize("name", CHANGES)
def test_flops_are_those_that_torch_counts(repository: Path, name: str) -> None:
    params = changed(repository, CHANGES[name])
    one = OneStep(params)
    expected = flops(params, one.tokens)
    with (
        sdpa_kernel(SDPBackend.MATH),
        FlopCounterMode(display=False) as counter,
    ):  # the counter knows no attention of a CPU
        loss = one.loss()
        forward = counter.get_total_flops()
        loss.backward()
    assert forward / BATCH == pytest.approx(expected.forward, rel=1e-3)  # blocks of unequal size count by their mean
    assert counter.get_total_flops() / BATCH == pytest.approx(expected.executed, rel=1e-3)


@pytest.mark.parametrize("name", CHANGES)
def test_activations_are_what_autograd_saves(repository: Path, name: str) -> None:
    params = changed(repository, CHANGES[name])
    one = OneStep(params)
    casts = memory(params, parameters(params), one.tokens, BATCH).casts  # in bf16, weights are saved in their cast form
    assert one.saved() == pytest.approx(BATCH * activations(params, one.tokens) + casts, rel=0.01)


def test_by_hand_for_vit_b16(repository: Path) -> None:
    values = read_yaml(repository / "params/presets/vit_b16.yaml")["pretrain"]
    values["stop"] |= {"mask_token": True, "bias_on_noise": False}
    params = PretrainParams.model_validate(values)
    size = parameters(params)
    # timm's vit_base_patch16_224 has 86,567,656; its classifier, class token and 197 positions are not ours
    assert size.encoder == 86_567_656 - (768 * 1000 + 1000) - 768 - 197 * 768
    # A and b, m̃, six layers of 12·384² + 13·384, the norm, the head
    assert size.predictor == (768 * 384 + 384) + 384 + 6 * (12 * 384**2 + 13 * 384) + 2 * 384 + (384 * 768 + 768)
    assert size.projection == 295_296
    tokens = Lengths(patches=196, prefix=0, context=60, blocks=4, target=35)
    count = flops(params, tokens)
    patches = 2 * 196 * 768 * 768
    assert count.target == patches + 12 * (24 * 196 * 768**2 + 4 * 196**2 * 768)  # 34.9 GFLOP, 17.5 GMAC
    assert count.encoder_forward == patches + 12 * (24 * 60 * 768**2 + 4 * 60**2 * 768)
    assert count.encoder_backward == 2 * count.encoder_forward - patches  # nobody asks for the pixels' gradient
    whole = 24 * 95 * 384**2 + 4 * 95**2 * 384
    last = 20 * 35 * 384**2 + 4 * 95 * 384**2 + 4 * 35 * 95 * 384
    a, noise, head = 2 * 60 * 768 * 384, 4 * 2 * 35 * 768 * 384, 4 * 2 * 35 * 384 * 768
    assert count.predictor_forward == 4 * (5 * whole + last) + a + noise + head
    assert count.predictor_backward == 2 * count.predictor_forward - noise
    held = memory(params, size, tokens, 64)
    trained = size.encoder + size.predictor
    assert held.optimiser == 8 * trained + 4 * size.tensors
    assert held.parameters + held.gradients + held.target == 8 * trained + 4 * size.encoder
