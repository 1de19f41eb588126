"""Files that describe themselves, and which parameters weight decay spares."""

from pathlib import Path

import pytest
import torch

from components.mim.encoder import EncoderConfig
from components.mim.initialise import WeightInit
from components.mim.model import optimizer, set_rates
from components.mim.predictor import PredictorConfig
from components.mim.weights import build, load_encoder, load_predictor, save, untrained_encoder

from .test_stop import ENCODER, IMAGES, model


def test_weight_decay_spares_biases_and_one_dimensional_parameters() -> None:
    net = model()
    adamw = optimizer(net, 1e-3, 0.04)
    set_rates(adamw, 5e-4, 0.3)
    decayed, plain = adamw.param_groups
    assert (decayed["lr"], decayed["weight_decay"], plain["lr"], plain["weight_decay"]) == (5e-4, 0.3, 5e-4, 0.0)
    assert all(parameter.ndim == 1 for parameter in plain["params"])
    assert all(parameter.ndim > 1 for parameter in decayed["params"])
    assert len(decayed["params"]) + len(plain["params"]) == len(list(net.parameters()))


def test_a_file_describes_itself_and_gives_back_its_first_weights(tmp_path: Path) -> None:
    net = build(
        ENCODER,
        PredictorConfig(
            encoder_width=24, output_width=24, width=16, layers=1, heads=2, mask_token=True, bias_on_noise=False
        ),
        5,
        "fan_in",
    )
    first = {name: tensor.clone() for name, tensor in net.encoder.state_dict().items()}
    with torch.no_grad():
        for parameter in net.encoder.parameters():
            parameter.add_(0.1)
    save(tmp_path / "encoder.safetensors", net.encoder, {"seed": 5, "weight_init": "fan_in"})
    first_bytes = (tmp_path / "encoder.safetensors").read_bytes()
    for _ in range(8):
        save(tmp_path / "encoder.safetensors", net.encoder, {"seed": 5, "weight_init": "fan_in"})
        assert (tmp_path / "encoder.safetensors").read_bytes() == first_bytes
    loaded = load_encoder(tmp_path / "encoder.safetensors")
    torch.testing.assert_close(loaded(IMAGES), net.encoder(IMAGES))
    untrained = untrained_encoder(tmp_path / "encoder.safetensors").state_dict()
    assert all(torch.equal(untrained[name], tensor) for name, tensor in first.items())
    assert first["patch_embed.proj.weight"].std().item() == pytest.approx((3 * 8 * 8) ** -0.5, rel=0.05)
    (tmp_path / "broken.safetensors").write_bytes(b"no tensors")
    with pytest.raises(ValueError, match="not a readable safetensors file"):
        load_encoder(tmp_path / "broken.safetensors")
    save(tmp_path / "predictor.safetensors", net.predictor, {})
    assert load_predictor(tmp_path / "predictor.safetensors").config == net.predictor.config
    with pytest.raises(ValueError, match="holds a predictor; an encoder is needed here"):
        load_encoder(tmp_path / "predictor.safetensors")


def test_a_is_spared_when_asked() -> None:
    net = model()
    decayed, plain = optimizer(net, 1e-3, 0.04, decay_a=False).param_groups
    assert any(parameter is net.predictor.embed.weight for parameter in plain["params"])
    assert len(plain["params"]) == len(optimizer(net, 1e-3, 0.04).param_groups[1]["params"]) + 1


@pytest.mark.parametrize("weight_init", ["fixed", "fan_in", "xavier"])
def test_first_weights_have_the_deviations_of_the_table(weight_init: WeightInit) -> None:
    """Each estimate is good to 5% at four standard errors; normals are cut at ±2, hundreds of deviations away."""
    encoder = EncoderConfig(
        image_size=32, patch_size=8, width=96, layers=1, heads=2, class_token=True, positions="learned"
    )
    predictor = PredictorConfig(
        encoder_width=96, output_width=96, width=64, layers=1, heads=2, mask_token=True, bias_on_noise=False,
        covariance="untied", positions="learned", grid_side=4,
    )  # fmt: skip
    net = build(encoder, predictor, 0, weight_init)
    for name, parameter in net.named_parameters():
        if parameter.ndim == 1:
            assert (parameter == (1.0 if "norm" in name and name.endswith("weight") else 0.0)).all(), name
            continue
        rows, columns = len(parameter), parameter[0].numel()
        embeds = name.endswith(("patch_embed.proj.weight", "embed.weight"))
        expected = {
            "fixed": 0.02,
            "fan_in": (1.0 if embeds else 0.55) / columns**0.5,
            "xavier": (6 / (rows + columns)) ** 0.5 / 3**0.5,
        }[weight_init]
        if name.endswith(("_token", "positions")):
            expected = 0.02
        error = 4 / (2 * parameter.numel()) ** 0.5  # of a normal's deviation, relative
        assert parameter.std().item() == pytest.approx(expected, rel=max(error, 0.02)), name
