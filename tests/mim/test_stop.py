"""What makes StoP StoP: the masked token's law, who sees noise, and where gradients go."""

import pytest
import torch
from torch import Tensor

from components.mim.encoder import EncoderConfig
from components.mim.masks import Masks
from components.mim.model import MaskedImageModel, effective_rank, optimizer, set_rates
from components.mim.positions import draw_noise, sincos
from components.mim.predictor import PredictorConfig
from components.mim.weights import build, load_encoder, save, untrained_encoder

ENCODER = EncoderConfig(image_size=32, patch_size=8, width=24, layers=2, heads=2)


def model(mask_token: bool = True, bias_on_noise: bool = False) -> MaskedImageModel:
    predictor = PredictorConfig(
        encoder_width=24, width=16, layers=1, heads=2, mask_token=mask_token, bias_on_noise=bias_on_noise
    )
    built = build(ENCODER, predictor, seed=0, weight_init="fixed")
    with torch.no_grad():  # biases start at 0, which would hide them
        built.predictor.embed.bias.normal_(generator=torch.Generator().manual_seed(1))
    return built


MASKS = Masks(torch.tensor([[0, 1, 2, 5]] * 3), [torch.tensor([[8, 9]] * 3), torch.tensor([[10, 14]] * 3)])
IMAGES = torch.randn(3, 3, 32, 32, generator=torch.Generator().manual_seed(2))


@pytest.mark.parametrize(("mask_token", "bias_on_noise"), [(True, False), (False, True)])
def test_masked_tokens_have_the_gaussian_of_the_paper(mask_token: bool, bias_on_noise: bool) -> None:
    """E[m] = ψ + m̃ (or + b) and Cov[m] = noise_std²·A·Aᵀ (equation 2)."""
    predictor, std = model(mask_token, bias_on_noise).predictor, 0.5
    noise = draw_noise(0, 0, 0, torch.arange(40_000), 1, 24, std)
    positions = sincos(4, 4, 16)[5]
    with torch.no_grad():
        tokens = predictor.masked_tokens(positions.expand(40_000, 1, 16), noise)[:, 0]
        weight = predictor.embed.weight
        centre = positions + (predictor.mask_token[0, 0] if mask_token else predictor.embed.bias)
        torch.testing.assert_close(tokens.mean(dim=0), centre, atol=2e-3, rtol=0)
        torch.testing.assert_close(torch.cov(tokens.T), std**2 * weight @ weight.T, atol=2e-4, rtol=0.05)


def test_noise_is_fresh_for_every_image_block_token_and_step() -> None:
    places = torch.arange(4)
    draws = [draw_noise(0, step, block, places, 5, 24, 1.0) for step in (0, 1) for block in (0, 1)]
    rows = torch.cat([draw.reshape(-1, 24) for draw in draws])
    assert len(torch.unique(rows, dim=0)) == len(rows) == 2 * 2 * 4 * 5
    again = draw_noise(0, 1, 1, places[2:], 5, 24, 1.0)
    assert torch.equal(again, draws[3][2:])


def test_without_noise_prediction_is_deterministic_i_jepa() -> None:
    net = model()
    zeros = [torch.zeros(3, 2, 24)] * 2
    for quiet, silent in zip(net.predict(IMAGES, MASKS, None), net.predict(IMAGES, MASKS, zeros), strict=True):
        torch.testing.assert_close(quiet, silent)


def test_blocks_do_not_see_each_other_and_equal_blocks_share_a_pass() -> None:
    net = model()
    together = net.predict(IMAGES, MASKS, None)
    alone = net.predict(IMAGES, Masks(MASKS.context_BK, [MASKS.targets[1]]), None)
    torch.testing.assert_close(together[1], alone[0])
    uneven = Masks(MASKS.context_BK, [MASKS.targets[0], torch.tensor([[10, 14, 15]] * 3), MASKS.targets[1]])
    torch.testing.assert_close(net.predict(IMAGES, uneven, None)[2], alone[0])


def test_context_carries_no_noise_and_gradient_reaches_a_by_both_paths() -> None:
    net = model()
    noise = [torch.ones(3, 2, 24) * 0.3] * 2
    seen: list[Tensor] = []
    hook = net.predictor.blocks[0].register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0].detach()))
    net.predict(IMAGES, MASKS, noise)
    net.predict(IMAGES, MASKS, None)
    hook.remove()
    torch.testing.assert_close(seen[0][:, :4], seen[1][:, :4])
    assert (seen[0][:, 4:] - seen[1][:, 4:]).abs().min() > 0

    def gradient(context: Tensor, drawn: Tensor) -> Tensor:
        net.zero_grad()
        net.predictor(context, MASKS.context_BK, MASKS.targets[0], (4, 4), drawn).square().sum().backward()
        assert net.predictor.embed.weight.grad is not None
        return net.predictor.embed.weight.grad

    features = torch.randn(3, 4, 24, generator=torch.Generator().manual_seed(3))
    assert gradient(features, torch.zeros(3, 2, 24)).norm() > 0  # through A·s
    assert gradient(torch.zeros(3, 4, 24), noise[0]).norm() > 0  # through A·n


def test_effective_rank_is_the_rank_of_a_flat_spectrum() -> None:
    basis = torch.linalg.qr(torch.randn(64, 10, generator=torch.Generator().manual_seed(0)))[0]
    assert effective_rank(basis) == pytest.approx(10, rel=1e-3)
    assert effective_rank(torch.ones(50, 8)) == pytest.approx(1, abs=1e-3)


def test_weight_decay_spares_biases_and_one_dimensional_parameters() -> None:
    net = model()
    adamw = optimizer(net, 1e-3, 0.04)
    set_rates(adamw, 5e-4, 0.3)
    decayed, plain = adamw.param_groups
    assert (decayed["lr"], decayed["weight_decay"], plain["lr"], plain["weight_decay"]) == (5e-4, 0.3, 5e-4, 0.0)
    assert all(parameter.ndim == 1 for parameter in plain["params"])
    assert all(parameter.ndim > 1 for parameter in decayed["params"])
    assert len(decayed["params"]) + len(plain["params"]) == len(list(net.parameters()))


def test_a_file_describes_itself_and_gives_back_its_first_weights(tmp_path) -> None:  # type: ignore[no-untyped-def]
    net = build(
        ENCODER,
        PredictorConfig(encoder_width=24, width=16, layers=1, heads=2, mask_token=True, bias_on_noise=False),
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
