"""What makes StoP StoP: the law of a noisy token, who is noisy, and where gradients go."""

import weakref
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import pytest
import torch
from scipy import stats
from timm.models.vision_transformer import Block
from torch import Tensor

from components.mim.blocks import Masks
from components.mim.encoder import EncoderConfig
from components.mim.model import MaskedImageModel
from components.mim.positions import ApplyTo, Covariance, Noise, draw_noise, sincos
from components.mim.predictor import PredictorConfig
from components.mim.weights import build

ENCODER = EncoderConfig(image_size=32, patch_size=8, width=24, layers=2, heads=2)
MASKS = Masks(torch.tensor([[0, 1, 2, 5]] * 3), [torch.tensor([[8, 9]] * 3), torch.tensor([[10, 14]] * 3)])
IMAGES = torch.randn(3, 3, 32, 32, generator=torch.Generator().manual_seed(2))


@dataclass(frozen=True)
class Stop:
    noise_std: float = 0.5
    covariance: Covariance = "learned"
    apply_to: ApplyTo = "masked"


def model(mask_token: bool = True, bias_on_noise: bool = False, covariance: Covariance = "learned") -> MaskedImageModel:
    predictor = PredictorConfig(
        encoder_width=24, output_width=24, width=16, layers=2, heads=2, mask_token=mask_token,
        bias_on_noise=bias_on_noise, covariance=covariance,
    )  # fmt: skip
    built = build(ENCODER, predictor, seed=0, weight_init="fixed")
    with torch.no_grad():  # biases start at 0, which would hide them
        built.predictor.embed.bias.normal_(generator=torch.Generator().manual_seed(1))
    return built


def draw(stop: Stop, step: int = 0, places: Tensor | None = None, masks: Masks = MASKS) -> Noise:
    noise = draw_noise(stop, 0, step, torch.arange(3) if places is None else places, masks, 24, 16)
    assert noise is not None
    return noise


@pytest.mark.parametrize(
    ("mask_token", "bias_on_noise", "covariance"),
    [(True, False, "learned"), (False, True, "learned"), (True, False, "untied"), (True, False, "fixed")],
)
def test_masked_tokens_have_the_gaussian_of_the_paper(
    mask_token: bool, bias_on_noise: bool, covariance: Covariance
) -> None:
    """E[m] = ψ + m̃ (or + b) and Cov[m] = noise_std²·AAᵀ (equation 2), NNᵀ or I. A right law fails one time in a million."""
    predictor, count = model(mask_token, bias_on_noise, covariance).predictor, 40_000
    one = Masks(torch.zeros(count, 1, dtype=torch.int64), [torch.zeros(count, 1, dtype=torch.int64)])
    noise = draw(Stop(0.5, covariance), places=torch.arange(count), masks=one)
    positions = sincos(4, 4, 16)[5]
    assert noise.masked is not None
    with torch.no_grad():
        tokens = predictor.masked_tokens(positions.expand(count, 1, 16), noise.masked[0])[:, 0].double()
        centre = positions + (predictor.mask_token[0, 0] if mask_token else predictor.embed.bias)
        matrix = {"learned": predictor.embed.weight, "fixed": torch.eye(16)}.get(covariance)
        matrix = predictor.noise_embed.weight if matrix is None else matrix
        assert gaussian(tokens, centre.double(), 0.25 * (matrix @ matrix.T).double()) < 1 - 1e-6
        assert gaussian(tokens, centre.double(), 0.5 * (matrix @ matrix.T).double()) == 1  # σ read as a variance


def gaussian(rows: Tensor, centre: Tensor, covariance: Tensor) -> float:
    """How surprising `rows` are under N(centre, covariance), 0 to 1: likelihood ratio of mean and covariance, χ² for many rows."""
    count, width = rows.shape
    whitened = torch.linalg.solve_triangular(torch.linalg.cholesky(covariance), (rows - centre).T, upper=False).T
    mean, sample = whitened.mean(dim=0), torch.cov(whitened.T, correction=0)
    ratio = count * (sample.trace() - torch.logdet(sample) - width + mean @ mean)
    return float(stats.chi2.cdf(ratio.item(), width * (width + 1) // 2 + width))


def test_noise_is_fresh_and_independent_for_every_image_block_token_and_step() -> None:
    """Pairs along each axis are uncorrelated: |r| stays under five standard errors, two in a million for each of four."""
    places = torch.arange(400)
    wide = Masks(torch.zeros(400, 1, dtype=torch.int64), [torch.zeros(400, 6, dtype=torch.int64)] * 2)
    steps = [draw(Stop(1.0), step, places, wide).masked for step in (0, 1)]
    draws = torch.stack([torch.stack(blocks) for blocks in steps if blocks is not None])  # step, block, image, token, D
    assert len(torch.unique(draws.flatten(0, 3), dim=0)) == 2 * 2 * 400 * 6
    for axis in range(4):
        one, other = draws.narrow(axis, 0, 1).flatten(), draws.narrow(axis, 1, 1).flatten()
        correlation = torch.corrcoef(torch.stack([one, other]))[0, 1].abs().item()
        assert correlation < 5 / len(one) ** 0.5, axis
    again = draw(Stop(1.0), 1, places[200:], wide).masked
    assert again is not None and torch.equal(again[1], draws[1, 1, 200:])


@pytest.mark.parametrize("covariance", ["learned", "untied", "fixed"])
def test_noise_of_no_size_is_the_deterministic_predictor_bit_for_bit(covariance: Covariance) -> None:
    assert draw_noise(Stop(0.0), 0, 0, torch.arange(3), MASKS, 24, 16) is None
    net, width = model(covariance=covariance), 16 if covariance == "fixed" else 24
    silent = Noise([torch.zeros(3, 2, width)] * 2, [torch.zeros(3, 4, width)] * 2)
    for quiet, zero in zip(net.predict(IMAGES, MASKS, None), net.predict(IMAGES, MASKS, silent), strict=True):
        assert torch.equal(quiet, zero)


@pytest.mark.parametrize("apply_to", ["masked", "context", "both"])
@pytest.mark.parametrize("covariance", ["learned", "untied", "fixed"])
def test_only_the_tokens_asked_for_are_noisy(apply_to: ApplyTo, covariance: Covariance) -> None:
    net, seen = model(covariance=covariance), list[Tensor]()
    hook = net.predictor.blocks[0].register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0].detach()))
    noise = draw(Stop(0.5, covariance, apply_to))
    net.predict(IMAGES, MASKS, noise)
    net.predict(IMAGES, MASKS, None)
    hook.remove()
    strayed = (seen[0] - seen[1]).abs().amin(dim=-1)  # rows: images of block 0, then of block 1
    assert (strayed[:, :4] > 0).all() == (apply_to != "masked") and (strayed[:, :4] > 0).any() == (apply_to != "masked")
    assert (strayed[:, 4:] > 0).all() == (apply_to != "context")
    if apply_to != "masked":  # each block's pass has noise of its own on the same context
        assert not torch.allclose(seen[0][:3, :4], seen[0][3:, :4])


def test_blocks_do_not_see_each_other_and_equal_blocks_share_a_pass() -> None:
    net = model()
    together = net.predict(IMAGES, MASKS, None)
    alone = net.predict(IMAGES, Masks(MASKS.context_BK, [MASKS.targets[1]]), None)
    torch.testing.assert_close(together[1], alone[0])
    uneven = Masks(MASKS.context_BK, [MASKS.targets[0], torch.tensor([[10, 14, 15]] * 3), MASKS.targets[1]])
    torch.testing.assert_close(net.predict(IMAGES, uneven, None)[2], alone[0])


@pytest.mark.parametrize("start", [0, 1, 4])
def test_the_last_layer_computes_nothing_that_is_not_read(start: int) -> None:
    layer, tokens = model().predictor.blocks[1], torch.randn(3, 7, 16, generator=torch.Generator().manual_seed(4))
    tokens.requires_grad_(True)
    whole, part = Block.forward(layer, tokens)[:, start:], layer(tokens, start=start)
    torch.testing.assert_close(part, whole, rtol=1e-5, atol=1e-6)
    one, other = (torch.autograd.grad(output.square().sum(), [tokens, *layer.parameters()]) for output in (whole, part))
    for a, b in zip(one, other, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)


def gradient(net: MaskedImageModel, encoded: Tensor, noise: Tensor | None) -> Tensor:
    """Of a sum over the predictor's outputs with respect to A."""
    net.zero_grad()
    table = net.predictor.position_table((4, 4))
    context = net.predictor.context_tokens(encoded, table[MASKS.context_BK])
    net.predictor(context, net.predictor.masked_tokens(table[MASKS.targets[0]], noise)).square().sum().backward()
    found = net.predictor.embed.weight.grad
    assert found is not None
    return found.clone()


def test_gradient_reaches_a_by_both_paths_and_an_untied_matrix_has_its_own() -> None:
    features, noise = torch.randn(3, 4, 24, generator=torch.Generator().manual_seed(3)), torch.full((3, 2, 24), 0.3)
    measure: Callable[..., Tensor] = partial(gradient, model())
    assert measure(features, torch.zeros(3, 2, 24)).norm() > 0  # through A·s
    assert measure(torch.zeros(3, 4, 24), noise).norm() > 0  # through A·n
    untied = model(covariance="untied")
    assert gradient(untied, torch.zeros(3, 4, 24), noise).norm() == 0
    assert untied.predictor.noise_embed.weight.grad.norm() > 0


def test_an_encoder_lets_go_of_what_nobody_reads() -> None:
    """Outputs of early layers are gone when the last ones are computed: memory does not grow with the depth."""
    net = build(replace(ENCODER, layers=6), model().predictor.config, 0, "fixed").encoder
    alive, outputs = list[int](), list[weakref.ref[Tensor]]()

    def watch(_: torch.nn.Module, __: tuple[Tensor, ...], output: Tensor) -> None:
        alive.append(sum(ref() is not None for ref in outputs))
        outputs.append(weakref.ref(output))

    for layer in net.blocks:
        layer.register_forward_hook(watch)
    with torch.no_grad():
        net(IMAGES)
        assert max(alive) <= 2, alive
        alive.clear(), outputs.clear()
        assert len(net.layer_tokens(IMAGES, 2)) == 2
        assert max(alive) <= 3, alive


def test_a_table_that_an_evaluation_asked_for_first_serves_training() -> None:
    with torch.inference_mode():
        table = sincos(3, 7, 20)
    assert not table.is_inference()
    weight = torch.ones(20, requires_grad=True)
    (table * weight).sum().backward()  # which must keep the table
    torch.testing.assert_close(weight.grad, table.sum(dim=0))
