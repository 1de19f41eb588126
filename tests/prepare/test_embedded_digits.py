"""The digits folder against scikit-learn's own arrays."""

import numpy as np
import pytest
from PIL import Image
from sklearn.datasets import load_digits

from components.prepare.embedded import digits


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("digits") / "made"
    digits.generate(path, seed=0)
    return path


def test_every_scan_lies_once_under_its_label(folder):
    _, labels = load_digits(return_X_y=True)
    found = [(int(path.stem), path.parent.name, path.parent.parent.name) for path in folder.rglob("*.png")]
    assert sorted(number for number, _, _ in found) == list(range(1797))
    assert all(labels[number] == int(label) for number, label, _ in found)
    assert sum(split == "test" for _, _, split in found) == 500


def test_splits_keep_the_shares_of_the_classes(folder):
    for digit in range(10):
        train, test = (len(list((folder / split / str(digit)).iterdir())) for split in ("train", "test"))
        assert test / (train + test) == pytest.approx(500 / 1797, abs=0.004)


def test_pictures_are_the_scans_four_times_larger(folder):
    scans, _ = load_digits(return_X_y=True)
    for path in list(folder.rglob("*.png"))[::25]:
        image = np.asarray(Image.open(path))
        assert image.shape == (32, 32, 3)
        assert (image == image[..., :1]).all()
        blocks = image[..., 0].reshape(8, 4, 8, 4).mean((1, 3))
        assert np.corrcoef(blocks.ravel(), scans[int(path.stem)])[0, 1] > 0.97


def test_seed_decides_the_split_and_nothing_else(folder, tmp_path):
    for name, seed in (("same", 0), ("other", 1)):
        digits.generate(tmp_path / name, seed=seed)
    contents = [
        {path.relative_to(root): path.read_bytes() for path in root.rglob("*.png")}
        for root in (folder, tmp_path / "same")
    ]
    assert contents[0] == contents[1]
    tests = [{path.name for path in (root / "test").rglob("*.png")} for root in (folder, tmp_path / "other")]
    assert tests[0] != tests[1]


def test_a_folder_in_use_is_refused(tmp_path):
    (tmp_path / "old").touch()
    with pytest.raises(ValueError, match="is not empty"):
        digits.generate(tmp_path, seed=0)
