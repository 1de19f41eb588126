"""The whole stage on small folders: what is stored, that it is the same twice, and what damaged files do."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from components.images.store import Store, read_card
from components.prepare.contract import PrepareMetrics

from .toy import digests, prepare

PROJECT = Path(__file__).parents[2]
EMBEDDED = PROJECT / "components/prepare/embedded"


def embedded(kind: str, folder: Path, **values: Any) -> PrepareMetrics:
    return prepare(EMBEDDED / f"{kind}.py", folder, kind, source=f"components/prepare/embedded/{kind}.py", **values)


def test_an_image_folder_keeps_every_byte_and_label(image_folder: Path, tmp_path: Path) -> None:
    metrics = prepare(image_folder, tmp_path / "out")
    assert metrics == PrepareMetrics(
        images=19, classes=3, mebibytes=metrics.mebibytes, skipped=0, duplicates=12
    )  # val's pictures are train's
    files = [path for path in image_folder.rglob("*") if path.is_file()]
    assert metrics.mebibytes == pytest.approx(sum(path.stat().st_size for path in files) / 2**20, abs=1e-3)
    stored = {}
    for split in ("train", "val"):
        store = Store(tmp_path / "out/toy", split)
        names = [store.card["classes"][label] for label in store.column("label")]
        for index, (path, name) in enumerate(zip(store.column("path"), names, strict=True)):
            assert path.split("/")[:2] == [split, name]
            stored[image_folder / path] = store.bytes(index)
    assert stored == {path: path.read_bytes() for path in files}
    card = read_card(tmp_path / "out/toy")
    assert card["splits"]["train"]["classes"] == {"cat": 6, "dog": 4, "owl": 3}
    assert (card["name"], card["format"], card["skipped"]) == ("toy", "image_folder", [])


def test_mean_and_std_are_those_of_the_first_splits_pixels(image_folder: Path, tmp_path: Path) -> None:
    prepare(image_folder, tmp_path / "out")
    files = sorted((image_folder / "train").rglob("*.*"))
    pixels = np.concatenate([np.asarray(Image.open(path)).reshape(-1, 3) / 255 for path in files])
    card = read_card(tmp_path / "out/toy")
    np.testing.assert_allclose(card["mean"], pixels.mean(0), rtol=1e-12)
    np.testing.assert_allclose(card["std"], pixels.std(0), rtol=1e-12)


@pytest.mark.parametrize("kind", ["image_folder", "clevr", "davis"])
def test_preparing_twice_gives_the_same_bytes_with_any_number_of_cores(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    raw = request.getfixturevalue(kind)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0})
    prepare(raw, tmp_path / "one", kind)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(7)))
    moved = raw.rename(tmp_path / f"moved_{raw.name}")
    prepare(moved, tmp_path / "two", kind)
    first = digests(tmp_path / "one")
    assert first == digests(tmp_path / "two")
    assert "toy.png" in first and "toy/card.json" in first


def test_scenes_keep_their_tasks_and_videos_their_masks(clevr: Path, davis: Path, tmp_path: Path) -> None:
    prepare(clevr, tmp_path / "scenes", "clevr")
    train = Store(tmp_path / "scenes/toy", "train")
    assert train.column("count").tolist() == [3, 4, 5, 6, 7]
    assert train.column("distance").tolist() == [7.25, 8.25, 9.25, 10.25, 11.25]
    metrics = prepare(davis, tmp_path / "video", "davis")
    assert (metrics.images, metrics.classes) == (7, 0)
    val = Store(tmp_path / "video/toy", "val")
    assert val.column("sequence").tolist() == ["camel"] * 3 + ["bear"] * 4
    assert val.column("frame").tolist() == [0, 1, 2, 0, 1, 2, 3]
    masks = [val.bytes(index, "mask") for index in range(7)]
    assert masks[1:3] == [b"", b""]
    assert masks[6] == (davis / "Annotations/480p/bear/00003.png").read_bytes()


def test_a_damaged_image_stops_the_stage_and_nothing_is_lost(
    image_folder: Path, tmp_path: Path, cut: Callable[[Path], Path]
) -> None:
    prepare(image_folder, tmp_path / "out")
    before = digests(tmp_path / "out")
    damaged = cut(image_folder / "train/dog/0002.jpg")
    with pytest.raises(ValueError, match=rf"toy: image '{damaged}' cannot be read: .*runcated.*on_error: skip"):
        prepare(image_folder, tmp_path / "out")
    assert digests(tmp_path / "out") == before


def test_damaged_images_are_skipped_and_recorded(
    image_folder: Path, tmp_path: Path, cut: Callable[[Path], Path]
) -> None:
    cut(image_folder / "train/dog/0002.jpg")
    (image_folder / "val/owl/0000.jpg").write_text("<html>404</html>")
    (image_folder / "val/owl/folder.jpg").mkdir()  # empty, so nothing is left out
    metrics = prepare(image_folder, tmp_path / "out", on_error="skip", skip_budget=2)
    assert (metrics.images, metrics.skipped) == (17, 2)
    card = read_card(tmp_path / "out/toy")
    assert [entry["path"] for entry in card["skipped"]] == [
        "train/dog/0002.jpg",
        "val/owl/0000.jpg",
    ]
    assert [entry["reason"] for entry in card["skipped"]][1:] == ["it is neither JPEG nor PNG"]
    assert card["splits"]["train"]["classes"] == {"cat": 6, "dog": 3, "owl": 3}
    assert Store(tmp_path / "out/toy", "train").column("label").tolist() == [0] * 6 + [1] * 3 + [2] * 3


def test_more_damaged_images_than_the_budget_stop_the_stage(
    image_folder: Path, tmp_path: Path, cut: Callable[[Path], Path]
) -> None:
    for number in (0, 2):
        cut(image_folder / f"train/cat/{number:04d}.jpg")
    with pytest.raises(ValueError, match=r"2 images cannot be read \(the first: train/cat/0000.jpg.*skip_budget is 1"):
        prepare(image_folder, tmp_path / "out", on_error="skip", skip_budget=1)
    assert not (tmp_path / "out/toy").exists()


def test_a_class_that_would_lose_all_its_images_stops_the_stage(
    image_folder: Path, tmp_path: Path, cut: Callable[[Path], Path]
) -> None:
    for path in (image_folder / "val/dog").iterdir():
        cut(path)
    with pytest.raises(ValueError, match="every image of class 'dog' of split 'val' was skipped"):
        prepare(image_folder, tmp_path / "out", on_error="skip", skip_budget=9)


def test_a_damaged_frame_or_mask_always_stops_the_stage(
    davis: Path, tmp_path: Path, cut: Callable[[Path], Path]
) -> None:
    mask = davis / "Annotations/480p/bear/00002.png"
    whole = mask.read_bytes()
    cut(mask)
    with pytest.raises(ValueError, match=f"mask '{mask}' cannot be decoded: .*; unpack"):
        prepare(davis, tmp_path / "out", "davis")
    Image.new("L", (8, 5)).save(mask)
    with pytest.raises(ValueError, match=f"mask '{mask}' is a 8x5 image of mode L; .*its frame's size, 16x10"):
        prepare(davis, tmp_path / "out", "davis")
    Image.new("RGB", (16, 10)).save(mask)
    with pytest.raises(ValueError, match=f"mask '{mask}' is a 16x10 image of mode RGB; .*one channel of object ids"):
        prepare(davis, tmp_path / "out", "davis")
    mask.write_bytes(whole)
    frame = cut(davis / "JPEGImages/480p/camel/00001.jpg")
    with pytest.raises(ValueError, match=f"image '{frame}' cannot be read: .*; replace the file$"):
        prepare(davis, tmp_path / "out", "davis")


def test_limit_keeps_so_many_of_each_class_as_the_seed_says(image_folder: Path, tmp_path: Path) -> None:
    def kept(seed: int) -> list[str]:
        prepare(image_folder, tmp_path / "out", per_class=3, seed=seed)
        assert read_card(tmp_path / "out/toy")["splits"]["train"]["classes"] == {"cat": 3, "dog": 3, "owl": 3}
        assert len(Store(tmp_path / "out/toy", "val")) == 6
        return [str(path) for path in Store(tmp_path / "out/toy", "train").column("path")]

    choices = [kept(seed) for seed in range(4)]
    assert choices == [sorted(choice) for choice in choices] == [kept(seed) for seed in range(4)]
    assert len({tuple(choice) for choice in choices}) > 1


def test_limit_keeps_whole_sequences_and_so_many_scenes(clevr: Path, davis: Path, tmp_path: Path) -> None:
    prepare(davis, tmp_path / "video", "davis", per_class=1)
    val = Store(tmp_path / "video/toy", "val")
    assert val.column("frame").tolist() in (list(range(3)), list(range(4)))
    assert len(set(val.column("sequence"))) == 1
    assert prepare(clevr, tmp_path / "scenes", "clevr", per_class=2).images == 4


def test_shard_mib_splits_the_files_and_not_the_content(tmp_path: Path) -> None:
    for number in range(3):
        path = tmp_path / f"raw/train/{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.random.default_rng(number).integers(0, 256, (400, 400, 3), dtype=np.uint8)).save(path)
    cards = []
    for size in (1, 2):
        prepare(tmp_path / "raw", tmp_path / str(size), shard_mib=size)
        cards.append(read_card(tmp_path / f"{size}/toy"))
    assert [card["splits"]["train"]["shards"] for card in cards] == [
        2,
        1,
    ]  # three files of 480 kB: only two fit into 1 MiB
    assert cards[0]["content"] == cards[1]["content"]


def test_a_file_that_is_no_archive_is_named(tmp_path: Path) -> None:
    (tmp_path / "archive.tar").touch()
    with pytest.raises(ValueError, match=r"archive.tar' is neither a folder nor a zip or tar archive"):
        prepare(tmp_path / "archive.tar", tmp_path / "out")


def test_embedded_sets_come_from_their_seed_and_leave_nothing_behind(tmp_path: Path) -> None:
    metrics = embedded("shapes", tmp_path / "a", scenes=32)
    assert (metrics.images, metrics.classes) == (32, 0)
    assert sorted(path.name for path in (tmp_path / "a").iterdir()) == ["toy", "toy.png"]
    embedded("shapes", tmp_path / "b", scenes=32)
    embedded("shapes", tmp_path / "c", scenes=32, seed=1)
    assert digests(tmp_path / "a") == digests(tmp_path / "b")
    assert read_card(tmp_path / "a/toy")["content"] != read_card(tmp_path / "c/toy")["content"]
    assert set(Store(tmp_path / "a/toy", "train").column("count")) == set(range(3, 11))


def test_embedded_clips_and_digits(tmp_path: Path) -> None:
    embedded("shapes_video", tmp_path / "video", clips=1)
    val = Store(tmp_path / "video/toy", "val")
    assert val.column("frame").tolist() == list(range(len(val)))
    assert all(val.bytes(index, "mask") for index in range(len(val)))
    metrics = embedded("digits", tmp_path / "digits")
    assert (metrics.images, metrics.classes) == (1797, 10)  # all of scikit-learn's


def test_the_tracked_file_must_be_the_generator_that_runs(tmp_path: Path) -> None:
    copy = tmp_path / "digits.py"
    copy.write_bytes((EMBEDDED / "digits.py").read_bytes())
    with pytest.raises(ValueError, match="but the generator that runs is .*digits.py; DVC would not see it change"):
        prepare(copy, tmp_path / "out", "digits", source="components/prepare/embedded/digits.py")


real = pytest.mark.skipif("STOP_SHARED_DATA" not in os.environ, reason="STOP_SHARED_DATA names no folder of real data")


@real
def test_real_images_as_they_are(tmp_path: Path) -> None:
    metrics = prepare(Path(os.environ["STOP_SHARED_DATA"]) / "cifar10", tmp_path / "out", per_class=40)
    assert (metrics.images, metrics.classes, metrics.skipped) == (800, 10, 0)
    card = read_card(tmp_path / "out/toy")
    np.testing.assert_allclose(card["mean"], (0.4914, 0.4822, 0.4465), atol=0.03)  # CIFAR-10's published mean and std
    np.testing.assert_allclose(card["std"], (0.2470, 0.2435, 0.2616), atol=0.03)


@real
def test_real_videos_as_they_are(tmp_path: Path) -> None:
    metrics = prepare(Path(os.environ["STOP_SHARED_DATA"]), tmp_path / "out", "davis", per_class=2)
    val = Store(tmp_path / "out/toy", "val")
    assert len(val) == metrics.images
    assert val.image(0).size == (854, 480)
    assert len(set(val.column("sequence"))) == 2
