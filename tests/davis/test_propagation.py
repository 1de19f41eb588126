"""Label propagation against DINO's own numbers, closed forms and its window."""

import gc
from collections.abc import Iterator
from itertools import count, islice
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from torch import Tensor

from components.davis.propagation import Context, propagate, strongest, tiles

GOLDEN = Path(__file__).parents[1] / "goldens" / "dino_label_propagation.safetensors"
DINO = {"radius": 12, "top_k": 5, "temperature": 0.1, "context_frames": 7}


def random_video(frames: int, h: int, w: int, depth: int = 16, seed: int = 0) -> Tensor:
    return torch.randn(frames, h, w, depth, generator=torch.Generator().manual_seed(seed))


def random_labels(objects: int, h: int, w: int, seed: int = 1) -> Tensor:
    return torch.rand(objects, h, w, generator=torch.Generator().manual_seed(seed)).softmax(0)


def test_equals_dino() -> None:
    with safe_open(GOLDEN, "pt") as file:
        about = {name: float(value) for name, value in file.metadata().items()}
        features, first, expected = (
            file.get_tensor(name) for name in ("features", "first_frame_soft_labels", "soft_labels")
        )
    grids = features.unflatten(1, (int(about["height"]), int(about["width"])))
    soft = propagate(
        grids,
        first,
        radius=int(about["radius"]),
        top_k=int(about["topk"]),
        temperature=about["temperature"],
        context_frames=int(about["n_last_frames"]),
    )
    torch.testing.assert_close(torch.stack(list(soft)), expected, rtol=0, atol=1e-6)


def vote(
    target_hwD: Tensor, keys_FhwD: Tensor, labels_FhwK: Tensor, radius: int, top_k: int, temperature: float
) -> Tensor:
    context = Context(keys_FhwD[0], labels_FhwK[0], max(len(keys_FhwD) - 1, 0), radius)
    for keys, labels in zip(keys_FhwD[1:], labels_FhwK[1:], strict=True):
        context.add(keys, labels)
    return context.vote(target_hwD, top_k, temperature)


def dense(
    target_hwD: Tensor, keys_FhwD: Tensor, labels_FhwK: Tensor, radius: int, top_k: int, temperature: float
) -> Tensor:
    """The protocol as it is told: every affinity, a window of ones, all that reach the k-th value, divided by their sum."""
    h, w, _ = target_hwD.shape
    place = torch.cartesian_prod(torch.arange(h), torch.arange(w)).float()
    near = torch.cdist(place, place, p=torch.inf) <= radius
    affinity = torch.einsum("nd,fmd->nfm", target_hwD.flatten(0, 1), keys_FhwD.flatten(1, 2)).div(temperature).exp()
    affinity = (affinity * near[:, None]).flatten(1)
    affinity[affinity < affinity.topk(min(top_k, affinity.shape[1])).values[:, -1:]] = 0
    return ((affinity / affinity.sum(1, keepdim=True)) @ labels_FhwK.flatten(0, 2)).view(h, w, -1)


@pytest.mark.parametrize(
    ("h", "w", "frames", "radius", "top_k"),
    [(20, 11, 3, 7, 4), (7, 9, 1, 2, 5), (4, 30, 8, 12, 5), (13, 4, 2, 1, 9), (2, 2, 1, 1, 3), (5, 6, 2, 100, 60)],
)
def test_tiles_equal_the_dense_product(h: int, w: int, frames: int, radius: int, top_k: int) -> None:
    """On grids of whole and of torn tiles, with windows that are smaller and larger than the grid."""
    keys = torch.nn.functional.normalize(random_video(frames + 1, h, w), dim=-1)
    labels = torch.stack([random_labels(3, h, w, seed) for seed in range(frames)]).permute(0, 2, 3, 1)
    arguments = keys[-1], keys[:-1], labels, radius, top_k, 0.2
    torch.testing.assert_close(vote(*arguments), dense(*arguments), rtol=0, atol=1e-6)


def test_all_that_equal_the_last_voter_vote() -> None:
    """Tokens of two kinds, alike among themselves: far more than five are equally near, and DINO's threshold keeps them all."""
    kinds = torch.randint(0, 2, (4, 9, 10), generator=torch.Generator().manual_seed(3))
    keys = torch.eye(2)[kinds]
    labels = torch.stack([random_labels(3, 9, 10, seed) for seed in range(3)]).permute(0, 2, 3, 1)
    arguments = keys[-1], keys[:-1], labels, 3, 5, 0.1
    torch.testing.assert_close(vote(*arguments), dense(*arguments), rtol=0, atol=1e-6)


def test_equals_in_other_frames_vote_as_well() -> None:
    """A scene that stood still for eight frames, then a cut in labels: each token's own place in all of them is equally near."""
    grid = torch.eye(12).view(3, 4, 12)
    labels = torch.stack([random_labels(3, 3, 4, seed) for seed in range(8)]).permute(0, 2, 3, 1)
    got = vote(grid, grid.expand(8, -1, -1, -1), labels, 12, 5, 0.1)
    torch.testing.assert_close(got, labels.mean(0), rtol=0, atol=1e-6)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    shape=st.tuples(st.integers(1, 9), st.integers(1, 9), st.integers(1, 4)),
    count=st.integers(1, 20),
    seed=st.integers(0, 99),
)
def test_strongest_is_top_k(shape: tuple[int, int, int], count: int, seed: int) -> None:
    values = torch.randn(shape, generator=torch.Generator().manual_seed(seed))
    found, place = strongest(values, count)
    expected = values.flatten(0, 1).topk(min(count, shape[0] * shape[1]), dim=0)
    assert torch.equal(found, expected.values)
    assert torch.equal(place, expected.indices)


@pytest.mark.parametrize("depth", [3, 16])
def test_whatever_the_features_a_still_video_keeps_its_first_labels_hard(depth: int) -> None:
    """Each token is most like itself in every frame, so that its own label has most of the votes."""
    grid = random_video(1, 8, 9, depth)[0]
    first = torch.eye(3)[torch.randint(0, 3, (8, 9), generator=torch.Generator().manual_seed(5))].permute(2, 0, 1)
    for labels in propagate([grid] * 10, first, **DINO | {"top_k": 1}):
        assert torch.equal(labels.argmax(0), first.argmax(0))


def test_static_video_keeps_its_labels() -> None:
    """Tokens that resemble only themselves keep what they have, frame after frame."""
    h, w = 4, 5
    grid = torch.eye(h * w).view(h, w, -1)
    first = random_labels(3, h, w)
    *_, last = propagate([grid] * 6, first, radius=12, top_k=1, temperature=0.1, context_frames=2)
    torch.testing.assert_close(last, first)


def test_a_moving_token_carries_its_label_up_to_the_radius() -> None:
    """One token with features of its own moves by 2; radius 2 follows it, radius 1 does not."""
    video = torch.zeros(2, 3, 8, 2)
    video[..., 0] = 1
    video[0, 1, 2] = video[1, 1, 4] = torch.tensor([0.0, 1.0])
    first = torch.zeros(2, 3, 8)
    first[0] = 1
    first[:, 1, 2] = torch.tensor([0.0, 1.0])
    (followed,) = propagate(video, first, **DINO | {"radius": 2, "top_k": 1})
    (lost,) = propagate(video, first, **DINO | {"radius": 1, "top_k": 1})
    assert followed[1, 1, 4] == 1
    assert followed[1].sum() == 1
    assert lost[1, 1, 4] == 0


def test_labels_travel_no_further_than_the_radius_allows() -> None:
    first = torch.zeros(2, 15, 15)
    first[0], first[:, 7, 7] = 1, torch.tensor([0.0, 1.0])
    for frame, labels in enumerate(
        propagate(random_video(4, 15, 15, 4), first, **DINO | {"radius": 2, "top_k": 25}), 1
    ):
        reached = labels[1].nonzero()
        assert len(reached)
        assert (reached - 7).abs().max() <= 2 * frame


@pytest.mark.parametrize("top_k", [1, 5, 1000])
def test_labels_stay_a_distribution_even_when_fewer_tokens_are_near_than_may_vote(top_k: int) -> None:
    for labels in propagate(random_video(5, 3, 4), random_labels(3, 3, 4), **DINO | {"radius": 1, "top_k": top_k}):
        torch.testing.assert_close(labels.sum(0), torch.ones(3, 4))
        assert labels.min() >= 0


def test_temperature_goes_from_best_match_to_plain_mean() -> None:
    """The features of two context frames agree with the target to .8 and .6; softmax weights in closed form."""
    target, first, second = (torch.tensor([[[a, b]]]) for a, b in ((1.0, 0.0), (0.8, 0.6), (0.6, 0.8)))
    labels = torch.eye(2).view(2, 1, 1, 2)
    keys = torch.stack([first, second])
    for temperature in (0.05, 0.1, 5.0):
        weight = 1 / (1 + torch.tensor(-0.2 / temperature).exp())
        got = vote(target, keys, labels, 1, 2, temperature)
        torch.testing.assert_close(got.flatten(), torch.stack([weight, 1 - weight]))


def test_context_is_the_first_frame_and_the_last_few() -> None:
    """A change of frame 1 reaches the frames that look back at it, and none when only the first frame counts."""
    video, first = random_video(5, 4, 4), random_labels(2, 4, 4)
    changed = video.clone()
    changed[1] = random_video(1, 4, 4, seed=9)[0]

    def reached(context_frames: int) -> list[bool]:
        settings = DINO | {"context_frames": context_frames}
        pairs = zip(propagate(video, first, **settings), propagate(changed, first, **settings), strict=True)
        return [not torch.equal(before, after) for before, after in pairs]

    assert reached(0) == [True, False, False, False]
    assert reached(1)[:2] == [True, True]
    assert reached(7) == [True, True, True, True]


def test_reads_no_frame_ahead_and_holds_no_more_of_a_longer_video() -> None:
    read = count()

    def endless() -> Iterator[Tensor]:
        for number in read:
            yield random_video(1, 3, 5, 7, seed=number)[0]

    def held() -> int:
        return sum(thing.untyped_storage().nbytes() for thing in gc.get_objects() if type(thing) is Tensor)

    soft = propagate(endless(), random_labels(2, 3, 5), **DINO | {"context_frames": 3})
    assert len(list(islice(soft, 6))) == 6
    after_6 = held()
    assert len(list(islice(soft, 200))) == 200
    assert held() == after_6
    assert next(read) == 207  # 206 labels need the first frame and 206 more


def test_tiles_are_made_once_for_a_grid() -> None:
    """D9: two videos of one size share them, whatever their content; another radius or size has its own."""
    made = [
        tiles(*size, radius, torch.device("cpu"))
        for size, radius in (((6, 7), 2), ((6, 7), 2), ((6, 7), 3), ((7, 6), 2))
    ]
    assert made[0] is made[1]
    assert len({id(each) for each in made}) == 3


def test_d11_a_frame_of_zeros_is_no_division_by_zero() -> None:
    """Black pixels normalise to no direction at all; every token is equally like every other."""
    first = random_labels(2, 4, 5)
    for labels in propagate([torch.zeros(4, 5, 3)] * 3, first, **DINO):
        assert labels.isfinite().all()
        torch.testing.assert_close(labels.sum(0), torch.ones(4, 5))
