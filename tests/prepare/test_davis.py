"""The DAVIS reader on both of its list forms and on sequences that are not whole."""

import shutil
from pathlib import Path

import pytest

from components.prepare.readers import Listing
from components.prepare.readers.davis import read
from components.prepare.tree import grow


def listed(folder: Path) -> Listing:
    return read(grow(folder, folder.parent / "scratch"))


def test_lists_frames_and_masks_of_the_listed_sequences(davis: Path) -> None:
    listing = listed(davis)
    assert (listing.kind, listing.classes, list(listing.splits)) == ("video", [], ["val"])
    items = listing.splits["val"]
    assert [(item.values["sequence"], item.values["frame"]) for item in items] == [
        *(("camel", frame) for frame in range(3)),
        *(("bear", frame) for frame in range(4)),
    ]
    assert items[1].path == "JPEGImages/480p/camel/00001.jpg"
    assert items[0].mask.name == "Annotations/480p/camel/00000.png" and not any(item.mask for item in items[1:3])
    assert all(Path(listing.files.where(item.mask)).is_file() for item in items if item.mask)


def test_the_folder_around_it_will_do(davis: Path) -> None:
    assert listed(davis.parent).splits["val"][0].values == listed(davis).splits["val"][0].values


def test_train_is_read_where_it_is_listed(davis: Path) -> None:
    (davis / "ImageSets/2017/train.txt").write_text("bear\n")
    (davis / "ImageSets/2017/val.txt").write_text("camel\n")
    assert {split: len(items) for split, items in listed(davis).splits.items()} == {"train": 4, "val": 3}


@pytest.mark.parametrize(
    "text",
    [
        "camel\nbear\n",
        "".join(
            f"/JPEGImages/480p/{name}/{n:05d}.jpg /Annotations/480p/{name}/{n:05d}.png\n"
            for name in ("camel", "bear")
            for n in range(3)
        ),
    ],
)
def test_lists_of_2016_in_either_form(davis: Path, text: str) -> None:
    expected = listed(davis).splits
    (davis / "ImageSets/2017").rename(davis / "ImageSets/2016")
    (davis / "ImageSets/2016/val.txt").write_text(text)
    assert listed(davis).splits == expected


def test_2017_comes_before_2016(davis: Path) -> None:
    (davis / "ImageSets/2016").mkdir()
    (davis / "ImageSets/2016/val.txt").write_text("bear\n")
    assert len(listed(davis).splits["val"]) == 7


def test_a_sequence_without_its_first_mask_is_named(davis: Path) -> None:
    (davis / "Annotations/480p/bear/00000.png").unlink()
    with pytest.raises(
        ValueError, match="sequence 'bear'.*no mask of its first frame, Annotations/480p/bear/00000.png"
    ):
        listed(davis)


def test_a_sequence_that_is_not_there_or_has_one_frame_is_named(davis: Path) -> None:
    for number in (1, 2):
        (davis / f"JPEGImages/480p/camel/{number:05d}.jpg").unlink()
    with pytest.raises(ValueError, match="sequence 'camel'.* has 1 frames .*at least 2"):
        listed(davis)
    shutil.rmtree(davis / "JPEGImages/480p/camel")
    with pytest.raises(ValueError, match="sequence 'camel'.* has 0 frames"):
        listed(davis)


def test_a_mask_without_frame_is_named(davis: Path) -> None:
    (davis / "JPEGImages/480p/bear/00002.jpg").unlink()
    with pytest.raises(ValueError, match="'bear'.* has a mask .*/bear/00002.png but no frame"):
        listed(davis)


def test_an_empty_list_and_a_missing_one_are_named(davis: Path) -> None:
    (davis / "ImageSets/2017/val.txt").write_text("\n\n")
    with pytest.raises(ValueError, match="val.txt' lists no sequence"):
        listed(davis)
    (davis / "ImageSets/2017/val.txt").unlink()
    with pytest.raises(ValueError, match=r"no ImageSets/2017/val.txt; DAVIS is JPEGImages/480p/<sequence>"):
        listed(davis)
