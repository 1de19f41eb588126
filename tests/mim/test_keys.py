"""Draws are functions of key and place alone."""

import pytest
import torch
from scipy import stats

from components.mim import keys


@pytest.mark.parametrize("count", [33, keys.LONG + 1])
def test_a_place_draws_the_same_alone_in_any_order_and_in_any_company(count: int) -> None:
    everyone = torch.arange(100)
    together = keys.normal(7, everyone, count)
    assert len(together.unique(dim=0)) == 100
    shuffled = torch.randperm(100, generator=torch.Generator().manual_seed(0))
    assert torch.equal(keys.normal(7, shuffled, count), together[shuffled])
    for place in (0, 15, 16, 99):
        assert torch.equal(keys.normal(7, torch.tensor([place]), count)[0], together[place])


def test_draws_follow_their_distribution_and_differ_between_places_and_keys() -> None:
    places = torch.arange(512)
    normal, uniform = keys.normal(1, places, 200), keys.uniform(1, places, 200)
    assert stats.kstest(normal.flatten().numpy(), "norm").pvalue > 0.01
    assert stats.kstest(uniform.flatten().numpy(), "uniform").pvalue > 0.01
    assert not torch.equal(normal, keys.normal(2, places, 200))
    correlation = torch.corrcoef(normal)  # rows are places
    off_diagonal = correlation[~torch.eye(512, dtype=torch.bool)]
    assert off_diagonal.abs().max() < 6 / 200**0.5


def test_keys_tell_their_parts_apart() -> None:
    made = {keys.key(0, "noise", 12), keys.key(0, "noise", 1, 2), keys.key(0, "noise1", 2), keys.key("0", "noise", 12)}
    assert len(made) == 4
