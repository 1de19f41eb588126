"""From ids to soft labels and back, in both profiles."""

import numpy as np
import pytest
import torch

from components.davis.labels import harden, soften
from components.davis.view import Profile

BOTH: tuple[Profile, Profile] = ("paper", "clean")


@pytest.mark.parametrize("profile", BOTH)
def test_whole_tokens_survive_the_round_trip(profile: Profile) -> None:
    ids_HW = np.kron(np.random.default_rng(0).integers(0, 3, (3, 4), dtype=np.uint8), np.ones((16, 16), dtype=np.uint8))
    labels_Khw = soften(ids_HW, 2, (3, 4), profile)
    assert labels_Khw.shape == (3, 3, 4)
    centres = harden(labels_Khw, (48, 64), 16, profile)[8::16, 8::16]
    assert np.array_equal(centres, ids_HW[8::16, 8::16])


def test_small_objects_vanish_in_paper_and_keep_their_share_in_clean() -> None:
    """A 2×3 object in the corner of a 16×16 token, with the highest id."""
    ids_HW = np.zeros((32, 32), dtype=np.uint8)
    ids_HW[20:, 20:] = 1
    ids_HW[1:3, 1:4] = 2
    paper, clean = (soften(ids_HW, 2, (2, 2), profile) for profile in BOTH)
    assert paper[2].sum() == 0
    assert clean[2, 0, 0] == pytest.approx(6 / 256)
    assert clean[1, 1, 1] == pytest.approx(144 / 256)
    torch.testing.assert_close(clean.sum(0), torch.ones(2, 2))
    torch.testing.assert_close(paper.sum(0), torch.ones(2, 2))


def test_paper_brings_faded_objects_back() -> None:
    """Evidence of .01 against .99: stretched to 0..1 it wins its token, as it is it does not."""
    labels_Khw = torch.tensor([[[1.0, 1.0, 0.99]], [[0.0, 0.0, 0.01]]])
    paper, clean = (harden(labels_Khw, (8, 24), 8, profile) for profile in BOTH)
    assert paper[4].tolist() == [0] * 16 + [1] * 8
    assert not clean.any()


@pytest.mark.parametrize("profile", BOTH)
def test_an_object_that_fills_the_frame_is_no_division_by_zero(profile: Profile) -> None:
    full = torch.stack([torch.zeros(2, 3), torch.ones(2, 3)])
    assert (harden(full, (16, 24), 8, profile) == 1).all()


@pytest.mark.parametrize("profile", BOTH)
def test_lowest_id_wins_a_tie(profile: Profile) -> None:
    labels_Khw = torch.full((3, 2, 2), 0.25)
    labels_Khw[1:] = 0.375
    assert (harden(labels_Khw, (8, 8), 4, profile) == 1).all()


def test_paper_decides_where_the_encoder_looked_and_clean_where_the_frame_is() -> None:
    """A border between two tokens of 4 pixels in a frame 3 times as large: on the pixels of the former, or its own."""
    labels_Khw = torch.tensor([[[1.0, 0.3]], [[0.0, 0.7]]])
    paper, clean = (harden(labels_Khw, (12, 24), 4, profile)[6] for profile in BOTH)
    stretched = 4 * (0.5 + 0.5)  # .3 and .7 become 0 and 1, which meet half-way between the tokens
    assert paper.tolist() == [int(x >= 3 * stretched) for x in range(24)]
    crossing = 24 * (0.25 + 0.5 * (0.5 / 0.7)) - 0.5  # bilinear between the tokens' centres at 6 and 18
    assert clean.tolist() == [int(x > crossing) for x in range(24)]
