"""The clips: layout, masks that agree with the pictures, and occlusions."""

import numpy as np
import pytest
from PIL import Image

from components.prepare.embedded import shapes_video

CLIPS = ("clip_00", "clip_01", "clip_02")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("video") / "made"
    shapes_video.generate(path, clips=len(CLIPS), seed=5)
    return path


def images(folder, clip):
    return [np.asarray(Image.open(path)).astype(int) for path in sorted((folder / "JPEGImages/480p" / clip).iterdir())]


def masks(folder, clip):
    return [np.asarray(Image.open(path)) for path in sorted((folder / "Annotations/480p" / clip).iterdir())]


def test_layout(folder):
    assert (folder / "ImageSets/2017/val.txt").read_text().split() == list(CLIPS)
    for clip in CLIPS:
        frames = sorted((folder / "JPEGImages/480p" / clip).iterdir())
        assert 16 <= len(frames) <= 24
        assert [path.name for path in frames] == [f"{number:05d}.jpg" for number in range(len(frames))]
        annotations = sorted((folder / "Annotations/480p" / clip).iterdir())
        assert [path.stem for path in annotations] == [path.stem for path in frames]
        for frame, annotation in zip(frames, annotations, strict=True):
            with Image.open(frame) as image, Image.open(annotation) as mask:
                assert image.size == mask.size == (192, 128)
                assert (image.mode, mask.mode) == ("RGB", "P")
                assert len(mask.getpalette()) == 768


@pytest.mark.parametrize(("clip", "solids"), [("clip_00", 2), ("clip_01", 3), ("clip_02", 4)])
def test_first_frame_shows_ids_1_to_o_and_later_ones_no_others(folder, clip, solids):
    first, *later = masks(folder, clip)
    ids, sizes = np.unique(first, return_counts=True)
    assert ids.tolist() == list(range(solids + 1))
    assert sizes.min() >= 100
    assert all(set(np.unique(mask)) <= set(ids) for mask in later)


@pytest.mark.parametrize("clip", CLIPS)
def test_masks_cover_what_is_coloured_in_the_pictures(folder, clip):
    """The ground is grey and the solids, but for grey ones, are not: an independent segmentation of the picture."""
    overlaps = []
    for image, mask in zip(images(folder, clip), masks(folder, clip), strict=True):
        coloured = np.ptp(image, axis=2) > 40
        ids = [number for number in np.unique(mask)[1:] if np.median(np.ptp(image[mask == number], axis=1)) > 40]
        truth = np.isin(mask, ids)
        unclear = (mask > 0) & ~truth
        overlaps.append(np.sum(coloured & truth) / np.sum((coloured | truth) & ~unclear))
    assert np.mean(overlaps) > 0.85


@pytest.mark.parametrize("clip", CLIPS)
def test_some_solid_gets_hidden_and_things_move(folder, clip):
    found = masks(folder, clip)
    sizes = np.array([[np.count_nonzero(mask == number) for number in range(1, found[0].max() + 1)] for mask in found])
    assert (sizes.min(0) / np.median(sizes, axis=0)).min() < 0.6
    columns = np.arange(192)
    middle = [
        [(columns * (mask == number).sum(0)).sum() / max(1, (mask == number).sum()) for number in (1, 2)]
        for mask in (found[0], found[-1])
    ]
    travelled = np.subtract(middle[1], middle[0])
    assert np.abs(travelled).min() > 10
    assert travelled[0] * travelled[1] < 0  # neighbours cross


def test_occlusion_hides_a_solid_whose_full_outline_is_known():
    frames, found = shapes_video.film(np.random.default_rng(1), 3)
    hidden = []
    for (camera, solids), mask in zip(frames, found, strict=True):
        for number, solid in enumerate(solids, start=1):
            alone = shapes_video.identify(camera, [solid])[0] > 0
            assert not np.any((mask == number) & ~alone)  # never more of a solid than its own outline
            hidden.append(1 - np.sum(mask == number) / alone.sum())
    assert max(hidden) >= 0.5
    assert max(hidden[:3]) <= 0.05


def test_same_seed_same_bytes(folder, tmp_path):
    shapes_video.generate(tmp_path / "again", clips=len(CLIPS), seed=5)
    one, other = (
        {path.relative_to(root): path.read_bytes() for path in root.rglob("*.*")}
        for root in (folder, tmp_path / "again")
    )
    assert one == other


def test_bad_input_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"clips is 0; it must be at least 1"):
        shapes_video.generate(tmp_path, clips=0, seed=0)
    (tmp_path / "old").touch()
    with pytest.raises(ValueError, match="is not empty"):
        shapes_video.generate(tmp_path, clips=1, seed=0)
