"""Who sees which image when."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from components.images.store import Store
from components.pretrain.batches import Batches
from components.pretrain.contract import PretrainParams


def batches(tiny: dict[str, Any], toy: Path, rank: int = 0, world: int = 1) -> Batches:
    return Batches(PretrainParams(**tiny), Store(toy, "train"), rank, world)


def test_every_image_comes_once_per_epoch_and_to_one_worker(tiny: dict[str, Any], toy_images: Path) -> None:
    shares = [[batches(tiny, toy_images, rank, 2).indices(step) for step in range(3)] for rank in range(2)]
    seen = np.concatenate([np.concatenate(share) for share in shares])
    assert sorted(seen) == list(range(48))
    whole = batches(tiny, toy_images)
    for step in range(6):
        parts = [batches(tiny, toy_images, rank, 2).indices(step) for rank in range(2)]
        assert np.array_equal(np.concatenate(parts), whole.indices(step))
    assert not np.array_equal(whole.indices(0), whole.indices(3))  # a new order in the next epoch


def test_pixels_do_not_depend_on_workers_or_on_where_a_run_starts(tiny: dict[str, Any], toy_images: Path) -> None:
    whole = list(batches(tiny, toy_images).steps(0, 6))
    resumed = list(batches(tiny, toy_images).steps(4, 6))
    halves = [list(batches(tiny, toy_images, rank, 2).steps(0, 6)) for rank in range(2)]
    for step in range(6):
        assert torch.equal(torch.cat([half[step].pixels for half in halves]), whole[step].pixels)
        assert torch.equal(torch.cat([half[step].places for half in halves]), whole[step].places)
    assert torch.equal(resumed[0].pixels, whole[4].pixels)


def test_a_batch_larger_than_the_split_is_refused(tiny: dict[str, Any], toy_images: Path) -> None:
    tiny["optimisation"]["global_batch_size"] = 64
    with pytest.raises(ValueError, match="global_batch_size is 64, but the train split of 'toy' has 48 images"):
        batches(tiny, toy_images)
