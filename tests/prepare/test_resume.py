"""A preparation that is killed goes on where it was, and processes change no byte."""

import hashlib
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections import namedtuple
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from components.images.store import Store, read_card
from components.prepare import intake, run, uncompress

from . import toy
from .toy import digests

PROJECT = Path(__file__).parents[2]
SKIPPING = {"on_error": "skip", "skip_budget": 3}


def prepare(raw: Path, out: Path, *, work: Path | None = None, **values: Any) -> None:
    toy.prepare(raw, out, work=work or out / "work", **{**SKIPPING, **values})


@pytest.fixture
def raw(tmp_path: Path) -> Path:
    """40 images of 120 kB, so nine to a shard of 1 MiB, one of them broken; and ten of another split."""
    folder = tmp_path / "raw"
    for number in range(50):
        path = folder / ("train" if number < 40 else "val") / f"{'ab'[number % 2]}/{number:03d}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.random.default_rng(number).integers(0, 256, (200, 200, 3), dtype=np.uint8)).save(path)
    (folder / "train/a/004.png").write_bytes(b"broken")
    return folder


KILLED = """
import os, signal, sys
from pathlib import Path
from components.prepare import shards
from toy import prepare
save, left = shards.Tally.save, [{shards}]
def dying(self, path):
    if left[0] == 0:
        os.kill(os.getpid(), signal.SIGKILL)  # the shard is there, its tally is not
    left[0] -= 1
    save(self, path)
shards.Tally.save = dying
out = Path(sys.argv[2])
prepare(Path(sys.argv[1]), out, work=out / "work", on_error="skip", skip_budget=3)
"""


@pytest.mark.parametrize("shards", [0, 2, 5])
def test_a_killed_preparation_goes_on_at_its_last_whole_shard(
    raw: Path, tmp_path: Path, shards: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    prepare(raw, tmp_path / "whole")
    capsys.readouterr()
    text = KILLED.format(shards=shards)
    killed = subprocess.run(
        [sys.executable, "-c", text, str(raw), str(tmp_path / "out")],
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(PROJECT), str(Path(__file__).parent)])},
        capture_output=True,
        text=True,
    )
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert not (tmp_path / "out/toy").exists()
    read: list[str] = []
    checked = intake.Checker._checked

    def counted(self: intake.Checker, item: Any, measured: bool) -> Any:
        read.append(item.path)
        return checked(self, item, measured)

    monkeypatch.setattr(intake.Checker, "_checked", counted)
    prepare(raw, tmp_path / "out")
    assert digests(tmp_path / "out/toy") == digests(tmp_path / "whole/toy")
    told = capsys.readouterr().out
    assert ("are there, going on" in told) == (shards > 0)
    assert len(read) == len(set(read)) == 50 - {0: 0, 2: 17, 5: 40}[shards]  # whole shards are not read again
    assert not (tmp_path / "out/work/toy").exists()


def test_what_was_begun_with_other_params_or_raw_data_is_no_part_of_it(
    raw: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    last = raw / "val/b/049.png"
    whole = last.read_bytes()
    for change in ({"seed": 1}, {}):
        last.write_bytes(b"broken")
        (raw / "val/a/048.png").write_bytes(b"too")
        with pytest.raises(ValueError, match="skip_budget is 2"):
            prepare(raw, tmp_path / "out", skip_budget=2, **change)
        last.write_bytes(whole)
        prepare(raw, tmp_path / "out", skip_budget=2)
        assert "an interrupted try had other params, raw data or code; starting anew" in capsys.readouterr().out
        assert len(read_card(tmp_path / "out/toy")["skipped"]) == 2


def test_a_tally_without_its_shard_counts_for_nothing(raw: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="skip_budget is 1"):
        (raw / "val/b/049.png").write_bytes(b"broken")
        prepare(raw, tmp_path / "out", skip_budget=1)
    (begun,) = (tmp_path / "out/work/toy").glob("begun-*")
    (begun / "train/shard-00001.arrow").unlink()
    (begun / "train/shard-00002.arrow").write_bytes(b"short")
    prepare(raw, tmp_path / "whole", skip_budget=2)
    with pytest.raises(ValueError, match="skip_budget is 1"):
        prepare(raw, tmp_path / "out", skip_budget=1)
    (begun,) = (tmp_path / "out/work/toy").glob("begun-*")
    made, whole = digests(begun / "train"), digests(tmp_path / "whole/toy/train")
    assert {name: made[name] for name in whole} == whole


def test_one_and_four_processes_give_dvc_the_same_hash(
    raw: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(intake, "MANY", 0)
    for cores in (1, 4):
        monkeypatch.setattr(os, "sched_getaffinity", lambda pid, cores=cores: set(range(cores)))
        prepare(raw, tmp_path / f"with_{cores}")
    dvc = str(Path(sys.executable).with_name("dvc"))
    project = tmp_path / "dvc"
    project.mkdir()
    subprocess.run([dvc, "init", "--no-scm", "-q"], cwd=project, check=True)
    hashes = set()
    for cores in (1, 4):
        shutil.copytree(tmp_path / f"with_{cores}/toy", project / f"out_{cores}")
        subprocess.run([dvc, "add", "-q", f"out_{cores}"], cwd=project, check=True)
        hashes.add(next(line for line in (project / f"out_{cores}.dvc").read_text().splitlines() if "md5:" in line))
    assert len(hashes) == 1 and ".dir" in hashes.pop()


def test_a_killed_process_of_the_pool_is_an_error_and_what_is_whole_is_kept(
    raw: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(intake, "MANY", 0)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1})
    monkeypatch.setattr(intake, "CHUNK", 1)
    save = run.Tally.save

    def killing(self: run.Tally, path: Path) -> None:
        save(self, path)
        for process in multiprocessing.active_children():
            process.kill()

    monkeypatch.setattr(run.Tally, "save", killing)
    with pytest.raises(RuntimeError, match="toy: a process that checks images was killed.*whole shards are kept"):
        prepare(raw, tmp_path / "out")
    assert list((tmp_path / "out/work/toy").rglob("shard-00000.npz"))
    assert not multiprocessing.active_children()


def test_two_runs_that_share_their_work_prepare_one_after_the_other(raw: Path, tmp_path: Path) -> None:
    errors: list[BaseException] = []

    def one(name: str) -> None:
        try:
            prepare(raw, tmp_path / name, work=tmp_path / "work")
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=one, args=(name,)) for name in "ab"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    assert digests(tmp_path / "a") == digests(tmp_path / "b")
    assert not list((tmp_path / "work").iterdir())


Usage = namedtuple("Usage", "total used free")


def test_a_disk_without_room_is_told_before_anything_is_written(
    raw: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(uncompress.shutil, "disk_usage", lambda path: Usage(2**30, 2**30, 5_000_000))
    with pytest.raises(ValueError, match=r"preparing toy needs 0.0 GiB in .*whose disk has 0.0 GiB left; make room"):
        prepare(raw, tmp_path / "out")
    assert not list((tmp_path / "out").rglob("*.arrow"))
    monkeypatch.setattr(uncompress.shutil, "disk_usage", lambda path: Usage(2**30, 2**30, 7_000_000))
    prepare(raw, tmp_path / "out")


def test_a_list_keeps_what_it_names_of_train_and_all_of_the_others(raw: Path, tmp_path: Path) -> None:
    chosen = tmp_path / "list.txt"
    chosen.write_text("b/001\n003.png\ntrain/a/000.png\n")
    subset = {"per_class": 0, "list": "x", "sha256": hashlib.sha256(chosen.read_bytes()).hexdigest()}
    prepare(raw, tmp_path / "out", subset_list=chosen, subset=subset)
    train = Store(tmp_path / "out/toy", "train")
    assert train.column("path").tolist() == ["train/a/000.png", "train/b/001.png", "train/b/003.png"]
    assert len(Store(tmp_path / "out/toy", "val")) == 10
    prepare(raw, tmp_path / "few", subset_list=chosen, subset={**subset, "per_class": 1})
    assert len(Store(tmp_path / "few/toy", "train")) == 2
    chosen.write_text("b/001\nnobody.png\n")
    with pytest.raises(ValueError, match="list .* has sha256 .*, but subset.sha256 is"):
        prepare(raw, tmp_path / "out", subset_list=chosen, subset=subset)
    missing = {**subset, "sha256": hashlib.sha256(chosen.read_bytes()).hexdigest()}
    with pytest.raises(
        ValueError, match="toy: subset.list 'x', split 'train': 1 of the list's 2 images found.*'nobody.png'"
    ):
        prepare(raw, tmp_path / "out", subset_list=chosen, subset=missing)


def test_published_counts_are_asked_for_or_what_lacks_is_listed(
    clevr: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    values = {"format": "clevr", "on_error": "fail", "skip_budget": 0}
    lacks = "split train has 5 images, published are 70000; split val has 2 images, published are 15000"
    with pytest.raises(
        ValueError, match=f"toy: .* is not the whole dataset: {lacks}. Complete the copy, or set counts: any"
    ):
        prepare(clevr, tmp_path / "out", counts="published", **values)
    prepare(clevr, tmp_path / "out", **values)
    assert "; ".join(read_card(tmp_path / "out/toy")["missing"]) == lacks
    assert "split train has 5 images" in capsys.readouterr().out
    path = tmp_path / "own/train/0.png"
    path.parent.mkdir(parents=True)
    Image.new("RGB", (4, 4)).save(path)
    with pytest.raises(ValueError, match="counts is 'published', but format 'image_folder' was never published"):
        prepare(tmp_path / "own", tmp_path / "out", counts="published")
