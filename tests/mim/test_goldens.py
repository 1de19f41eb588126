"""One whole step against the reference programs' numbers, and the schedules (tests/goldens, see its README)."""

import json
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from torch import Tensor
from torch.nn import functional

from components.mim import schedules
from components.mim.blocks import Masks
from components.mim.encoder import Encoder, EncoderConfig, gather
from components.mim.model import MaskedImageModel, optimizer, update_target
from components.mim.objectives import Targets, target_features
from components.mim.positions import Noise, sincos
from components.mim.predictor import Predictor, PredictorConfig

GOLDENS = Path(__file__).parents[1] / "goldens"
FORMS = {  # golden file -> (mask_token, bias_on_noise)
    "ijepa_step": (True, False),
    "stop_step_official": (False, True),
    "stop_step_paper": (True, False),
}
OURS = {
    "predictor_embed.": "embed.",
    "predictor_blocks.": "blocks.",
    "predictor_norm.": "norm.",
    "predictor_proj.": "head.",
}


class Golden:
    """A golden step: its tensors by name, and the model it starts from."""

    def __init__(self, name: str) -> None:
        with safe_open(GOLDENS / f"{name}.safetensors", "pt") as file:
            self.tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
            meta = {key: value for key, value in file.metadata().items()}
        mask_token, bias_on_noise = FORMS[name]
        shape = EncoderConfig(
            image_size=int(meta["img"]), patch_size=int(meta["ps"]), width=int(meta["dim"]), layers=int(meta["depth"]),
            heads=int(meta["heads"]),
        )  # fmt: skip
        predictor = PredictorConfig(
            encoder_width=shape.width, output_width=shape.width, width=int(meta["pdim"]), layers=int(meta["pdepth"]), heads=shape.heads,
            mask_token=mask_token, bias_on_noise=bias_on_noise,
        )  # fmt: skip
        self.model = MaskedImageModel(Encoder(shape), Predictor(predictor))
        self.target = Encoder(shape).requires_grad_(False)
        self.model.encoder.load_state_dict(self.named("init.encoder."), strict=True)
        self.model.predictor.load_state_dict(self.named("init.predictor."), strict=True)
        self.target.load_state_dict(self.named("init.target_encoder."), strict=True)
        self.masks = Masks(self.tensors["context_indices"], self.blocks("target_indices"))
        self.noise = Noise(self.blocks("noise"), None) if "noise.0" in self.tensors else None

    def blocks(self, name: str) -> list[Tensor]:
        return [self.tensors[f"{name}.{block}"] for block in range(4)]

    def named(self, prefix: str) -> dict[str, Tensor]:
        """Tensors under `prefix` by our names; position tables and an unused mask token have no place in our model."""
        found = {}
        for key, tensor in self.tensors.items():
            name = key.removeprefix(prefix)
            if not key.startswith(prefix) or "pos_embed" in name:
                continue
            for theirs, mine in OURS.items():
                name = mine + name.removeprefix(theirs) if name.startswith(theirs) else name
            if name == "mask_token" and not self.model.predictor.config.mask_token:
                continue
            found[name] = tensor
        return found


@pytest.fixture(params=list(FORMS))
def golden(request: pytest.FixtureRequest) -> Golden:
    return Golden(request.param)


def test_positions_equal_the_reference_tables(golden: Golden) -> None:
    for key, width in (("init.encoder.pos_embed", 48), ("init.predictor.predictor_pos_embed", 32)):
        torch.testing.assert_close(sincos(8, 8, width), golden.tensors[key][0], rtol=1e-5, atol=1e-6)


def test_activations_and_loss(golden: Golden) -> None:
    images = golden.tensors["images"]
    torch.testing.assert_close(golden.target(images), golden.tensors["target_encoder_tokens"], rtol=1e-5, atol=1e-5)
    features = target_features(golden.target, images)
    targets = torch.cat([gather(features, block) for block in golden.masks.targets])
    torch.testing.assert_close(targets, golden.tensors["targets"], rtol=1e-5, atol=1e-5)
    context = golden.model.encoder(images, golden.masks.context_BK)
    torch.testing.assert_close(context, golden.tensors["context_tokens"], rtol=1e-5, atol=1e-5)
    predictions = torch.cat(golden.model.predict(images, golden.masks, golden.noise))
    torch.testing.assert_close(predictions, golden.tensors["predictions"], rtol=1e-5, atol=1e-5)
    loss = golden.model(images, golden.masks, golden.noise, Targets(features, None))
    torch.testing.assert_close(loss.reshape(1), golden.tensors["loss"], rtol=1e-5, atol=0)
    torch.testing.assert_close(
        loss, functional.smooth_l1_loss(golden.tensors["predictions"], golden.tensors["targets"])
    )


def test_gradients_update_and_moving_average(golden: Golden) -> None:
    images = golden.tensors["images"]
    adamw = optimizer(golden.model, lr=1e-3, weight_decay=0.04)
    features = target_features(golden.target, images)
    golden.model(images, golden.masks, golden.noise, Targets(features, None)).backward()
    for part, module in (("encoder.", golden.model.encoder), ("predictor.", golden.model.predictor)):
        gradients = golden.named(f"grad.{part}")
        parameters = dict(module.named_parameters())
        assert gradients.keys() == parameters.keys()
        for name, expected in gradients.items():
            torch.testing.assert_close(
                parameters[name].grad, expected, rtol=1e-4, atol=1e-6, msg=lambda text, n=name: f"{n}: {text}"
            )
    adamw.step()
    update_target(golden.target, golden.model.encoder, 0.996)
    after = (
        ("encoder.", golden.model.encoder),
        ("predictor.", golden.model.predictor),
        ("target_encoder.", golden.target),
    )
    for part, module in after:
        for name, expected in golden.named(f"after.{part}").items():
            torch.testing.assert_close(
                module.state_dict()[name], expected, rtol=0, atol=3e-6, msg=lambda text, n=name: f"{n}: {text}"
            )


@pytest.mark.parametrize("recipe", ["vit_b16_stop", "vit_h14_ijepa"])
def test_schedules_equal_the_reference(recipe: str) -> None:
    golden = json.loads((GOLDENS / "schedules.json").read_text())[recipe]
    per_epoch = golden["iterations_per_epoch"]
    steps, warmup = golden["epochs"] * per_epoch, golden["warmup_epochs"] * per_epoch
    for index, step in enumerate(golden["iteration"]):
        lr = schedules.learning_rate(
            step,
            steps=steps,
            warmup_steps=warmup,
            start=golden["start_lr"],
            peak=golden["lr"],
            final=golden["final_lr"],
        )
        decay = schedules.weight_decay(
            step, steps=steps, start=golden["weight_decay"], final=golden["final_weight_decay"]
        )
        momentum = schedules.ema_momentum(step, steps=steps, start=golden["ema"][0], final=golden["ema"][1])
        assert lr == pytest.approx(golden["lr_at"][index], rel=1e-9)
        assert decay == pytest.approx(golden["weight_decay_at"][index], rel=1e-9)
        assert momentum == pytest.approx(golden["ema_at"][index], rel=1e-9)
