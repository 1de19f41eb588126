"""A predictor that knows the answer finds the patch; one that knows nothing finds none; noise 0 is no noise."""

from collections.abc import Callable

import numpy as np
import pytest
import torch

from components.analysis.predictions import heat, locality, middle, predictions
from components.analysis.trained import Trained
from components.images.transforms import normalise
from components.mim import objectives
from components.mim.grid import Size

DRAWS = 3


@pytest.fixture(scope="module")
def pixels() -> torch.Tensor:
    """One picture of noise, twenty times."""
    one = np.random.default_rng(0).integers(0, 256, (1, 32, 32, 3), dtype=np.uint8)
    return torch.from_numpy(one.repeat(20, axis=0))


def all_knowing(name: str, pixels: torch.Tensor) -> Callable[..., None]:
    """Makes a predictor of `name`'s true targets of that picture: its layers pass on the position, of which the head makes them.

    With one-hot positions the 16 states are linearly independent, so that a head exists which is right about each.
    """

    def change(encoder, predictor) -> None:  # noqa: ANN001
        predictor.positions.copy_(4 * torch.eye(16, 32)[None])
        for block in predictor.blocks:
            for branch in (block.attn.proj, block.mlp.fc2):
                torch.nn.init.zeros_(branch.weight)
                torch.nn.init.zeros_(branch.bias)
        states = predictor.norm(predictor.masked_tokens(predictor.position_table((4, 4)), None)[0])
        settings = Settings(name)
        truth = objectives.targets(settings, None if name == "mae" else encoder, normalise(pixels[:1]), 8).full_BND[0]
        solved = torch.linalg.lstsq(torch.cat([states, torch.ones(16, 1)], dim=1), truth, driver="gelsd").solution
        predictor.head.weight.copy_(solved[:-1].T)
        predictor.head.bias.copy_(solved[-1])

    return change


def layers(name: str) -> int:
    return 2 if name == "data2vec" else 1


class Settings:
    def __init__(self, name: str) -> None:
        self.name, self.target_layers = name, layers(name)
        self.low_resolution, self.normalise_pixels = "none", True


@pytest.mark.parametrize(
    ("name", "sampler", "passes", "class_token"),
    [
        ("ijepa", "multiblock", "block", False),
        ("ijepa", "random", "joint", True),
        ("data2vec", "multiblock", "joint", False),
        ("mae", "random", "block", True),
    ],
)
def test_who_knows_the_answer_looks_like_it(
    make: Callable, pixels: torch.Tensor, name: str, sampler: str, passes: str, class_token: bool
) -> None:
    """Every step on the way must agree: which patches are masked, which are asked for and what they are compared with."""
    run = make(
        all_knowing(name, pixels),
        encoder={"class_token": class_token},
        predictor={"width": 32, "positions": "learned", "passes": passes},
        masks={"sampler": sampler},
        objective={"name": name, "target_layers": layers(name)},
        stop={"noise_std": 0.0},
    ).load()
    found = predictions(run, pixels, [0, 7, 19], seed=0, draws=DRAWS, temperature=0.01)
    assert found.cosine == pytest.approx(1, abs=1e-4)
    assert found.locality == found.locality_still == pytest.approx(found.locality_target, abs=0.1)
    assert len(found.shown) == 3
    for maps in found.shown:
        torch.testing.assert_close(maps.still_N, maps.target_N, atol=1e-3, rtol=0)
        assert maps.still_N.argmax() == maps.patch
        assert maps.patch in maps.block_T and not set(maps.block_T.tolist()) & set(maps.context_K.tolist())
        assert maps.drawn_N is None and maps.mean_N is None


def looked(run: Trained, pixels: torch.Tensor, **changes: int) -> object:
    return predictions(run, pixels, [1, 18], **({"seed": 0, "draws": DRAWS} | changes), temperature=0.1)


@pytest.mark.parametrize("apply_to", ["masked", "context", "both"])
@pytest.mark.parametrize("covariance", ["learned", "untied", "fixed"])
def test_noise_of_no_size_changes_nothing_and_noise_of_size_does(
    make: Callable, pixels: torch.Tensor, apply_to: str, covariance: str
) -> None:
    stop = {"covariance": covariance, "apply_to": apply_to}
    none, loud = (looked(make(stop=stop | {"noise_std": std}).load(), pixels) for std in (1e-9, 0.5))
    for maps in none.shown:
        torch.testing.assert_close(maps.mean_N, maps.still_N)
        torch.testing.assert_close(maps.drawn_N, maps.still_N)
    assert none.locality == pytest.approx(none.locality_still, rel=1e-5)
    for maps, other in zip(loud.shown, none.shown, strict=True):
        assert (maps.mean_N - maps.still_N).abs().max() > 1e-4
        assert not torch.equal(maps.drawn_N, maps.mean_N)
        torch.testing.assert_close(maps.still_N, other.still_N)  # the noise's size leaves the rest as it is
        for heats in (maps.target_N, maps.still_N, maps.drawn_N, maps.mean_N):
            assert heats.sum().item() == pytest.approx(1, abs=1e-5) and (heats >= 0).all()
    assert (loud.cosine, loud.locality_still) == pytest.approx((none.cosine, none.locality_still), rel=1e-4)
    assert loud.locality != pytest.approx(loud.locality_still, rel=1e-4)


def test_the_mean_is_over_all_draws_and_the_first_is_shown(make: Callable, pixels: torch.Tensor) -> None:
    run = make(stop={"noise_std": 0.5}).load()
    one, two = (looked(run, pixels, draws=draws) for draws in (1, 2))
    for first, both in zip(one.shown, two.shown, strict=True):
        torch.testing.assert_close(first.mean_N, first.drawn_N)
        torch.testing.assert_close(both.drawn_N, first.drawn_N)
        assert not torch.allclose(both.mean_N, both.drawn_N, atol=1e-5)


def test_what_an_image_shows_does_not_depend_on_its_company(make: Callable, pixels: torch.Tensor) -> None:
    """The same picture at place 1 of twenty and of two; batches hold sixteen."""
    run = make().load()
    (many, _), (few,) = looked(run, pixels).shown, predictions(run, pixels[:2], [1], 0, DRAWS, 0.1).shown
    for name in ("context_K", "block_T", "target_N", "still_N", "drawn_N", "mean_N"):
        torch.testing.assert_close(getattr(many, name), getattr(few, name))


def test_weights_that_are_no_numbers_are_told(make: Callable, pixels: torch.Tensor) -> None:
    def broken(encoder, predictor) -> None:  # noqa: ANN001
        predictor.head.bias[3] = torch.nan

    with pytest.raises(ValueError, match="predictions hold values that are no finite numbers"):
        looked(make(broken).load(), pixels)

    def worse(encoder, predictor) -> None:  # noqa: ANN001
        encoder.norm.bias[3] = torch.inf

    with pytest.raises(ValueError, match="targets hold values that are no finite numbers"):
        looked(make(worse).load(), pixels)


def test_a_heat_map_is_scipys_softmax_of_cosines() -> None:
    from scipy.spatial.distance import cdist
    from scipy.special import softmax

    draws = np.random.default_rng(0)
    guess, truth = draws.normal(size=(2, 3, 8)), draws.normal(size=(2, 6, 8))
    found = heat(torch.from_numpy(guess), torch.from_numpy(truth), 0.2)
    for image in range(2):
        expected = softmax((1 - cdist(guess[image], truth[image], "cosine")) / 0.2, axis=1)
        assert np.allclose(found[image], expected, atol=1e-6)


def test_locality_is_the_share_of_the_window() -> None:
    grid, places = Size(4, 5), torch.tensor([[0, 7, 19]])  # a corner, inside, the opposite corner
    even = torch.full((1, 3, 20), 1 / 20)
    assert locality(even, places, grid)[0].tolist() == pytest.approx([4 / 20, 9 / 20, 4 / 20])
    exact = torch.nn.functional.one_hot(torch.tensor([[6, 10, 18]]), 20).float()  # diagonal; two columns away; beside
    assert locality(exact, places, grid)[0].tolist() == [1, 0, 1]
    wrapped = torch.nn.functional.one_hot(
        torch.tensor([[4, 7, 15]]), 20
    ).float()  # the other end of the row is not near
    assert locality(wrapped, places, grid)[0].tolist() == [0, 1, 0]


def test_the_middle_of_a_block() -> None:
    grid = Size(8, 8)
    rectangle = torch.tensor([row * 8 + column for row in (2, 3, 4) for column in (1, 2, 3, 4, 5)])
    assert int(rectangle[middle(rectangle, grid)]) == 3 * 8 + 3
    assert middle(torch.tensor([63]), grid) == 0
