"""The CIFAR-100 reader on files as its makers pickled them; torchvision's CIFAR100 is the witness."""

import io
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from torchvision.datasets import CIFAR100

from components.prepare.card import sizes
from components.prepare.published import missing
from components.prepare.readers import Listing
from components.prepare.readers.cifar100 import PUBLISHED, read
from components.prepare.tree import grow

from . import python2

FINE = [f"fine_{number:02d}" for number in range(100)][::-1]  # the reader sorts nothing
COARSE = [f"coarse_{number:02d}" for number in range(20)]


class Theirs(CIFAR100):
    """torchvision's, without the checksums of the real files."""

    train_list = [("train", None)]
    test_list = [("test", None)]
    meta = {**CIFAR100.meta, "md5": None}


@pytest.fixture
def cifar(tmp_path: Path) -> Path:
    folder = tmp_path / "raw/cifar-100-python"
    folder.mkdir(parents=True)
    for place, (split, rows) in enumerate({"train": 200, "test": 100}.items()):
        random = np.random.default_rng(place)
        fine = random.permutation(rows) % 100
        values = {
            "filenames": [f"{FINE[label]}_s_{row % 3:06d}.png" for row, label in enumerate(fine)],
            "batch_label": f"{split} batch 1 of 1",
            "fine_labels": fine.tolist(),
            "coarse_labels": (fine % 20).tolist(),
            "data": random.integers(0, 256, (rows, 3072), dtype=np.uint8),
        }
        (folder / split).write_bytes(python2.dumps(values))
    (folder / "meta").write_bytes(python2.dumps({"fine_label_names": FINE, "coarse_label_names": COARSE}))
    (folder / "file.txt~").touch()
    return folder


def listed(folder: Path) -> Listing:
    return read(grow(folder, folder.parent / "scratch"))


def test_torchvision_has_the_same_pixels_and_fine_labels(cifar: Path) -> None:
    listing = listed(cifar)
    assert (listing.kind, listing.classes, list(listing.splits)) == ("images", FINE, ["train", "test"])
    for split, items in listing.splits.items():
        theirs = Theirs(cifar.parent, train=split == "train")
        assert theirs.classes == listing.classes
        assert [each.values["label"] for each in items] == theirs.targets
        for each, (image, _) in zip(items, theirs, strict=True):
            with Image.open(io.BytesIO(listing.files.read(each.file))) as ours:
                np.testing.assert_array_equal(np.asarray(ours), np.asarray(image))


def test_paths_are_unique_though_names_are_not(cifar: Path) -> None:
    items = listed(cifar).splits["train"]
    assert len({each.path for each in items}) == len(items)
    assert items[7].path == f"train/{items[7].group}/{items[7].group}_s_000001_00007.png"


def test_archive_and_folder_give_the_same(cifar: Path, tmp_path: Path) -> None:
    archive = Path(shutil.make_archive(str(tmp_path / "cifar-100-python"), "gztar", cifar.parent))
    first, second = listed(cifar), listed(archive)
    for split in ("train", "test"):
        assert [(each.path, each.values, first.files.read(each.file)) for each in first.splits[split]] == [
            (each.path, each.values, second.files.read(each.file)) for each in second.splits[split]
        ]


def test_the_counts_are_those_published(cifar: Path) -> None:
    assert missing(PUBLISHED, sizes(listed(cifar))) == [
        "split train has 200 images, published are 50000",
        "split test has 100 images, published are 10000",
    ]


def test_another_layout_is_described(tmp_path: Path) -> None:
    (tmp_path / "train").mkdir()
    with pytest.raises(ValueError, match=r"has no meta with batches beside it; the layout is cifar-100-python.tar.gz"):
        listed(tmp_path)
