"""Features that Ray workers made are those of one process, to the bit, whoever dies on the way. Real processes."""

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from components.cluster import Asked
from components.crew import LOSSES, Crew
from components.images.store import Store, read_card, write_card
from components.images.transforms import View
from components.mim.encoder import Encoder, EncoderConfig
from components.mim.initialise import initialise
from components.mim.weights import save
from components.probe import workers
from components.probe.dataset import Part, Subject, subjects
from components.probe.extraction import Features, Request
from components.probe.kept import pooled
from components.probe.params import Encoding
from components.probe.pieces import Piece, Pieces
from components.stage import canonical_yaml, read_yaml

from .arrays import CPU

PARAMS = Path(__file__).parents[2] / "params"
VIEW = View(16, 24, 0, mirror=False)
OUTPUTS = ("confusion", "heads", "protocol", "work", "metrics", "run")


def saved(path: Path, **config: Any) -> Path:
    encoder = Encoder(EncoderConfig(patch_size=4, class_token=True, **config))
    initialise(encoder, 0, "fan_in", "encoder.")
    save(path, encoder, {"seed": 3, "weight_init": "fan_in"})
    return path


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("encoder")
    return saved(folder / "encoder.safetensors", image_size=16, width=24, layers=3, heads=2)


def untrained(encoder: Path) -> Subject:
    *_, last = subjects(encoder, 16, 24, CPU)
    return last


def extract(encoder: Path, images: Path, folder: Path, workers: int, cpus: int = 1) -> Features:
    part = Part(Store(images, "train"), np.arange(47)[::-1].copy())
    how = Encoding(2, workers, cpus)
    return pooled(untrained(encoder), part, VIEW, layers=4, encoding=how, folder=folder, label="toy")


def test_two_workers_make_the_features_of_one_process(
    encoder: Path, toy_images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    extract(encoder, toy_images, tmp_path / "one", workers=1)
    extract(encoder, toy_images, tmp_path / "two", workers=2)
    (one,), (two,) = (list(place.rglob("*.npy")) for place in (tmp_path / "one", tmp_path / "two"))
    assert one.read_bytes() == two.read_bytes()
    assert one.relative_to(tmp_path / "one") == two.relative_to(tmp_path / "two")
    capsys.readouterr()
    extract(encoder, toy_images, tmp_path / "two", workers=1)
    assert "47 kept from before" in capsys.readouterr().out


@pytest.mark.faults
def test_more_than_the_cluster_has_is_told_at_once(encoder: Path, toy_images: Path, tmp_path: Path) -> None:
    with pytest.raises(
        ValueError,
        match=r"workers asks for 4000 CPUs \(2 workers\), the Ray cluster has \d+; lower workers or cpus_per",
    ):
        extract(encoder, toy_images, tmp_path, workers=2, cpus=2000)


def test_a_node_that_sees_other_files_is_named(encoder: Path, toy_images: Path, tmp_path: Path) -> None:
    request = Request(Part(Store(toy_images, "train"), np.arange(2)), VIEW, 4, Encoding(2, 2, 1))
    job = workers.ordered(Pieces(tmp_path / "pieces", [Piece(0, 2)], 24), untrained(encoder), request)
    workers.Worker(job).begin()
    changed = shutil.copytree(toy_images, tmp_path / "changed")
    write_card(changed, read_card(changed) | {"classes": ["another"]})
    other = saved(tmp_path / "encoder.safetensors", image_size=16, width=24, layers=2, heads=2)
    for field, value, what in [
        ("token", "0123", r"the features in '.*pieces'"),
        ("dataset", tmp_path / "none", r"the dataset in '.*none'"),
        ("dataset", changed, r"the dataset in '.*changed'"),
        ("encoder", tmp_path / "none", r"the encoder in '.*none'"),
        ("encoder", other, r"the encoder in '.*encoder.safetensors'"),
    ]:
        with pytest.raises(
            ValueError, match=rf"a worker on node '.+' does not see {what} as the stage does; put it on"
        ):
            workers.Worker(job._replace(**{field: value})).begin()


class Lost:
    """A worker whose process is killed at its second part, whoever takes it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def begin(self) -> None:
        pass

    def do(self, part: int) -> None:
        if part == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        (self._folder / str(part)).touch()


def asked(count: int) -> Asked:
    return Asked(count, 1, 0, "workers", "lower workers", "lower workers")


@pytest.mark.faults
def test_a_part_that_kills_every_worker_ends_the_work_and_the_others_are_done(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    done: list[int] = []
    crew = Crew(Lost, tmp_path, asked(2), "toy", lambda part: f"part {part}", "lower something")
    with pytest.raises(
        RuntimeError, match=rf"toy: {LOSSES} workers were lost at part 1; most often memory ran out: lower somethi"
    ):
        crew.work(range(4), done.append)
    assert capsys.readouterr().out.count("toy: a worker was lost at part 1; another one takes over") == LOSSES - 1
    assert {int(path.name) for path in tmp_path.iterdir()} >= set(done) and 1 not in done


@pytest.mark.faults
@pytest.mark.parametrize("fault", ["numbers", "image"])
def test_what_is_wrong_with_encoder_or_image_comes_out_as_itself(
    encoder: Path, toy_images: Path, tmp_path: Path, fault: str
) -> None:
    images, one = shutil.copytree(toy_images, tmp_path / "images"), untrained(encoder)
    if fault == "image":
        path = images / "train/shard-00000.arrow"
        path.write_bytes(path.read_bytes().replace(b"IHDR", b"IHDX"))
        message = r"'train/\d/\d+.png', row \d+ of split 'train' of dataset 'toy' in '.*images'"
    else:
        one.encoder.blocks[0].mlp.fc1.bias.data[0] = np.nan
        save(tmp_path / "diverged.safetensors", one.encoder, {"seed": 3, "weight_init": "fan_in"})
        one, *_ = subjects(tmp_path / "diverged.safetensors", 16, 24, CPU)
        message = (
            r"^encoder '.*diverged.safetensors' \(pretrained\) gives features that are not finite for 2 of 2 images"
        )
    part = Part(Store(images, "train"), np.arange(48))
    with pytest.raises(ValueError, match=message) as raised:
        pooled(one, part, VIEW, layers=4, encoding=Encoding(2, 2, 1), folder=tmp_path / "work", label="toy")
    assert "Traceback" not in str(raised.value) and not list(tmp_path.rglob("*.npy"))


@pytest.fixture(scope="module")
def slow(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An encoder that takes some tenths of a second for each piece of the toy."""
    return saved(tmp_path_factory.mktemp("slow") / "encoder.safetensors", image_size=96, width=96, layers=4, heads=3)


def start(folder: Path, encoder: Path, images: Path, workers: int) -> subprocess.Popen[str]:
    """The stage linear_probe in `folder`."""
    values = read_yaml(PARAMS / "linear_probe.yaml") | {
        "encoding_batch_size": 1,
        "workers": workers,
        "cpus_per_worker": 1,
    }
    values["tasks"]["digits"] |= {"dataset": "toy", "image_size": 96, "resize_short_side": 96, "epochs": 1}
    folder.mkdir(exist_ok=True)
    (folder / "probe.yaml").write_text(canonical_yaml(values))
    given = {"params": "probe.yaml", "member": "digits", "encoder": encoder, "dataset": images}
    given |= {"train-list": PARAMS / "subsets/all.txt", **{name: name for name in OUTPUTS}}
    flags = [str(text) for name, value in given.items() for text in (f"--{name}", value)]
    return subprocess.Popen(
        [sys.executable, "-m", "components", "linear_probe", *flags], cwd=folder, text=True, start_new_session=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env={**os.environ, "DVC_ROOT": str(folder)},
    )  # fmt: skip


def midway(folder: Path, process: subprocess.Popen[str], pieces: int = 4) -> list[psutil.Process]:
    """Waits until so many pieces of the training images are there; all processes of the stage."""
    deadline = time.monotonic() + 240
    while len(list((folder / "work").glob("features/*/pretrained-train-*/pieces-*/0*"))) < pieces:
        assert time.monotonic() < deadline and process.poll() is None, process.stdout and process.stdout.read()
        time.sleep(0.01)
    return [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]


def finished(process: subprocess.Popen[str], folder: Path) -> tuple[str, dict[str, bytes]]:
    """What the stage said, and its features by their folder."""
    output, _ = process.communicate(timeout=400)
    assert process.returncode == 0, output
    assert not list(folder.rglob("pieces-*"))
    return output, {path.parent.name: path.read_bytes() for path in folder.rglob("features.npy")}


def all_gone(processes: list[psutil.Process]) -> None:
    _, alive = psutil.wait_procs(processes, timeout=240)  # agents of a raylet that is gone look after it now and then
    assert not alive


@pytest.fixture(scope="module")
def whole(slow: Path, toy_images: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The features of one process that nobody disturbs."""
    folder = tmp_path_factory.mktemp("whole")
    return finished(start(folder, slow, toy_images, workers=1), folder)[1]


@pytest.mark.faults
def test_a_killed_worker_costs_nothing(slow: Path, toy_images: Path, tmp_path: Path, whole: dict[str, bytes]) -> None:
    stage = start(tmp_path, slow, toy_images, workers=2)
    at_work = [one for one in midway(tmp_path, stage) if "Worker.do" in " ".join(one.cmdline())]
    at_work[0].kill()
    output, features = finished(stage, tmp_path)
    assert "a worker was lost at images" in output
    assert features == whole and len(whole) == 4


@pytest.mark.faults
def test_a_killed_stage_goes_on_where_it_stopped(
    slow: Path, toy_images: Path, tmp_path: Path, whole: dict[str, bytes]
) -> None:
    stage = start(tmp_path, slow, toy_images, workers=2)
    everything = midway(tmp_path, stage)
    stage.kill()  # the driver alone: Ray's processes end by themselves
    stage.wait()
    all_gone(everything)
    output, features = finished(start(tmp_path, slow, toy_images, workers=2), tmp_path)
    assert "images are there from before an interruption" in output
    assert features == whole


@pytest.mark.faults
@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_a_stopped_stage_leaves_no_process(
    slow: Path, toy_images: Path, tmp_path: Path, signum: signal.Signals
) -> None:
    stage = start(tmp_path, slow, toy_images, workers=2)
    everything = midway(tmp_path, stage)
    assert any("raylet" in one.name() for one in everything)
    stage.send_signal(signum)
    output, _ = stage.communicate(timeout=240)
    assert stage.returncode == 128 + signum, output
    all_gone(everything)
