"""The whole stage on two made-up videos: files, scores and faults."""

import csv
import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from components.davis import palette, score, work
from components.davis.contract import DavisInputs, DavisMetrics, DavisOutputs, DavisParams
from components.davis.palette import PALETTE
from components.davis.run import run
from components.davis.scores import boundary_agreement, region_overlap, statistics
from components.images.store import Store
from components.mim import weights
from components.mim.encoder import Encoder, EncoderConfig

MakeDataset = Callable[..., Path]
MakeMask = Callable[[np.ndarray, str], bytes]
Frame = tuple[np.ndarray, bytes]

FOLLOWERS = ("pretrained", "untrained", "pixels", "copy")
PARAMS: dict[str, Any] = {
    "device": "cpu",
    "dataset": "toy",
    "profile": "clean",
    "short_side": 40,
    "positions": "stretched",
    "context_frames": 3,
    "radius": 3,
    "top_k": 5,
    "temperature": 0.1,
}
HEIGHT, WIDTH, FRAMES = 80, 104, 6


def scene(objects: int, frame: int) -> tuple[np.ndarray, np.ndarray]:
    """Coloured squares moving right over a textured ground, and their ids."""
    picture = np.random.default_rng(5).integers(40, 120, (HEIGHT, WIDTH, 3), dtype=np.uint8)
    ids = np.zeros((HEIGHT, WIDTH), dtype=np.uint8)
    for label, colour in zip(range(1, objects + 1), ((240, 30, 30), (30, 30, 240)), strict=False):
        rows, columns = slice(36 * label - 28, 36 * label - 4), slice(12 + 6 * frame, 36 + 6 * frame)
        picture[rows, columns] = colour
        ids[rows, columns] = label
    return picture, ids


@pytest.fixture
def dataset(make_dataset: MakeDataset, png: MakeMask) -> Path:
    """Two objects with ids; one in 0/255 with a frame that has no mask; and a clip too short to score."""

    def clip(objects: int, length: int, scale: int, mode: str) -> list[Frame]:
        scenes = [scene(objects, frame) for frame in range(length)]
        return [(picture, png(ids * np.uint8(scale), mode)) for picture, ids in scenes]

    single = clip(1, FRAMES, 255, "L")
    single[2] = (single[2][0], b"")
    return make_dataset({"pair": clip(2, FRAMES, 1, "P"), "single": single, "short": clip(1, 2, 1, "P")})


def evaluate(folder: Path, dataset: Path, encoder: Path, **changes: Any) -> tuple[DavisMetrics, DavisOutputs]:
    outputs = DavisOutputs(**{name: folder / name for name in DavisOutputs.model_fields})
    return run(DavisParams(**PARAMS | changes), DavisInputs(encoder=encoder, dataset=dataset), outputs), outputs


def content(folder: Path) -> dict[str, str]:
    """Hashes of all its files but the resume state."""
    paths = sorted(path for path in folder.rglob("*") if path.is_file() and folder / "work" not in path.parents)
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in paths}


def test_masks_are_what_the_official_tool_reads(tmp_path: Path, dataset: Path, encoder_file: Path) -> None:
    _, outputs = evaluate(tmp_path, dataset, encoder_file)
    frames = [f"{5 * frame:05d}.png" for frame in range(FRAMES)]
    expected = {f"{encoder}/{clip}/{frame}" for encoder in FOLLOWERS for clip in ("pair", "single") for frame in frames}
    assert set(content(outputs.masks)) == expected
    for path in outputs.masks.rglob("*.png"):
        with Image.open(path) as image:
            assert (image.mode, image.size) == ("P", (WIDTH, HEIGHT))
            assert image.getpalette()[:9] == PALETTE[:9]
    with Image.open(outputs.masks / "untrained" / "pair" / "00000.png") as image:
        assert np.array_equal(np.array(image), scene(2, 0)[1])


def test_d6_d10_names_come_from_the_frames(
    tmp_path: Path, make_dataset: MakeDataset, png: MakeMask, encoder_file: Path
) -> None:
    """Whatever words the folders hold; and the first frame is not always 00000."""
    picture, ids = scene(1, 0)
    renamed = make_dataset({"JPEGImages.jpg": [(picture, png(ids, "P"))] * 3}, "jpg")
    _, outputs = evaluate(tmp_path, renamed, encoder_file)
    names = {f"{follower}/JPEGImages.jpg/{stem:05d}.png" for follower in FOLLOWERS for stem in (0, 5, 10)}
    assert set(content(outputs.masks)) == names


def test_scores_are_those_of_the_files(tmp_path: Path, dataset: Path, encoder_file: Path) -> None:
    """Scored again from the PNGs and the drawn truth; the second clip's frame 2 has no mask and must not count."""
    metrics, outputs = evaluate(tmp_path, dataset, encoder_file)
    with outputs.scores.open(newline="") as stream:
        table = list(csv.DictReader(stream))
    assert [(row["encoder"], row["sequence"], row["object"]) for row in table] == [
        (encoder, *each) for encoder in FOLLOWERS for each in (("pair", "1"), ("pair", "2"), ("single", "1"))
    ]
    for row in table:
        j, f = [], []
        scored = [1, 2, 3, 4] if row["sequence"] == "pair" else [1, 3, 4]
        for frame in scored:
            with Image.open(outputs.masks / row["encoder"] / row["sequence"] / f"{5 * frame:05d}.png") as image:
                predicted = np.array(image) == int(row["object"])
            true = scene(2, frame)[1] == int(row["object"])
            j.append(region_overlap(predicted, true))
            f.append(boundary_agreement(predicted, true))
        assert int(row["frames"]) == len(scored)
        got = [float(row[f"{measure}_{name}"]) for measure in "jf" for name in ("mean", "recall", "decay")]
        assert got == pytest.approx([100 * value for value in (*statistics(j), *statistics(f))], abs=1e-4)
    for encoder in FOLLOWERS:
        suffix = "" if encoder == "pretrained" else f"_{encoder}"
        for name in ("jf_mean", "j_mean", "j_recall", "j_decay", "f_mean", "f_recall", "f_decay"):
            mean = np.mean([float(row[name]) for row in table if row["encoder"] == encoder])
            assert getattr(metrics, f"{name}{suffix}") == pytest.approx(mean, abs=1e-4)
    with outputs.sequences.open(newline="") as stream:
        summed = list(csv.DictReader(stream))
    assert [(row["encoder"], row["sequence"], row["objects"], row["frames"]) for row in summed] == [
        (encoder, *each) for encoder in FOLLOWERS for each in (("pair", "2", "4"), ("single", "1", "3"))
    ]
    for row in summed:
        own = [each for each in table if all(each[key] == row[key] for key in ("encoder", "sequence"))]
        assert float(row["f_decay"]) == pytest.approx(np.mean([float(each["f_decay"]) for each in own]), abs=1e-4)
    assert metrics.jf_mean == pytest.approx((metrics.j_mean + metrics.f_mean) / 2)
    assert metrics.jf_mean_gain == pytest.approx(metrics.jf_mean - metrics.jf_mean_untrained)
    assert (metrics.sequences, metrics.objects, metrics.frames, metrics.sequences_excluded) == (2, 3, 7, 1)


def test_the_scorer_gives_the_stages_scores_for_its_masks(tmp_path: Path, dataset: Path, encoder_file: Path) -> None:
    """From the PNGs and the true masks as files in the official layout, one of them in 0/255."""
    _, outputs = evaluate(tmp_path, dataset, encoder_file)
    store, davis = Store(dataset, "val"), tmp_path / "DAVIS"
    for row, path in enumerate(store.column("path")):
        mask = davis / path.replace("JPEGImages", "Annotations").replace(".jpg", ".png")
        mask.parent.mkdir(parents=True, exist_ok=True)
        if data := store.bytes(row, "mask"):
            mask.write_bytes(data)
    (davis / "ImageSets/2017").mkdir(parents=True)
    (davis / "ImageSets/2017/val.txt").write_text("pair\nsingle\nshort\n")
    with outputs.scores.open(newline="") as stream:
        expected = list(csv.DictReader(stream))
    for follower in FOLLOWERS:
        assert score.main([str(outputs.masks / follower), str(davis), "--csv", str(tmp_path / follower)]) == 0
        with (tmp_path / follower / "objects.csv").open(newline="") as stream:
            assert list(csv.DictReader(stream)) == [row for row in expected if row["encoder"] == follower]


@pytest.mark.parametrize("profile", ["paper", "clean"])
def test_moving_squares_are_followed(tmp_path: Path, dataset: Path, encoder_file: Path, profile: str) -> None:
    """Even random features tell these colours apart. Frozen first masks would reach a J of 27."""
    metrics, _ = evaluate(tmp_path, dataset, encoder_file, profile=profile)
    still = [region_overlap(scene(1, 0)[1] == 1, scene(1, frame)[1] == 1) for frame in range(1, FRAMES - 1)]
    assert metrics.j_mean > 100 * np.mean(still) + 20


def test_again_gives_the_same_bytes(tmp_path: Path, dataset: Path, encoder_file: Path) -> None:
    first = evaluate(tmp_path / "a", dataset, encoder_file)[0]
    second = evaluate(tmp_path / "b", dataset, encoder_file)[0]
    assert first == second
    assert content(tmp_path / "a") == content(tmp_path / "b")


@pytest.mark.parametrize(
    "change",
    [
        {"profile": "paper"},
        {"short_side": 48},
        {"context_frames": 0},
        {"radius": 1},
        {"top_k": 1},
        {"temperature": 1.0},
    ],
    ids=str,
)
def test_every_field_matters(tmp_path: Path, dataset: Path, encoder_file: Path, change: dict[str, Any]) -> None:
    before, after = (
        evaluate(tmp_path / folder, dataset, encoder_file, **each)[1]
        for folder, each in (("before", {}), ("after", change))
    )
    assert content(before.masks) != content(after.masks)


def test_excluded_clip_is_named(
    tmp_path: Path, dataset: Path, encoder_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    evaluate(tmp_path, dataset, encoder_file)
    told = capsys.readouterr().out
    assert "davis: short is left out: no mask is left between its first and its last" in told
    assert "davis: pretrained, sequence 2/2 single" in told
    assert "davis: 48/48 frames" in told


def test_nothing_to_score_is_refused(
    tmp_path: Path, make_dataset: MakeDataset, png: MakeMask, encoder_file: Path
) -> None:
    picture, ids = scene(1, 0)
    folder = make_dataset({"brief": [(picture, png(ids, "P"))] * 2})
    with pytest.raises(
        ValueError, match="'toy': none of its 1 sequences has a mask between its first and its last one"
    ):
        evaluate(tmp_path, folder, encoder_file)
    assert not (tmp_path / "masks").exists()


def test_a_fault_midway_leaves_the_last_results(
    tmp_path: Path, make_dataset: MakeDataset, png: MakeMask, dataset: Path, encoder_file: Path
) -> None:
    _, outputs = evaluate(tmp_path, dataset, encoder_file)
    before = content(outputs.masks)
    picture, ids = scene(1, 0)
    frames = [(picture, png(ids, "P"))] * 3 + [(picture[:40], png(ids[:40], "P"))]
    broken = make_dataset({"good": frames[:3], "torn": frames}, "broken")
    with pytest.raises(ValueError, match="torn/00015.jpg"):
        evaluate(tmp_path, broken, encoder_file)
    assert content(outputs.masks) == before
    assert not list(tmp_path.glob(".*.partial"))


def test_sheet_shows_prediction_and_truth(tmp_path: Path, dataset: Path, encoder_file: Path) -> None:
    """One row per sequence; inside the first object, away from every outline, the ground is tinted with DAVIS' red."""
    _, outputs = evaluate(tmp_path, dataset, encoder_file)
    with Image.open(outputs.sheet) as image:
        sheet = np.array(image.convert("RGB")).astype(int)
    assert sheet.shape == (22 + 2 * 120, 6 * 214, 3)
    tile = sheet[22 : 22 + 120, :156]
    centre = tile[30 - 3 : 30 + 3, 45 - 3 : 45 + 3].mean((0, 1))  # of the object at 20, 30 of 80 lines
    expected = 0.45 * np.array([240, 30, 30]) + 0.55 * np.array([128, 0, 0])
    assert np.abs(centre - expected).max() < 3
    assert 150 < (tile[18:102] == 255).all(-1).sum() < 500  # two outlines of 4·36 pixels


def test_a_sheet_of_many_sequences_stays_small(
    tmp_path: Path, make_dataset: MakeDataset, png: MakeMask, encoder_file: Path
) -> None:
    picture, ids = scene(1, 0)
    frames = [(picture, png(ids, "P"))] * 3
    _, outputs = evaluate(tmp_path, make_dataset({f"clip{n:02d}": frames for n in range(45)}), encoder_file)
    with Image.open(outputs.sheet) as image:
        assert image.size == (3 * (6 * 214 + 8) - 8, 22 + 14 * 120)


class Killed(BaseException):
    """Stands in for SIGKILL: nothing may catch it."""


def interrupt(monkeypatch: pytest.MonkeyPatch, after: int) -> list[Path]:
    """Lets `after` masks be written, then ends the process's work; the list holds where."""
    written: list[Path] = []

    def write_ids(path: Path, ids: np.ndarray) -> None:
        if len(written) == after:
            raise Killed
        written.append(path)
        palette.write_ids(path, ids)

    monkeypatch.setattr(work, "write_ids", write_ids)
    return written


@pytest.mark.parametrize("after", [3, 8, 20, 47])
def test_goes_on_where_it_was_stopped(
    tmp_path: Path,
    dataset: Path,
    encoder_file: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    after: int,
) -> None:
    """48 masks in 8 passes of 6: those that were finished are not done again, and the bytes are those of a run in one go."""
    whole = evaluate(tmp_path / "whole", dataset, encoder_file)[0]
    with monkeypatch.context() as patch:
        interrupt(patch, after)
        with pytest.raises(Killed):
            evaluate(tmp_path / "torn", dataset, encoder_file)
    capsys.readouterr()
    assert not (tmp_path / "torn" / "masks").exists()
    (mark,) = (tmp_path / "torn" / "work").iterdir()
    for follower in FOLLOWERS:  # what SIGKILL leaves of a sequence in the middle
        (mark / follower / ".pair.partial").mkdir(parents=True)
        (mark / follower / ".pair.partial" / "00000.png").write_bytes(b"half")
    with monkeypatch.context() as patch:
        written = interrupt(patch, 1000)
        assert evaluate(tmp_path / "torn", dataset, encoder_file)[0] == whole
    assert len(written) == 48 - after // 6 * 6
    told = capsys.readouterr().out
    assert (f"davis: {after // 6} of 8 passes over a sequence are done already, in {tmp_path}" in told) == (after >= 6)
    assert content(tmp_path / "torn") == content(tmp_path / "whole")
    written.clear()  # its work is kept for a day, and serves whoever asks the same
    assert evaluate(tmp_path / "torn", dataset, encoder_file)[0] == whole and not written


def test_work_of_other_settings_or_weights_is_not_taken(
    tmp_path: Path, dataset: Path, encoder_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for again in ({"top_k": 4}, {}):
        with monkeypatch.context() as patch:
            interrupt(patch, 20)
            with pytest.raises(Killed):
                evaluate(tmp_path, dataset, encoder_file, **again)
    encoder = weights.load_encoder(encoder_file)
    weights.initialise(encoder, 7, "fan_in")
    weights.save(encoder_file, encoder, {"seed": 2, "weight_init": "fan_in"})
    written = interrupt(monkeypatch, 1000)
    evaluate(tmp_path, dataset, encoder_file)
    assert len(written) == 48


def test_protocol_says_what_was_measured(tmp_path: Path, dataset: Path, encoder_file: Path) -> None:
    """The counts tell DAVIS-2017 val from other videos; device and the dataset's name stay out of it, the settings don't."""
    metrics, outputs = evaluate(tmp_path, dataset, encoder_file)
    record = json.loads(outputs.protocol.read_text())
    assert (record["protocol"], record["stage"]) == (metrics.protocol, "davis")
    assert record["settings"] == {key: PARAMS[key] for key in PARAMS if key not in ("device", "dataset")}
    data = record["data"]
    assert (data["sequences"], data["objects"], data["splits"]) == (2, 3, {"val": {"rows": 14, "used": 12}})
    other = evaluate(tmp_path / "other", dataset, encoder_file, radius=4)[0]
    assert other.protocol != metrics.protocol


def test_features_that_are_no_numbers_are_refused(tmp_path: Path, dataset: Path, encoder_file: Path) -> None:
    encoder = weights.load_encoder(encoder_file)
    encoder.norm.bias[3] = torch.nan
    weights.save(encoder_file, encoder, {"seed": 2, "weight_init": "fan_in"})
    with pytest.raises(
        ValueError, match=r"encoder.safetensors': its features of JPEGImages/480p/pair/00000.jpg are not all"
    ):
        evaluate(tmp_path, dataset, encoder_file)


def test_an_encoder_whose_patches_are_too_large_is_refused(tmp_path: Path, dataset: Path, encoder_file: Path) -> None:
    with pytest.raises(
        ValueError,
        match=r"encoder.safetensors' does not fit sequence 'pair' of 104×80 pixels: with short_side 8 its patches of 16 pixels "
        r"make a grid of 1×1 tokens",
    ):
        encoder = Encoder(EncoderConfig(image_size=64, patch_size=16, width=32, layers=1, heads=2))
        weights.save(encoder_file, encoder, {"seed": 2, "weight_init": "fan_in"})
        evaluate(tmp_path, dataset, encoder_file, short_side=8)
    assert not (tmp_path / "work").exists()
