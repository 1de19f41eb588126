"""The ImageNet reader on every form that people have it in; torchvision, which unpacks the same archives itself, is the witness."""

import io
import shutil
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torchvision.datasets.imagenet as official
from PIL import Image
from scipy.io import savemat
from torchvision.datasets import ImageFolder, ImageNet

from components.prepare.readers import Listing
from components.prepare.readers.imagenet import read
from components.prepare.tree import grow

from .test_run import digests, prepare

# The devkit's order is not that of WordNet ids, and synsets that are no classes stand among the others.
SYNSETS = [
    (1, "n02105855", "Shetland sheepdog, Shetland", 0),
    (2, "n01440764", "tench, Tinca tinca", 0),
    (3, "n02012849", "crane", 0),
    (4, "n03126707", "crane", 0),  # another one
    (1001, "n00001740", "entity", 2),
    (1002, "n01503061", "bird", 1),
]
WNIDS = ["n01440764", "n02012849", "n02105855", "n03126707"]
VAL = [3, 1, 4, 2, 2, 3, 1, 4]  # by the devkit's ids
VAL_WNIDS = [SYNSETS[number - 1][1] for number in VAL]


def encoded(seed: int, mode: str = "RGB", kind: str = "JPEG") -> bytes:
    levels = np.random.default_rng(seed).integers(0, 256, (9, 8 + seed % 3, len(mode)), dtype=np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(levels, mode).save(buffer, kind)
    return buffer.getvalue()


TRAIN = {
    f"train/{wnid}/{wnid}_{number}.JPEG": encoded(100 * place + number)
    for place, wnid in enumerate(WNIDS)
    for number in (10, 9, 1002)[: 2 + place % 2]
} | {
    "train/n02105855/n02105855_2933.JPEG": encoded(1, "RGBA", "PNG"),  # as in the original
    "train/n01440764/n01440764_9.JPEG": encoded(2, "CMYK"),
}
IMAGES = {f"ILSVRC2012_val_{number:08d}.JPEG": encoded(500 + number) for number in range(1, 9)}
NESTED = TRAIN | {f"val/{wnid}/{name}": IMAGES[name] for wnid, name in zip(VAL_WNIDS, IMAGES, strict=True)}


def write(folder: Path, files: dict[str, bytes]) -> Path:
    for name, data in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    return folder


def tar(files: dict[str, bytes], mode: str = "w") -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode=mode) as archive:  # type: ignore[call-overload]
        for name, data in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return buffer.getvalue()


def devkit(prefix: str = "ILSVRC2012_devkit_t12/data/") -> dict[str, bytes]:
    kinds = [
        ("ILSVRC2012_ID", object),
        ("WNID", object),
        ("words", object),
        ("gloss", object),
        ("num_children", object),
    ]
    synsets = np.array([[(number, wnid, words, "…", children)] for number, wnid, words, children in SYNSETS], kinds)
    table = io.BytesIO()
    savemat(table, {"synsets": synsets})
    lines = "".join(f"{number}\n" for number in VAL)
    return {f"{prefix}meta.mat": table.getvalue(), f"{prefix}ILSVRC2012_validation_ground_truth.txt": lines.encode()}


def nested(folder: Path) -> Path:
    return write(folder, NESTED | {"test/ILSVRC2012_test_00000001.JPEG": encoded(7)})


def wrapped(folder: Path) -> Path:
    nested(folder / "imagenet")
    return folder


def flat(folder: Path) -> Path:
    return write(folder, TRAIN | {f"val/{name}": data for name, data in IMAGES.items()} | devkit())


def kaggle(folder: Path) -> Path:
    rows = [f"{name[:-5]},{wnid} 1 2 3 4 {wnid} 5 6 7 8 \n" for name, wnid in zip(IMAGES, VAL_WNIDS, strict=True)]
    files = TRAIN | {f"{split}/{name}": data for split in ("val", "test") for name, data in IMAGES.items()}
    boxes = {f"ILSVRC/Annotations/CLS-LOC/val/{name[:-5]}.xml": b"<box/>" for name in IMAGES}
    boxes["LOC_val_solution.csv"] = ("ImageId,PredictionString\n" + "".join(rows[::-1])).encode()
    return write(folder, {f"ILSVRC/Data/CLS-LOC/{name}": data for name, data in files.items()} | boxes)


def archives() -> dict[str, bytes]:
    classes = {
        f"{wnid}.tar": tar({name.rpartition("/")[2]: data for name, data in TRAIN.items() if wnid in name})
        for wnid in reversed(WNIDS)
    }
    return {
        "ILSVRC2012_img_train.tar": tar(classes),
        "ILSVRC2012_img_val.tar": tar(dict(reversed(IMAGES.items()))),
        "ILSVRC2012_devkit_t12.tar.gz": tar(devkit(), "w:gz"),
    }


def downloaded(folder: Path) -> Path:
    boxes = tar({f"val/{name[:-5]}.xml": b"<box/>" for name in IMAGES}, "w:gz")
    return write(folder, archives() | {"ILSVRC2012_bbox_val_v3.tgz": boxes})


def packed(folder: Path) -> Path:
    kaggle(folder / "unpacked")
    return Path(shutil.make_archive(str(folder / "imagenet"), "gztar", folder / "unpacked"))


def zipped(folder: Path) -> Path:
    kaggle(folder / "unpacked")
    return Path(shutil.make_archive(str(folder / "imagenet-object-localization-challenge"), "zip", folder / "unpacked"))


def listed(folder: Path) -> Listing:
    return read(grow(folder, folder.parent / "scratch"))


def content(listing: Listing) -> dict[str, list[tuple[str, dict[str, Any], str, bytes]]]:
    return {
        split: [(each.path, each.values, each.group, listing.files.read(each.file)) for each in items]
        for split, items in listing.splits.items()
    }


FORMS = [nested, wrapped, flat, kaggle, downloaded, packed, zipped]


@pytest.mark.parametrize("form", FORMS)
def test_every_form_gives_the_same_images_in_the_same_order(form: Callable[[Path], Path], tmp_path: Path) -> None:
    listing = listed(form(tmp_path / "raw"))
    assert (listing.kind, listing.classes) == ("images", WNIDS)
    assert content(listing) == {
        split: [
            (path, {"label": WNIDS.index(path.split("/")[1])}, path.split("/")[1], NESTED[path])
            for path in sorted(NESTED)
            if path.startswith(split)
        ]
        for split in ("train", "val")
    }


def test_torchvision_unpacks_the_archives_to_the_same_labels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = downloaded(tmp_path / "raw")
    ours = listed(folder)
    (folder / "ILSVRC2012_bbox_val_v3.tgz").unlink()
    monkeypatch.setattr(
        official, "ARCHIVE_META", {name: (file, None) for name, (file, _) in official.ARCHIVE_META.items()}
    )
    for split in ("train", "val"):
        theirs = ImageNet(folder, split)
        assert theirs.wnids == ours.classes
        assert [(str(folder / each.path), each.values["label"]) for each in ours.splits[split]] == theirs.imgs
        assert ImageFolder(folder / split).imgs == theirs.imgs
    assert content(listed(folder)) == content(ours)  # the archives lie beside what is unpacked from them


def test_every_form_is_prepared_to_the_same_bytes(tmp_path: Path) -> None:
    for form in (nested, downloaded, zipped):
        metrics = prepare(form(tmp_path / form.__name__ / "raw"), tmp_path / form.__name__ / "out", "imagenet")
        assert (metrics.images, metrics.classes) == (len(NESTED), 4)
    prepared = [digests(tmp_path / form.__name__ / "out") for form in (nested, downloaded, zipped)]
    assert prepared[0] == prepared[1] == prepared[2]


def test_an_image_of_the_class_archives_is_found_for_a_person(tmp_path: Path) -> None:
    listing = listed(downloaded(tmp_path / "raw"))
    where = "ILSVRC2012_img_train.tar/n01440764.tar/n01440764_10.JPEG"
    assert listing.files.where(listing.splits["train"][0].file) == str(tmp_path / "raw" / where)


@pytest.mark.parametrize("gone", ["train", "val"])
def test_one_split_alone_will_do(tmp_path: Path, gone: str) -> None:
    shutil.rmtree(nested(tmp_path / "raw") / gone)
    listing = listed(tmp_path / "raw")
    assert (list(listing.splits), listing.classes) == ([{"train": "val", "val": "train"}[gone]], WNIDS)


def test_the_train_archive_alone_will_do(tmp_path: Path) -> None:
    write(tmp_path, {"train.tar": archives()["ILSVRC2012_img_train.tar"]})
    assert [each.path for each in listed(tmp_path / "train.tar").splits["train"]] == sorted(TRAIN)


def test_another_layout_is_described(tmp_path: Path) -> None:
    write(tmp_path / "raw", {"n01440764/n01440764_1.JPEG": b""})
    with pytest.raises(ValueError, match=r"has neither train nor val; ImageNet is laid out as train/<wnid>"):
        listed(tmp_path / "raw")


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"train/tench/1.JPEG": b""}, "has folder train/tench; ImageNet's folders are named by WordNet ids"),
        ({"val/n99999999/1.JPEG": b""}, "has class 'n99999999' in 'val', which 'train' does not have.*add train/n9999"),
        ({"val/ILSVRC2012_val_00000001.JPEG": b""}, "lies beside class folders such as 'n01440764'"),
        ({"val/n01440765/notes.txt": b""}, "class folder '.*/val/n01440765' holds no images"),
        ({"train/n01440765.tar": tar({"a": b""})}, "train/n01440765.tar' was taken out of the archive it came in"),
    ],
)
def test_what_is_laid_out_wrongly_is_named(tmp_path: Path, files: dict[str, bytes], message: str) -> None:
    write(nested(tmp_path / "raw"), files)
    with pytest.raises(ValueError, match=message):
        listed(tmp_path / "raw")


def test_images_of_train_in_no_class_folder_are_named(tmp_path: Path) -> None:
    write(tmp_path / "raw", {"train/a.JPEG": b""})
    with pytest.raises(ValueError, match="has image 'train/a.JPEG' in no class folder"):
        listed(tmp_path / "raw")


def test_flat_validation_images_need_a_list(tmp_path: Path) -> None:
    shutil.rmtree(flat(tmp_path / "raw") / "ILSVRC2012_devkit_t12")
    with pytest.raises(ValueError, match=r"nothing that says their classes; put ILSVRC2012_devkit_t12.tar.gz"):
        listed(tmp_path / "raw")


TRUTH = "ILSVRC2012_devkit_t12/data/ILSVRC2012_validation_ground_truth.txt"


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({TRUTH: b"3\n1\n4\n"}, "says the class of 3 images, and not that of 'ILSVRC2012_val_00000004.JPEG'"),
        ({TRUTH: b"3\n1\n1002\n"}, "line 3 of '.*ground_truth.txt' is '1002'; it must be one of meta.mat's 4 ids"),
        ({TRUTH: b"3\n1\ncat\n"}, "line 3 of '.*ground_truth.txt' is 'cat'"),
        ({"val/cat.JPEG": b""}, "validation image 'cat.JPEG' in .* is not named ILSVRC2012_val_<8 digits>.JPEG"),
        ({TRUTH.replace(TRUTH.rpartition("/")[2], "meta.mat"): b"?" * 200}, "meta.mat' is not the devkit's table"),
    ],
)
def test_a_wrong_devkit_is_named(tmp_path: Path, files: dict[str, bytes], message: str) -> None:
    write(flat(tmp_path / "raw"), files)
    with pytest.raises(ValueError, match=message):
        listed(tmp_path / "raw")


def test_a_devkit_without_its_table_is_named(tmp_path: Path) -> None:
    (flat(tmp_path / "raw") / TRUTH).with_name("meta.mat").unlink()
    with pytest.raises(ValueError, match=r"ILSVRC2012_devkit_t12/data/meta.mat' is missing"):
        listed(tmp_path / "raw")


def test_a_wrong_line_of_kaggles_list_is_named(tmp_path: Path) -> None:
    write(
        kaggle(tmp_path / "raw"), {"LOC_val_solution.csv": b"ImageId,PredictionString\nILSVRC2012_val_00000001,cat 1\n"}
    )
    with pytest.raises(ValueError, match=r"LOC_val_solution.csv' has the line 'ILSVRC2012_val_00000001,cat 1'"):
        listed(tmp_path / "raw")


def test_a_class_archive_that_is_cut_off_or_leads_out_is_named(tmp_path: Path) -> None:
    link = tarfile.TarInfo("n01440764_1.JPEG")
    link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
    for data, message in (
        (b"\0" * 10240, "n01440764.tar' holds no file or is no tar"),
        (tar({"a.JPEG": b"1" * 5000})[:2048], "n01440764.tar': member 'a.JPEG' claims 5000 bytes, more than"),
        (tar({"../a.JPEG": b"1"}), r"n01440764.tar': member '../a.JPEG' leads out of the archive"),
        (link.tobuf() + b"\0" * 1024, "n01440764.tar': member 'n01440764_1.JPEG' is a link"),
    ):
        write(tmp_path, {"train.tar": tar({"n01440764.tar": data, "n01440765.tar": tar({"b.JPEG": b""})})})
        with pytest.raises(ValueError, match=message):
            listed(tmp_path / "train.tar")


def test_class_archives_without_an_end_marker_end_where_they_end(tmp_path: Path) -> None:
    classes = {f"n0000000{n}.tar": tar({f"{n}.JPEG": b"1" * 512})[:1024] for n in range(2)}
    write(tmp_path, {"train.tar": tar(classes)})
    assert [each.path for each in listed(tmp_path / "train.tar").splits["train"]] == [
        "train/n00000000/0.JPEG",
        "train/n00000001/1.JPEG",
    ]
