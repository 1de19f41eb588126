"""One whole MAE step against the reference program's numbers (tests/goldens/mae_step.safetensors)."""

from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from torch import Tensor

from components.mim.encoder import Encoder, EncoderConfig
from components.mim.masks import by_score
from components.mim.model import MaskedImageModel, optimizer
from components.mim.objectives import Targets, pixels
from components.mim.positions import sincos
from components.mim.predictor import Predictor, PredictorConfig

GOLDEN = Path(__file__).parents[1] / "goldens/mae_step.safetensors"
DECODER = {"embed": "embed", "blocks": "blocks", "norm": "norm", "pred": "head"}


@pytest.fixture(scope="module")
def golden() -> dict[str, Tensor]:
    with safe_open(GOLDEN, "pt") as file:
        return {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118


def named(golden: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """Tensors under `prefix` by our names; position tables have no place in our model."""
    found = {}
    for key, tensor in golden.items():
        name = key.removeprefix(prefix)
        if not key.startswith(prefix) or name.endswith("pos_embed"):
            continue
        if name.startswith("decoder_"):
            part, _, rest = name.removeprefix("decoder_").partition(".")
            found[f"predictor.{DECODER[part]}.{rest}"] = tensor
        elif name == "mask_token":
            found["predictor.mask_token"] = tensor
        else:
            found["encoder." + name.replace("cls_token", "class_token")] = tensor
    return found


@pytest.fixture
def model(golden: dict[str, Tensor]) -> MaskedImageModel:
    encoder = EncoderConfig(image_size=64, patch_size=8, width=48, layers=2, heads=4, class_token=True)
    predictor = PredictorConfig(
        encoder_width=48, output_width=192, width=32, layers=1, heads=4, mask_token=True, bias_on_noise=False,
        passes="joint",
    )  # fmt: skip
    built = MaskedImageModel(Encoder(encoder), Predictor(predictor), "l2")
    built.load_state_dict(named(golden, "init."), strict=True)
    return built


def test_positions_have_a_zero_for_the_class_token(golden: dict[str, Tensor]) -> None:
    for key, width in (("init.pos_embed", 48), ("init.decoder_pos_embed", 32)):
        assert not golden[key][0, 0].any()
        torch.testing.assert_close(sincos(8, 8, width), golden[key][0, 1:], rtol=1e-5, atol=1e-6)


def test_masks_predictions_and_loss(golden: dict[str, Tensor], model: MaskedImageModel) -> None:
    masks = by_score(golden["noise"], 16)
    hidden = torch.zeros(4, 64).scatter_(1, masks.targets[0], 1.0)
    assert torch.equal(hidden, golden["mask"])
    predictions = model.predict(golden["images"], masks, None)[0]
    expected = golden["predictions"].gather(1, masks.targets[0].unsqueeze(-1).expand(-1, -1, 192))
    torch.testing.assert_close(predictions, expected, rtol=1e-5, atol=1e-5)
    loss = model(golden["images"], masks, None, Targets(pixels(golden["images"], 8, True), None))
    torch.testing.assert_close(loss.reshape(1), golden["loss"].reshape(1), rtol=1e-5, atol=0)


def test_gradients_and_update(golden: dict[str, Tensor], model: MaskedImageModel) -> None:
    adamw = optimizer(model, lr=1e-3, weight_decay=0.05, beta2=0.95)
    masks = by_score(golden["noise"], 16)
    model(golden["images"], masks, None, Targets(pixels(golden["images"], 8, True), None)).backward()
    gradients, parameters = named(golden, "grad."), dict(model.named_parameters())
    assert gradients.keys() == parameters.keys()
    for name, expected in gradients.items():
        torch.testing.assert_close(
            parameters[name].grad, expected, rtol=1e-4, atol=1e-6, msg=lambda text, n=name: f"{n}: {text}"
        )
    adamw.step()
    for name, expected in named(golden, "after.").items():
        torch.testing.assert_close(
            model.state_dict()[name], expected, rtol=0, atol=3e-6, msg=lambda text, n=name: f"{n}: {text}"
        )
