"""What a mask's values mean, which frames count, and how large a frame enters the encoder."""

import os
from collections.abc import Callable
from pathlib import Path, PurePosixPath

import numpy as np
import pytest
import torch
from PIL import Image

from components.davis.sequence import Sequence, check_numbers, sequences
from components.davis.view import Profile, grid_size, pixels
from components.images import store

MakeDataset = Callable[..., Path]
MakeMask = Callable[[np.ndarray, str], bytes]

PICTURE = np.random.default_rng(0).integers(0, 256, (6, 8, 3), dtype=np.uint8)


def ids(*values: int) -> np.ndarray:
    """A 6×8 mask of zeros whose first row starts with `values`."""
    mask = np.zeros((6, 8), dtype=np.uint8)
    mask[0, : len(values)] = values
    return mask


@pytest.fixture
def clip(make_dataset: MakeDataset) -> Callable[..., Sequence]:
    """The one sequence of a dataset made of the given masks."""

    def make(*masks: bytes) -> Sequence:
        (sequence,) = sequences(make_dataset({"swan": [(PICTURE, mask) for mask in masks]}))
        return sequence

    return make


def test_ids_of_a_palette_mask_with_void_as_background(clip: Callable[..., Sequence], png: MakeMask) -> None:
    sequence = clip(png(ids(1, 2, 255), "P"), png(ids(2, 1, 255), "P"))
    assert sequence.objects == 2
    assert sequence.truth(0).tolist() == ids(1, 2).tolist()
    assert sequence.truth(1).tolist() == ids(2, 1).tolist()


@pytest.mark.parametrize("mode", ["L", "1", "P"])
def test_0_and_255_is_one_object(clip: Callable[..., Sequence], png: MakeMask, mode: str) -> None:
    """DAVIS 2016, grey or with a palette; the id-wise reading would be 255 objects, or void only."""
    sequence = clip(png(ids(255, 255), mode), png(ids(0, 255), mode))
    assert sequence.objects == 1
    assert sequence.truth(0).tolist() == ids(1, 1).tolist()
    assert sequence.truth(1).tolist() == ids(0, 1).tolist()


def test_grey_ids_are_ids(clip: Callable[..., Sequence], png: MakeMask) -> None:
    sequence = clip(png(ids(2, 1), "L"), png(ids(2, 255), "L"))
    assert sequence.objects == 2
    assert sequence.truth(1).tolist() == ids(2).tolist()


def test_first_and_last_frame_and_those_without_mask_do_not_count(clip: Callable[..., Sequence], png: MakeMask) -> None:
    mask = png(ids(1), "P")
    assert clip(mask, mask, b"", mask, mask).scored == [1, 3]


def test_two_frames_leave_nothing_to_score(clip: Callable[..., Sequence], png: MakeMask) -> None:
    mask = png(ids(1), "P")
    assert clip(mask, mask).scored == []


def test_the_last_annotated_frame_does_not_count_wherever_it_is(clip: Callable[..., Sequence], png: MakeMask) -> None:
    """The official tool knows masks only: it drops the last of them."""
    mask = png(ids(1), "P")
    assert clip(mask, mask, mask, mask, b"").scored == [1, 2]


def test_a_frame_that_is_missing_is_named() -> None:
    paths = [PurePosixPath(f"JPEGImages/480p/swan/{number:05d}.jpg") for number in (0, 1, 2, 4, 5)]
    with pytest.raises(ValueError, match=r"'swan': after JPEGImages/480p/swan/00002.jpg comes no 00003.jpg; a missing"):
        check_numbers("swan", paths)


@pytest.mark.parametrize("stems", [("00000", "00005", "00010"), ("7", "8", "9"), ("b", "a", "x"), ("00000",)], ids=str)
def test_other_numbers_miss_nothing(stems: tuple[str, ...]) -> None:
    check_numbers("swan", [PurePosixPath(f"swan/{stem}.jpg") for stem in stems])


def test_objects_that_come_up_later_are_background_and_named_once(
    clip: Callable[..., Sequence], png: MakeMask, capsys: pytest.CaptureFixture[str]
) -> None:
    sequence = clip(png(ids(1), "P"), png(ids(1, 2, 9), "P"), png(ids(3, 1), "P"))
    assert sequence.truth(1).tolist() == ids(1).tolist()
    assert sequence.truth(2).tolist() == ids(0, 1).tolist()
    told = capsys.readouterr().out
    assert (
        "swan: mask of JPEGImages/480p/swan/00005.jpg has object ids that the sequence's first mask lacks (2, 9)"
        in told
    )
    assert len(told.splitlines()) == 1


def test_missing_first_mask_is_named(clip: Callable[..., Sequence], png: MakeMask) -> None:
    with pytest.raises(ValueError, match=r"'swan' has no mask for its first frame JPEGImages/480p/swan/00000\.jpg"):
        clip(b"", png(ids(1), "P"), b"")


@pytest.mark.parametrize(("values", "found"), [((1, 3), "1, 3"), ((2,), "2"), ((0,), "none")], ids=str)
def test_ids_must_be_contiguous(
    clip: Callable[..., Sequence], png: MakeMask, values: tuple[int, ...], found: str
) -> None:
    with pytest.raises(ValueError, match=rf"'swan'.* are {found}; they must be 1, 2, … without a gap"):
        clip(png(ids(*values), "P"))


def test_masks_of_another_size_are_named(clip: Callable[..., Sequence], png: MakeMask) -> None:
    sequence = clip(png(ids(1), "P"), png(np.ones((6, 9), dtype=np.uint8), "P"))
    with pytest.raises(ValueError, match=r"swan/00005\.jpg: frame or mask has 9×6 pixels .* first mask 8×6"):
        sequence.truth(1)


def test_frames_of_another_size_are_named(make_dataset: MakeDataset, png: MakeMask) -> None:
    (sequence,) = sequences(make_dataset({"swan": [(PICTURE[:5], png(ids(1), "P"))]}))
    with pytest.raises(ValueError, match=r"swan/00000\.jpg: frame or mask has 8×5 pixels"):
        sequence.image(0)


def test_other_kinds_are_refused(tmp_path: Path) -> None:
    splits = store.write(tmp_path / "digits", "images", {"val": []}, 16)
    about = {"name": "digits", "kind": "images", "format": "digits", "classes": [], "skipped": []}
    store.write_card(tmp_path / "digits", {**about, "splits": splits, "mean": [0.5] * 3, "std": [0.2] * 3})
    with pytest.raises(ValueError, match="'digits' is of kind 'images'; davis needs kind 'video'"):
        sequences(tmp_path / "digits")


def test_no_frames_are_refused(make_dataset: MakeDataset) -> None:
    with pytest.raises(ValueError, match="'void' holds no frame"):
        sequences(make_dataset({}, "void"))


@pytest.mark.parametrize(
    ("width", "short_side", "patch", "paper", "clean"),
    [
        (854, 480, 16, (30, 52), (30, 53)),
        (854, 120, 4, (30, 52), (30, 53)),
        (910, 480, 16, (30, 56), (30, 57)),
        (911, 480, 16, (30, 56), (30, 57)),
        (1152, 480, 16, (30, 72), (30, 72)),
        (1130, 480, 16, (30, 68), (30, 71)),
        (854, 480, 14, (34, 60), (34, 61)),
        (480, 480, 16, (30, 30), (30, 30)),
        (480, 24, 4, (6, 6), (6, 6)),
    ],
)
def test_grid_is_dinos(width: int, short_side: int, patch: int, paper: tuple[int, int], clean: tuple[int, int]) -> None:
    """The widths of DAVIS at 480 lines; patch 14 fits no side of DINO's; upright frames are the same turned."""
    expected: dict[Profile, tuple[int, int]] = {"paper": paper, "clean": clean}
    for profile, grid in expected.items():
        assert grid_size(480, width, short_side, patch, profile) == grid
        assert grid_size(width, 480, short_side, patch, profile) == grid[::-1]


def test_paper_normalises_red_with_228() -> None:
    picture = Image.new("RGB", (16, 12), (255, 0, 128))
    for profile, red in (("paper", 0.228), ("clean", 0.229)):
        got = pixels(picture, 12, 16, profile)[0, :, 5, 7]
        expected = [(1 - 0.485) / red, (0 - 0.456) / 0.224, (128 / 255 - 0.406) / 0.225]
        torch.testing.assert_close(got, torch.tensor(expected))


def test_paper_resize_skips_pixels_and_clean_averages_them() -> None:
    """One-pixel stripes shrunk by 4: without antialiasing the mean of the two middle pixels, with it the mean of all."""
    stripes = np.zeros((16, 16, 3), dtype=np.uint8)
    stripes[:, 1::4] = 255
    middle = (127.5 / 255 - 0.456) / 0.224, (255 / 4 / 255 - 0.456) / 0.224
    paper, clean = (pixels(Image.fromarray(stripes), 4, 4, profile)[0, 1] for profile in ("paper", "clean"))
    torch.testing.assert_close(paper, torch.full((4, 4), middle[0]), atol=0.01, rtol=0)
    torch.testing.assert_close(clean[:, 1:3], torch.full((4, 2), middle[1]), atol=0.1, rtol=0)


@pytest.mark.skipif("STOP_SHARED_DATA" not in os.environ, reason="STOP_SHARED_DATA names no folder with DAVIS")
def test_reads_real_davis(tmp_path: Path) -> None:
    """DAVIS-2016 masks as published: six videos, one object each, every frame annotated."""
    root = Path(os.environ["STOP_SHARED_DATA"]) / "DAVIS"
    frames = sorted((root / "JPEGImages" / "480p").rglob("*.jpg"))
    rows = [
        {
            "path": str(path.relative_to(root)),
            "image": path.read_bytes(),
            "sequence": path.parent.name,
            "frame": int(path.stem),
            "mask": (root / "Annotations" / "480p" / path.parent.name / f"{path.stem}.png").read_bytes(),
        }
        for path in frames
    ]
    splits = store.write(tmp_path / "davis", "video", {"val": rows}, 64)
    about = {"name": "davis", "kind": "video", "format": "davis", "classes": [], "skipped": []}
    store.write_card(tmp_path / "davis", {**about, "splits": splits, "mean": [0.5] * 3, "std": [0.2] * 3})
    videos = sequences(tmp_path / "davis")
    assert [(video.name, len(video)) for video in videos] == [
        ("blackswan", 50),
        ("car-shadow", 40),
        ("drift-chicane", 52),
        ("kite-surf", 50),
        ("libby", 49),
        ("motocross-jump", 40),
    ]
    for video in videos:
        assert (video.objects, video.size, len(video.scored)) == (1, (480, 854), len(video) - 2)
        truth_HW = video.truth(len(video) - 1)
        with Image.open(root / "Annotations" / "480p" / video.name / f"{video.paths[-1].stem}.png") as mask:
            assert np.array_equal(truth_HW, np.array(mask) == 255)
