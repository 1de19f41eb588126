"""What the preset `cifar10` learns in a given time, with noise and without: the second table of `benchmarks/gpu.py`.

The recipe as it stands in params/presets, but for its length: as many epochs as fit the time, with the schedules drawn out over them.
On the way the target encoder is judged as `linear_probe` does it there: by nearest neighbours among 10 000 training images.
"""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from components.images import decoding
from components.images.loading import threaded
from components.images.transforms import View, square
from components.linear_probe.contract import LinearProbeParams
from components.mim.encoder import VisionEncoder
from components.pretrain.batches import Batches
from components.pretrain.contract import PretrainParams
from components.pretrain.loop import Row, Trainer
from components.pretrain.parallel import Alone
from components.probe.dataset import Part, open_part
from components.probe.extraction import DECODERS, encode
from components.probe.neighbours import check_k, nearest
from components.stage import read_yaml, validate

PRESETS = Path(__file__).parents[1] / "params" / "presets"
WARM, TIMED, POINTS = 20, 40, 12
"""Steps before a step's time is taken, steps that it is taken of, and how often the encoder is judged on the way."""
PLANNED = 0.85
"""Share of the time that the epochs are planned for; the rest is for judging and for a step's time that was taken too short."""
TINY: dict[str, dict[str, Any]] = {
    "encoder": {"width": 24, "layers": 2, "heads": 2},
    "predictor": {"width": 16, "layers": 1, "heads": 2},
    "optimisation": {"global_batch_size": 16},
}


class Data(NamedTuple):
    """The dataset's folder and the images that judge, as the preset's task `cifar10` has them."""

    folder: Path
    train: Part
    test: Part
    view: View
    knn_k: int


class OutOfTimeError(Exception):
    """Ends a run that takes longer than was planned."""


def data(folder: Path, tiny: bool) -> Data:
    """Raises ValueError for a folder that is no prepared CIFAR-10."""
    section = read_yaml(PRESETS / "cifar10.yaml")["linear_probe"]
    probe = validate(LinearProbeParams, section, "params/presets/cifar10.yaml: linear_probe")
    assert isinstance(probe, LinearProbeParams)
    task = probe.tasks["cifar10"]
    limits = (64, 64) if tiny else (task.train_limit, task.test_limit)
    train, test = (
        open_part(folder, task.dataset, "images", split, limit)
        for split, limit in zip((task.train_split, task.test_split), limits, strict=True)
    )
    check_k(probe.knn_k, len(train.rows))
    return Data(folder, train, test, square(task.image_size, task.resize, task.resize_short_side), probe.knn_k)


def recipe(noise: bool, device: str, cores: int, loaders: int, tiny: bool) -> PretrainParams:
    """The preset `cifar10` with the overlay `ijepa` where there is no noise, for one worker on this machine."""
    values = read_yaml(PRESETS / "cifar10.yaml")["pretrain"]
    if not noise:
        values["stop"] |= read_yaml(PRESETS / "ijepa.yaml")["pretrain"]["stop"]
    values["scale"] |= {"device": "gpu" if device == "cuda" else "cpu", "cpus_per_worker": cores, "loaders": loaders}
    for section, changes in (TINY if tiny else {}).items():
        values[section] |= changes
    params = validate(PretrainParams, values, "params/presets/cifar10.yaml: pretrain")
    assert isinstance(params, PretrainParams)
    return params


def trainer(params: PretrainParams, given: Data, device: str) -> Trainer:
    batches = Batches(params, given.train.store, rank=0, world=1)
    return Trainer(params, batches, Alone(torch.device(device)), Path("scratch"))


def fitting(params: PretrainParams, given: Data, device: str, seconds: float) -> int:
    """Epochs, one at least, that should take that long; a step's time is taken first."""
    one = trainer(params, given, device)
    for step, batch in enumerate(one.batches.steps(0, WARM + TIMED)):
        if step == WARM:
            start = time.monotonic()
        one.set_schedules()
        one.update(batch, measure=False)  # ends with the loss, for which it waits
    taken = (time.monotonic() - start) / TIMED
    return max(1, int(PLANNED * seconds / (taken * one.batches.steps_per_epoch)))


def lasting(params: PretrainParams, given: Data, epochs: int) -> PretrainParams:
    """The same for so many epochs, looked at `POINTS` times."""
    longer = params.model_copy(update={"optimisation": params.optimisation.model_copy(update={"epochs": epochs})})
    total = Batches(longer, given.train.store, rank=0, world=1).total
    return longer.model_copy(update={"log_every": max(1, total // POINTS)})


def read(part: Part, view: View) -> Tensor:
    """uint8 pixels [n, H, W, 3] of all of its images."""
    plan = (part.rows[start : start + 256] for start in range(0, len(part.rows), 256))
    batches = threaded(plan, lambda rows: lambda i: view(decoding.pixels(part.store, int(rows[i]))), DECODERS)
    return torch.cat([pixels for _, pixels in batches])


def judge(given: Data, device: str) -> Callable[[VisionEncoder], float]:
    """What gives an encoder's k-NN accuracy in percent."""
    seen, judged = read(given.train, given.view), read(given.test, given.view)
    labels, truth, classes = given.train.labels(), given.test.labels(), len(given.train.store.card["classes"])

    def features(encoder: VisionEncoder, pixels: Tensor) -> np.ndarray:
        last = slice(-encoder.config.width, None)
        return torch.cat([encode(encoder, part, 1)[:, last] for part in pixels.split(1024)]).cpu().numpy()

    def top1(encoder: VisionEncoder) -> float:
        sides = features(encoder, seen), features(encoder, judged)
        votes = nearest(sides[0], labels, sides[1], given.knn_k, classes, torch.device(device))
        return float((votes == truth).mean() * 100)

    return top1


def learn(
    params: PretrainParams, given: Data, device: str, top1: Callable[[VisionEncoder], float], until: float
) -> Row:
    """One run's points over time, up to the last step or to where the monotonic clock says `until`."""
    one, points, said = trainer(params, given, device), list[Row](), list[str]()
    assert one.target is not None
    start, judging = time.monotonic(), 0.0

    def point(step: int, row: Row) -> None:
        nonlocal judging
        begin = time.monotonic()
        kept = {name: row[name] for name in ("loss", "effective_rank") if name in row}
        points.append(
            {"step": step, "seconds": round(begin - start - judging, 3), **kept, "knn_top1": top1(one.target)}
        )
        judging += time.monotonic() - begin
        print("  " + ", ".join(f"{name} {value:.4g}" for name, value in points[-1].items()), flush=True)
        if time.monotonic() >= until and step < one.steps:
            raise OutOfTimeError

    def on_log(row: Row, _: Row) -> None:
        if row["step"] > 1 or one.steps == 1:  # the first step is always logged
            point(int(row["step"]), row)

    try:
        point(0, {})
        judging, start = 0.0, time.monotonic()
        one.train(on_log, lambda: None)
    except OutOfTimeError:
        said.append(f"cifar10: stopped at step {points[-1]['step']} of {one.steps}, its time was over")
    images = points[-1]["step"] * params.optimisation.global_batch_size
    return {
        "noise": params.stop.noise_std > 0,
        "epochs": params.optimisation.epochs,
        "steps": one.steps,
        "images_per_s": images / points[-1]["seconds"] if images else None,
        "points": points,
        "said": said,
    }
