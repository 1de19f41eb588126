"""Shards of three workers, some of them empty, over every kind of encoder, and compiled: the numbers of one worker, states that fit it.

This file is each worker's program as well: `python test_sharding.py RANK WORLD MEETING`.
"""

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, distributed, nn
from torch._dynamo.utils import counters

from components.mim import diagnostics, objectives
from components.mim.blocks import Masks
from components.mim.encoder import Encoder, EncoderConfig, VisionEncoder, compile_each
from components.mim.model import MaskedImageModel, optimizer, target_encoder, update_target
from components.mim.predictor import Predictor, PredictorConfig
from components.mim.timm_encoder import timm_config, untrained
from components.pretrain.parallel import Alone, Replicated, Weights
from components.pretrain.sharding import Sharded

CPU = torch.device("cpu")
WORLD, BATCH, STEPS = 3, 6, 3
SMALL = {"img_size": 32, "patch_size": 8, "embed_dim": 24, "depth": 2, "num_heads": 2}
TIMM = ("vit_base_patch16_224", "vit_small_patch14_dinov2", "beit_base_patch16_224")


class Stop:
    noise_std, covariance, apply_to = 0.25, "learned", "masked"


class Run:
    """A model, its target encoder and optimiser, and what they did in some steps."""

    def __init__(self, kind: str, parallel: Alone, load: Weights | None = None) -> None:
        config = PredictorConfig(
            encoder_width=24, output_width=24, width=16, layers=2, heads=2, mask_token=True, bias_on_noise=False,
            positions="learned", grid_side=4,
        )  # fmt: skip
        self.parallel, draws = parallel, torch.Generator().manual_seed(1)
        self.model = MaskedImageModel(encoder(kind), Predictor(config))
        for parameter in self.model.parameters():
            nn.init.normal_(parameter, std=0.05, generator=draws)
        self.target = target_encoder(self.model.encoder)
        self.wrapped = parallel.distribute(self.model, self.target)
        self.adamw = optimizer(self.model, 1e-3, 0.1)
        self.losses, self.norms, self.curves = list[float](), list[float](), list[dict[str, float]]()
        if load:
            parallel.load(self.model, self.target, self.adamw, load)

    def train(self, start: int, stop: int) -> "Run":
        for step in range(start, stop):
            self.step(step)
        return self

    def step(self, step: int) -> None:
        share = BATCH // self.parallel.world
        images, drawn = batch(step, slice(self.parallel.rank * share, (self.parallel.rank + 1) * share))
        wanted = objectives.Targets(objectives.averaged_features(self.target, images, 2), None)
        loss = self.wrapped(images, drawn, None, wanted)
        self.adamw.zero_grad()
        loss.backward()
        gradients = [parameter.grad for parameter in self.model.parameters() if parameter.grad is not None]
        norm = self.parallel.gradient_norm(gradients)
        nn.utils.clip_grads_with_norm_(self.model.parameters(), 0.5 * norm.item(), norm)
        self.adamw.step()
        update_target(self.target, self.model.encoder, 0.9)
        self.losses.append(self.parallel.gather(loss.detach()[None]).mean().item())
        self.norms.append(norm.item())
        self.curves.append(diagnostics.norms(self.model.predictor, Stop(), (4, 4)))

    def weights(self) -> Weights:
        return self.parallel.weights(self.model, self.target, self.adamw)


def encoder(kind: str) -> VisionEncoder:
    if kind in TIMM:
        return untrained(timm_config(kind, SMALL), 0)
    shape = {"image_size": 32, "patch_size": 8, "width": 24, "layers": 2, "heads": 2}
    return Encoder(EncoderConfig(**shape, class_token=True, positions="learned"))


def batch(step: int, share: slice) -> tuple[Tensor, Masks]:
    draws = torch.Generator().manual_seed(step)
    images = torch.randn(BATCH, 3, 32, 32, generator=draws)
    order = torch.stack([torch.randperm(16, generator=draws) for _ in range(BATCH)])[share]
    return images[share], Masks(order[:, :6], [order[:, 6:10], order[:, 10:13]])


def compiled(kind: type[Alone]) -> Alone:
    """Of `kind`, with each layer traced before it is distributed, as `building` does, and run without making code."""

    class Compiled(kind):  # type: ignore[valid-type, misc]
        def distribute(self, model: MaskedImageModel, target: VisionEncoder | None) -> nn.Module:
            assert target is not None
            for part in (model.encoder, model.predictor, target):
                compile_each(part.layer_modules(), backend="eager")
            return super().distribute(model, target)

    return Compiled(CPU)


def flat(weights: Weights) -> dict[str, Tensor]:
    moments = {f"{i}/{name}": t for i, one in weights.optimizer["state"].items() for name, t in one.items()}
    assert weights.target is not None
    return {**weights.model, **{f"target {name}": t for name, t in weights.target.items()}, **moments}


def compare(kind: str, rank: int) -> None:
    one, parts = Run(kind, Alone(CPU)).train(0, STEPS), Run(kind, Sharded(CPU)).train(0, STEPS)
    assert parts.losses == pytest.approx(one.losses, rel=1e-5)
    assert parts.norms == pytest.approx(one.norms, rel=1e-5)
    for ours, theirs in zip(parts.curves, one.curves, strict=True):
        assert ours == pytest.approx(theirs, rel=1e-4)
    assert torch.allclose(diagnostics.spectrum(parts.model.predictor), diagnostics.spectrum(one.model.predictor))
    half: list[Any] = [Run(kind, Sharded(CPU)).train(0, 1).weights()]
    distributed.broadcast_object_list(half)  # only rank 0 has it whole
    resumed, whole = Run(kind, Sharded(CPU), half[0]).train(1, STEPS).weights(), parts.weights()
    if rank == 0:
        plain = one.weights()
        assert whole.optimizer["param_groups"] == plain.optimizer["param_groups"]
        for name, tensor in flat(plain).items():
            assert flat(whole)[name].shape == tensor.shape, name
            assert torch.equal(flat(resumed)[name], flat(whole)[name]), name
        Alone(CPU).load(one.model, one.target, one.adamw, whole)  # the very form of one worker
    else:
        assert all(tensor.numel() == 0 for tensor in flat(whole).values())
    name = next(iter(half[0].model))
    for wrong, told in ((half[0].model[name][:-1], "size mismatch"), (None, "Missing key")):
        model = {key: tensor for key, tensor in half[0].model.items() if key != name}
        model |= {} if wrong is None else {name: wrong}
        with pytest.raises(RuntimeError, match=told):
            Run(kind, Sharded(CPU), half[0]._replace(model=model))


@pytest.mark.faults
def test_three_workers_with_shards_are_one_worker(tmp_path: Path) -> None:
    from . import ranks  # here, for as a program this file is in no package

    meeting = str(tmp_path / "meeting")
    ranks.run(
        {str(rank): [sys.executable, __file__, str(rank), str(WORLD), meeting] for rank in range(WORLD)}, tmp_path
    )


def main() -> None:
    torch.set_num_threads(1)
    rank, world = int(sys.argv[1]), int(sys.argv[2])
    distributed.init_process_group("gloo", f"file://{sys.argv[3]}", rank=rank, world_size=world)
    for kind in ("own", *TIMM):
        compare(kind, rank)
    plain = Run("own", Alone(CPU)).train(0, STEPS)
    for kind in (Replicated, Sharded):
        counters.clear()
        assert Run("own", compiled(kind)).train(0, STEPS).losses == pytest.approx(plain.losses, rel=1e-5)
        assert counters["stats"]["unique_graphs"] and not counters["graph_break"]
        torch._dynamo.reset()
    distributed.barrier()
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
