"""The CIFAR-10 reader on files as its makers pickled them; torchvision's CIFAR10 is the witness. And on pickles that are programs."""

import io
import os
import pickle
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from torchvision.datasets import CIFAR10

from components.images.store import Store
from components.prepare.readers import Listing
from components.prepare.readers.cifar10 import read
from components.prepare.tree import grow

from . import python2
from .test_run import digests, prepare

NAMES = ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]
ROWS = {**{f"data_batch_{number}": 5 for number in range(1, 6)}, "test_batch": 12}


def batch(name: str, by_columns: bool = False) -> dict[str, Any]:
    """Rows of one file. Labels are in no order, and a name comes again in other files, as in the original."""
    random = np.random.default_rng(len(name) + ord(name[-1]))
    data = random.integers(0, 256, (ROWS[name], 3072), dtype=np.uint8)
    labels = random.integers(0, 10, ROWS[name]).tolist()
    names = [f"{NAMES[label]}_s_{row:06d}.png" for row, label in enumerate(labels)]
    data = np.asfortranarray(data) if by_columns else data
    return {"batch_label": f"batch {name}", "labels": labels, "data": data, "filenames": names}


@pytest.fixture
def cifar(tmp_path: Path) -> Path:
    folder = tmp_path / "raw/cifar-10-batches-py"
    folder.mkdir(parents=True)
    for name in ROWS:
        (folder / name).write_bytes(python2.dumps(batch(name, by_columns=name == "data_batch_2")))
    meta = {"num_cases_per_batch": 5, "label_names": NAMES, "num_vis": 3072}
    (folder / "batches.meta").write_bytes(python2.dumps(meta))
    (folder / "readme.html").write_text("<a/>")
    return folder


def listed(folder: Path) -> Listing:
    return read(grow(folder, folder.parent / "scratch"))


class Theirs(CIFAR10):
    """torchvision's, without the checksums of the real files."""

    train_list = [(name, None) for name, _ in CIFAR10.train_list]
    test_list = [(name, None) for name, _ in CIFAR10.test_list]
    meta = {**CIFAR10.meta, "md5": None}


def test_torchvision_has_the_same_pixels_labels_and_order(cifar: Path) -> None:
    listing = listed(cifar)
    assert (listing.kind, listing.classes, list(listing.splits)) == ("images", NAMES, ["train", "test"])
    for split, items in listing.splits.items():
        theirs = Theirs(cifar.parent, train=split == "train")
        assert theirs.classes == listing.classes
        assert [each.values["label"] for each in items] == theirs.targets
        assert [each.group for each in items] == [NAMES[label] for label in theirs.targets]
        for each, (image, _) in zip(items, theirs, strict=True):
            with Image.open(io.BytesIO(listing.files.read(each.file))) as ours:
                assert ours.format == "PNG"
                np.testing.assert_array_equal(np.asarray(ours), np.asarray(image))


def test_a_path_says_split_class_name_file_and_row(cifar: Path) -> None:
    listing = listed(cifar)
    labels = batch("data_batch_3")["labels"]
    each = listing.splits["train"][11]
    assert each.path == f"train/{NAMES[labels[1]]}/{NAMES[labels[1]]}_s_000001_3_00001.png"
    assert listing.files.where(each.file) == f"{cifar / 'data_batch_3'}, row 1"
    assert listing.splits["test"][11].path.endswith("_s_000011_00011.png")
    paths = [each.path for items in listing.splits.values() for each in items]
    assert len(set(paths)) == len(paths) == 37


def test_archive_folder_and_archive_in_a_folder_are_prepared_to_the_same_bytes(cifar: Path, tmp_path: Path) -> None:
    (tmp_path / "download").mkdir()
    archive = Path(shutil.make_archive(str(tmp_path / "download/cifar-10-python"), "gztar", cifar.parent))
    assert prepare(cifar, tmp_path / "a/out", "cifar10").images == 37
    for place, raw in {"b": cifar.parent, "c": archive, "d": archive.parent}.items():
        prepare(raw, tmp_path / place / "out", "cifar10")
        assert digests(tmp_path / place / "out") == digests(tmp_path / "a/out")
    store = Store(tmp_path / "a/out/toy", "test")
    expected = batch("test_batch")
    assert store.column("label").tolist() == expected["labels"]
    np.testing.assert_array_equal(np.asarray(store.image(5)), expected["data"][5].reshape(3, 32, 32).transpose(1, 2, 0))


def test_a_missing_batch_is_for_the_counts_to_tell(cifar: Path) -> None:
    (cifar / "data_batch_2").unlink()
    (cifar / "test_batch").unlink()
    items = listed(cifar).splits
    assert {split: len(part) for split, part in items.items()} == {"train": 20}
    assert items["train"][5].path.endswith("_3_00000.png")  # its own number, whatever lies beside it


@pytest.mark.parametrize("gone", [["batches.meta"], list(ROWS)])
def test_missing_names_or_batches_are_told(cifar: Path, gone: list[str]) -> None:
    for name in gone:
        (cifar / name).unlink()
    with pytest.raises(ValueError, match=r"has no batches.meta with batches beside it; the layout is cifar-10-python"):
        listed(cifar)


class Malice:
    def __init__(self, trace: Path) -> None:
        self.trace = trace

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (f"touch {self.trace}",)


def write(folder: Path, name: str, value: Any) -> None:
    (folder / name).write_bytes(python2.dumps(value))


def test_a_pickle_that_is_a_program_is_not_run(cifar: Path, tmp_path: Path) -> None:
    malice = Malice(tmp_path / "trace")
    for name, value in (("data_batch_1", {**batch("data_batch_1"), "labels": malice}), ("batches.meta", [malice])):
        before = (cifar / name).read_bytes()
        write(cifar, name, value)
        with pytest.raises(ValueError, match=rf"/{name}' is no pickle of arrays: .*it names posix.system"):
            listed(cifar)
        (cifar / name).write_bytes(before)
    assert not malice.trace.exists()
    pickle.loads(python2.dumps(malice))
    assert malice.trace.exists()  # as any other reader does


@pytest.mark.parametrize(
    "program",
    [
        b"cnumpy\nload\n.",
        b"cbuiltins\neval\n(U\x011tR.",
        b"cnumpy.core.multiarray\n_reconstruct.__globals__\n.",  # a way round in newer protocols
        b"\x80\x04\x8c\x16numpy.core.multiarray\x8c\x0c_reconstruct\x93.",
        b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\ndtype\n(I9tU\x01btR.",
        b"(lp0\n",
        b"",
    ],
)
def test_other_names_and_damaged_pickles_are_refused(cifar: Path, program: bytes) -> None:
    (cifar / "test_batch").write_bytes(program)
    with pytest.raises(ValueError, match=r"/test_batch' is no pickle of arrays: .*; download it again"):
        listed(cifar)


def test_a_file_that_is_cut_off_is_named(cifar: Path) -> None:
    path = cifar / "test_batch"
    path.write_bytes(path.read_bytes()[:-2000])
    with pytest.raises(ValueError, match="/test_batch' is no pickle of arrays"):
        listed(cifar)


DATA = np.zeros((12, 3072), np.uint8)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"data": DATA.astype(np.float32)}, "is no pickle of arrays: .*an array is not of uint8"),
        ({"data": DATA[:, :-1]}, r"must hold 'data', an array \[N, 3072\] of uint8"),
        ({"data": [1]}, r"must hold 'data', an array"),
        ({"labels": ["cat"] * 12}, ".* and the lists 'labels' and 'filenames'"),
        ({"filenames": None}, ".* and the lists 'labels' and 'filenames'"),
        ({"data": DATA[:5]}, "has 5 images, 12 labels and 12 names"),
        ({"labels": [0] * 11 + [10]}, "has label 10; labels are 0 to 9"),
        ({"labels": [0] * 11 + [-1]}, "has label -1; labels are 0 to 9"),
    ],
)
def test_batches_of_something_else_are_refused(cifar: Path, values: dict[str, Any], message: str) -> None:
    write(cifar, "test_batch", {**batch("test_batch"), **values})
    with pytest.raises(ValueError, match=f"/test_batch' {message}"):
        listed(cifar)


@pytest.mark.parametrize("names", [None, [], ["cat"] * 10, [1], ["a/b"]])
def test_names_of_something_else_are_refused(cifar: Path, names: Any) -> None:
    write(cifar, "batches.meta", {"label_names": names})
    with pytest.raises(ValueError, match="/batches.meta' must hold 'label_names', a list of different names"):
        listed(cifar)
