"""The scorer of published layouts: the official tool's numbers, and one clear line for what cannot be scored (E1-E9)."""

import csv
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from scipy import ndimage

from components.davis.palette import write_ids
from components.davis.score import main

GOLDEN = Path(__file__).parents[1] / "goldens" / "davis_metrics.npz"
SIZE = (48, 64)
COLUMNS = ("j_mean", "j_recall", "j_decay", "f_mean", "f_recall", "f_decay")


def blobs(seed: int, objects: int) -> np.ndarray:
    """Smooth random ids, every one of them present."""
    noise = np.random.default_rng(seed).normal(size=(objects + 1, *SIZE))
    return ndimage.gaussian_filter(noise, (0, 4, 4)).argmax(0).astype(np.uint8)


def write_clip(folder: Path, masks: list[np.ndarray]) -> None:
    folder.mkdir(parents=True)
    for frame, mask in enumerate(masks):
        write_ids(folder / f"{frame:05d}.png", mask)


@pytest.fixture
def davis(tmp_path: Path) -> Path:
    """Two sequences, with 3 objects and 1, in the official layout; the list has a blank line and trailing spaces (D7)."""
    for name, objects in (("swan", 3), ("goat", 1)):
        write_clip(
            tmp_path / "DAVIS/Annotations/480p" / name, [blobs(10 * objects + frame, objects) for frame in range(7)]
        )
    (tmp_path / "DAVIS/ImageSets/2017").mkdir(parents=True)
    (tmp_path / "DAVIS/ImageSets/2017/val.txt").write_text("swan  \n\ngoat\n\n")
    return tmp_path / "DAVIS"


@pytest.fixture
def results(tmp_path: Path) -> Path:
    for name, objects in (("swan", 3), ("goat", 1)):
        write_clip(tmp_path / "results" / name, [blobs(99 + 10 * objects + frame, objects) for frame in range(7)])
    return tmp_path / "results"


def scored(results: Path, davis: Path, out: Path) -> dict[tuple[str, int], list[float]]:
    assert main([str(results), str(davis), "--csv", str(out)]) == 0
    with (out / "objects.csv").open(newline="") as stream:
        rows = list(csv.DictReader(stream))
    return {(row["sequence"], int(row["object"])): [float(row[name]) / 100 for name in COLUMNS] for row in rows}


def official(predictions: list[np.ndarray], truths: list[np.ndarray]) -> dict[int, list[float]]:
    """The tool's semi-supervised task written down densely: per object of the first true mask, frames 1 to n−2."""
    found = {}
    for label in range(1, int(truths[0][truths[0] != 255].max()) + 1):
        j, f = [], []
        for predicted, true in zip(predictions[1:-1], truths[1:-1], strict=True):
            p, t = predicted == label, true == label
            j.append((p & t).sum() / (p | t).sum() if (p | t).any() else 1.0)
            radius = np.ceil(0.008 * np.hypot(*t.shape))
            edges = []
            for mask in (p, t):
                padded = np.pad(mask, ((0, 1), (0, 1)), mode="edge")
                neighbours = padded[:-1, 1:], padded[1:, :-1], padded[1:, 1:]
                edges.append(np.any([mask != neighbour for neighbour in neighbours], axis=0))
            near = [ndimage.distance_transform_edt(~edge) <= radius if edge.any() else edge for edge in edges]
            if not edges[0].any() or not edges[1].any():
                f.append(float(edges[0].any() == edges[1].any()))
                continue
            precision, recall = (edges[0] & near[1]).sum() / edges[0].sum(), (edges[1] & near[0]).sum() / edges[1].sum()
            f.append(2 * precision * recall / (precision + recall) if precision + recall else 0.0)
        found[label] = []
        for values in (np.array(j), np.array(f)):
            ids = np.round(np.linspace(1, len(values), 5) + 1e-10).astype(int) - 1
            quarters = [values[ids[k] : ids[k + 1] + 1] for k in range(4)]
            found[label] += [values.mean(), (values > 0.5).mean(), quarters[0].mean() - quarters[3].mean()]
    return found


def read(folder: Path) -> list[np.ndarray]:
    return [np.array(Image.open(path)) for path in sorted(folder.glob("*.png"))]


def test_equals_the_official_definitions(results: Path, davis: Path, tmp_path: Path) -> None:
    """Per object; the sequences' means; the global ones over objects, not sequences. E1: no removed numpy name is needed."""
    got = scored(results, davis, tmp_path / "out")
    assert len(got) == 4
    for name in ("swan", "goat"):
        for label, expected in official(read(results / name), read(davis / "Annotations/480p" / name)).items():
            assert got[name, label] == pytest.approx(expected, abs=1e-6)
    with (tmp_path / "out/sequences.csv").open(newline="") as stream:
        rows = {row["sequence"]: float(row["j_mean"]) / 100 for row in csv.DictReader(stream)}
    assert rows["swan"] == pytest.approx(np.mean([got["swan", label][0] for label in (1, 2, 3)]), abs=1e-6)


@pytest.mark.parametrize("sequence", ["hard", "good"])
def test_equals_the_official_tools_numbers(sequence: str, tmp_path: Path) -> None:
    with np.load(GOLDEN) as file:
        golden = {name.removeprefix(f"{sequence}."): file[name] for name in file if name.startswith(sequence)}
    write_clip(tmp_path / "D/Annotations/480p/clip", list(golden["annotations"]))
    write_clip(tmp_path / "R/clip", list(golden["predictions"]))
    (tmp_path / "D/ImageSets/2017").mkdir(parents=True)
    (tmp_path / "D/ImageSets/2017/val.txt").write_text("clip\n")
    got = scored(tmp_path / "R", tmp_path / "D", tmp_path / "out")
    for label in (1, 2, 3):
        expected = [*golden["stats_J"][label - 1], *golden["stats_F"][label - 1]]
        assert got["clip", label] == pytest.approx(expected, abs=1e-6)


def test_prints_the_global_means_over_objects(
    results: Path, davis: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    got = np.array(list(scored(results, davis, tmp_path / "out").values())).mean(0) * 100
    *_, last = capsys.readouterr().out.splitlines()
    assert last.startswith("all 4 objects")
    printed = [float(value) for value in last.split()[3:]]
    assert printed == pytest.approx([(got[0] + got[3]) / 2, *got], abs=0.006)


def test_e2_a_long_sequence_has_a_decay(davis: Path, tmp_path: Path) -> None:
    """300 frames, right in the first half and lost in the second; uint8 edges make it NaN from 256 on."""
    truth = np.zeros((8, 8), dtype=np.uint8)
    truth[2:5, 2:5] = 1
    shutil.rmtree(davis / "Annotations/480p")
    write_clip(davis / "Annotations/480p/long", [truth] * 300)
    write_clip(tmp_path / "R/long", [truth * (frame < 150) for frame in range(300)])
    (davis / "ImageSets/2017/val.txt").write_text("long\n")
    j_mean, _, j_decay, *_ = scored(tmp_path / "R", davis, tmp_path / "out")["long", 1]
    assert (j_mean, j_decay) == (0.5, 1.0)


def test_e3_other_masks_in_the_same_folder_are_scored_anew(results: Path, davis: Path, tmp_path: Path) -> None:
    before = scored(results, davis, tmp_path / "out")
    write_ids(results / "goat/00003.png", np.zeros(SIZE, dtype=np.uint8))
    assert scored(results, davis, tmp_path / "out") != before


def test_first_and_last_masks_do_not_count(results: Path, davis: Path, tmp_path: Path) -> None:
    before = scored(results, davis, tmp_path / "out")
    for frame in ("00000", "00006"):
        (results / f"swan/{frame}.png").unlink()
    assert scored(results, davis, tmp_path / "out") == before


def test_missing_objects_are_empty_masks(results: Path, davis: Path, tmp_path: Path) -> None:
    for path in (results / "swan").iterdir():
        write_ids(path, np.where(read(path.parent)[int(path.stem)] == 3, 0, read(path.parent)[int(path.stem)]))
    got = scored(results, davis, tmp_path / "out")
    assert got["swan", 3][0] == 0
    assert got["swan", 1][0] > 0


def test_void_is_background(results: Path, davis: Path, tmp_path: Path) -> None:
    """As the semi-supervised task has it: 255 in the truth is background, and is scored."""
    path = davis / "Annotations/480p/goat/00003.png"
    truth = read(path.parent)[3]
    truth[:20] = 255
    write_ids(path, truth)
    got = scored(results, davis, tmp_path / "out")
    clean = [np.where(mask == 255, 0, mask) for mask in read(path.parent)]
    assert got["goat", 1] == pytest.approx(official(read(results / "goat"), clean)[1], abs=1e-6)


def test_objects_that_come_up_later_are_background_and_named(
    results: Path, davis: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    truths = davis / "Annotations/480p/goat"
    late = read(truths)
    late[4][:10] = 7
    write_ids(truths / "00004.png", late[4])
    got = scored(results, davis, tmp_path / "out")
    assert got["goat", 1] == pytest.approx(official(read(results / "goat"), late)[1], abs=1e-6)
    told = capsys.readouterr().out
    assert "goat/00004.png has object ids that the sequence's first mask lacks (7)" in told


@pytest.mark.parametrize("side", ["results", "truth", "both"])
def test_e5_black_and_white_is_one_object(results: Path, davis: Path, tmp_path: Path, side: str) -> None:
    """DAVIS-2016 style; the official tool makes 255 objects of it."""
    before = scored(results, davis, tmp_path / "out")
    truths = davis / "Annotations/480p/goat"
    for folder in {"results": [results / "goat"], "truth": [truths], "both": [results / "goat", truths]}[side]:
        for path in sorted(folder.iterdir()):
            Image.fromarray(read(folder)[int(path.stem)] * np.uint8(255)).save(path)
    assert scored(results, davis, tmp_path / "out") == before


def test_e5_black_and_white_with_a_palette_too_and_refused_beside_several_objects(
    results: Path, davis: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = scored(results, davis, tmp_path / "out")
    for folder in (results / "goat", davis / "Annotations/480p/goat"):
        for path in sorted(folder.iterdir()):
            write_ids(path, read(folder)[int(path.stem)] * np.uint8(255))
    assert scored(results, davis, tmp_path / "out") == before
    path = results / "swan" / "00003.png"  # of three objects
    write_ids(path, (read(results / "swan")[3] > 0) * np.uint8(255))
    assert f"{path} has object ids 255" in refused(results, davis, capsys)


def refused(results: Path, davis: Path, capsys: pytest.CaptureFixture[str]) -> str:
    capsys.readouterr()
    assert main([str(results), str(davis)]) == 2
    told = capsys.readouterr()
    assert told.err.startswith("error: ")
    assert len(told.err.splitlines()) == 1
    assert "all " not in told.out
    return told.err


def test_e4_e9_a_missing_frame_is_named(results: Path, davis: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for frame in ("00002", "00003"):
        (results / f"goat/{frame}.png").unlink()
    assert "goat/00002.png' is missing, as are 1 more of the 10 masks to score" in refused(results, davis, capsys)


def test_e4_extra_ids_are_named(results: Path, davis: Path, capsys: pytest.CaptureFixture[str]) -> None:
    extra = read(results / "goat")[2]
    extra[:4], extra[4:6] = 9, 255
    write_ids(results / "goat/00002.png", extra)
    told = refused(results, davis, capsys)
    assert "goat/00002.png has object ids 9, 255, but the first true mask of 'goat' has only 1 to 1" in told


def test_e6_one_folder_too_high_is_told(results: Path, davis: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (results.parent / "outer").mkdir()
    results.rename(results.parent / "outer/pretrained")
    told = refused(results.parent / "outer", davis, capsys)
    assert "has no folder 'swan', but" in told
    assert "outer/pretrained' has: score that one" in told


def test_e7_the_truth_itself_is_suspected(davis: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(davis / "Annotations/480p"), str(davis)]) == 0
    assert "warning: every scored mask in" in capsys.readouterr().err


def test_no_suspicion_without_reason(results: Path, davis: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(results), str(davis)]) == 0
    assert capsys.readouterr().err == ""


def test_two_frame_clips_are_left_out_and_named(
    results: Path, davis: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = scored(results, davis, tmp_path / "out")
    write_clip(davis / "Annotations/480p/brief", [blobs(1, 1)] * 2)
    (davis / "ImageSets/2017/val.txt").write_text("swan\nbrief\ngoat\n")
    assert scored(results, davis, tmp_path / "out") == before
    assert "brief is left out: it has 2 masks, and the first and the last do not count" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("break_it", "told"),
    [
        (lambda r, d: write_ids(r / "goat/00002.png", np.zeros((9, 9), np.uint8)), "goat/00002.png: frame or mask has 9×9"),
        (lambda r, d: Image.new("RGB", SIZE[::-1]).save(r / "goat/00002.png"), "goat/00002.png is an image of mode RGB"),
        (lambda r, d: (r / "goat/00002.png").write_bytes(b"no"), "goat/00002.png cannot be read as a PNG"),
        (lambda r, d: (d / "ImageSets/2017/val.txt").unlink(), "has no ImageSets/2017/val.txt"),
        (lambda r, d: (d / "ImageSets/2017/val.txt").write_text("bear\n"), "bear' holds no mask (*.png) of the listed"),
        (lambda r, d: shutil.rmtree(r), "swan/00001.png' is missing, as are 9 more"),
        (lambda r, d: write_ids(d / "Annotations/480p/goat/00000.png", blobs(3, 3) * 2), "are 2, 4, 6; they must be"),
        (lambda r, d: write_ids(d / "Annotations/480p/goat/00000.png", np.zeros(SIZE, np.uint8)), "are none; they must"),
    ],
    ids=["size", "colour", "torn", "list", "sequence", "results", "gap", "empty"],
)  # fmt: skip
def test_other_faults_are_one_line(break_it, told: str, results: Path, davis: Path, capsys) -> None:  # type: ignore[no-untyped-def]
    break_it(results, davis)
    assert told in refused(results, davis, capsys)


def test_lists_of_2016_name_a_frame_a_line(results: Path, davis: Path, tmp_path: Path) -> None:
    before = scored(results, davis, tmp_path / "out")
    (davis / "ImageSets/2017").rename(davis / "ImageSets/2016")
    lines = [
        f"/JPEGImages/480p/{name}/{n:05d}.jpg /Annotations/480p/{name}/{n:05d}.png"
        for name in ("swan", "goat")
        for n in range(7)
    ]
    (davis / "ImageSets/2016/val.txt").write_text("\n".join(lines))
    assert scored(results, davis, tmp_path / "out") == before
