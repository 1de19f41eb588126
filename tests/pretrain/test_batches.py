"""Who sees which image when, in whatever process it is decoded."""

import copy
import json
import pickle
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from components.images.store import Store, write, write_card
from components.mim import keys
from components.pretrain.batches import Batch, Batches
from components.pretrain.contract import PretrainParams


def batches(tiny: dict[str, Any], toy: Path, rank: int = 0, world: int = 1) -> Batches:
    return Batches(PretrainParams(**tiny), Store(toy, "train"), rank, world)


class Rows:
    """A dataset of so many images, of which nobody looks at one."""

    def __init__(self, count: int) -> None:
        self._count = count

    def __len__(self) -> int:
        return self._count


def ranks(tiny: dict[str, Any], count: int, share: int, world: int, epochs: int, seed: int) -> list[Batches]:
    """All ranks of a run on `count` images, `share` of them for a rank in a step."""
    values = copy.deepcopy(tiny) | {"seed": seed}
    values["optimisation"] |= {"epochs": epochs, "warmup_epochs": 0.0, "global_batch_size": share * world}
    values["scale"]["workers"] = world
    params, store = PretrainParams(**values), Rows(count)
    return [Batches(params, store, rank, world) for rank in range(world)]  # type: ignore[arg-type]


@settings(
    max_examples=150, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    data=st.data(), share=st.integers(2, 9), world=st.integers(1, 4), epochs=st.integers(1, 4), seed=st.integers(0, 3)
)
def test_every_image_comes_exactly_once_per_epoch_and_to_one_worker(
    tiny: dict[str, Any], data: st.DataObject, share: int, world: int, epochs: int, seed: int
) -> None:
    size = share * world
    count = data.draw(st.integers(size, 4 * size + 7), "images")
    run = ranks(tiny, count, share, world, epochs, seed)
    total = run[0].total
    assert total == epochs * count // size and run[0].steps_per_epoch * size == pytest.approx(count)
    steps = [np.concatenate([rank.images(step) for rank in run]) for step in range(total)]
    stream = np.concatenate(steps)
    assert (np.diff(stream[:, 0]) >= 0).all()
    left_out = epochs * count - total * size
    for epoch in range(epochs):
        seen = Counter(stream[stream[:, 0] == epoch, 1].tolist())
        last = epoch == epochs - 1
        assert set(seen.values()) == {1} and set(seen) <= set(range(count))
        assert (
            len(seen) == count - left_out * last and left_out < size
        )  # what fills no batch is left out at the very end
    step = data.draw(st.integers(0, total - 1), "step")
    fresh = ranks(tiny, count, share, world, epochs, seed)
    assert np.array_equal(np.concatenate([rank.images(step) for rank in fresh]), steps[step])
    assert np.array_equal(ranks(tiny, count, size, 1, epochs, seed)[0].images(step), steps[step])


def test_batches_that_divide_the_dataset_are_pieces_of_one_permutation(tiny: dict[str, Any]) -> None:
    """In closed form; an epoch's order is its own."""
    (run,) = ranks(tiny, 48, 16, 1, 2, 5)
    assert (run.total, run.steps_per_epoch) == (6, 3.0)
    orders = [np.random.default_rng(keys.key(5, "order", epoch)).permutation(48) for epoch in range(2)]
    for step in range(6):
        epoch, part = divmod(step, 3)
        assert np.array_equal(run.images(step)[:, 0], [epoch] * 16)
        assert np.array_equal(run.images(step)[:, 1], orders[epoch][16 * part : 16 * part + 16])


def test_pixels_do_not_depend_on_workers_or_on_where_a_run_starts(tiny: dict[str, Any], toy_images: Path) -> None:
    whole = list(batches(tiny, toy_images).steps(0, 6))
    resumed = list(batches(tiny, toy_images).steps(4, 6))
    halves = [list(batches(tiny, toy_images, rank, 2).steps(0, 6)) for rank in range(2)]
    for step in range(6):
        assert torch.equal(torch.cat([half[step].pixels for half in halves]), whole[step].pixels)
        assert torch.equal(torch.cat([half[step].places for half in halves]), whole[step].places)
    assert torch.equal(resumed[0].pixels, whole[4].pixels)


def test_a_crop_is_that_of_its_epoch_and_image_in_whatever_batch_it_is(tiny: dict[str, Any], toy_images: Path) -> None:
    """Batches of 16 end with the epochs of 48 images, those of 20 lie across them."""
    tiny["augmentation"] |= {"grayscale": 0.5, "blur": 0.5}

    def crops(size: int) -> dict[tuple[int, int], torch.Tensor]:
        tiny["optimisation"]["global_batch_size"] = size
        run = batches(tiny, toy_images)
        return {
            (int(epoch), int(index)): pixels
            for step in range(run.total)
            for (epoch, index), pixels in zip(run.images(step), run.batch(step).pixels, strict=True)
        }

    even, across = crops(16), crops(20)
    assert len(even) == 96 and len(across) == 80 and across.keys() < even.keys()
    assert all(torch.equal(pixels, even[place]) for place, pixels in across.items())
    assert any(not torch.equal(even[0, index], even[1, index]) for index in range(48))


@pytest.mark.parametrize("loaders", [0, 1])
def test_the_wait_for_a_batch_is_what_a_clock_outside_sees(
    tiny: dict[str, Any], toy_images: Path, loaders: int
) -> None:
    """Also where reading takes a millisecond an image; and what was read during a long step is there at once."""
    tiny["scale"]["loaders"] = loaders
    run = batches(tiny, toy_images)
    if not loaders:
        read = run._crops._augmented
        run._crops._augmented = lambda *which: (time.sleep(0.001), read(*which))[1]  # type: ignore[method-assign]
    steps, waits = run.steps(0, 6), list[tuple[float, float]]()
    for step in range(6):
        if step == 5:
            time.sleep(0.5)
        asked = time.monotonic()
        waits.append((next(steps).waited, time.monotonic() - asked))
    steps.close()
    assert all(0 <= told <= seen < told + 0.1 for told, seen in waits), waits
    if not loaders:
        assert sum(told for told, _ in waits[:5]) > 5 * 16 * 0.001
    assert waits[5][0] < 0.25 and run.batch(0).waited == 0


@pytest.mark.parametrize("loaders", [1, 2])
def test_processes_that_decode_change_nothing_and_end(tiny: dict[str, Any], toy_images: Path, loaders: int) -> None:
    tiny["augmentation"] |= {"grayscale": 0.5, "blur": 0.5}
    tiny["optimisation"]["global_batch_size"] = 20
    here = list(batches(tiny, toy_images).steps(1, 4))
    tiny["scale"] |= {"cpus_per_worker": 2, "loaders": loaders}
    steps = batches(tiny, toy_images).steps(1, 4)
    elsewhere = [next(steps)]
    processes = decoders()
    assert len(processes) == loaders
    elsewhere += steps
    for one, other in zip(here, elsewhere, strict=True):
        assert torch.equal(one.pixels, other.pixels) and torch.equal(one.places, other.places)
    assert not psutil.wait_procs(processes, timeout=30)[1]


def decoders() -> list[psutil.Process]:
    """Processes forked by this one's fork server."""
    children = [child for child in psutil.Process().children() if "forkserver" in " ".join(child.cmdline())]
    return [process for child in children for process in child.children()]


def damaged(toy: Path, folder: Path, row: int) -> Path:
    """The toy dataset with one image cut in half."""
    store = Store(toy, "train")
    rows = [{"path": f"train/{n}.png", "image": store.bytes(n), "label": 0} for n in range(len(store))]
    rows[row]["image"] = rows[row]["image"][:300]
    card = {"name": "toy", "kind": "images", "format": "image_folder", "classes": ["a"], "skipped": []}
    splits = write(folder, "images", {"train": rows}, 1)
    write_card(folder, {**card, "splits": splits, "mean": [0.5] * 3, "std": [0.25] * 3})
    return folder


@pytest.mark.parametrize("loaders", [0, 1])
def test_a_broken_image_is_named_wherever_it_is_decoded(
    tiny: dict[str, Any], toy_images: Path, tmp_path: Path, loaders: int
) -> None:
    tiny["scale"]["loaders"] = loaders
    broken = int(batches(tiny, toy_images).images(2)[7, 1])
    folder = damaged(toy_images, tmp_path / "toy", broken)
    given: list[Batch] = []
    named = (
        rf"^'train/{broken}.png', row {broken} of split 'train' of dataset 'toy' in '.*', cannot be decoded: [^\n]*$"
    )
    with pytest.raises(ValueError, match=named):
        given += batches(tiny, folder).steps(0, 3)
    for batch in batches(tiny, folder).steps(0, 2):
        assert batch.pixels.shape == (16, 16, 16, 3)  # those before are as good as ever


def test_a_process_that_is_killed_is_an_error_and_no_standstill(tiny: dict[str, Any], toy_images: Path) -> None:
    tiny["optimisation"] |= {"epochs": 500}
    tiny["scale"] |= {"cpus_per_worker": 2, "loaders": 2}
    run = batches(tiny, toy_images)
    steps = run.steps(0, run.total)
    next(steps)
    decoders()[0].kill()
    with pytest.raises(RuntimeError, match=r"a process that decodes images was killed.* lower scale.loaders"):
        for _ in steps:
            pass


def test_processes_end_with_one_that_is_killed(tiny: dict[str, Any], toy_images: Path) -> None:
    """As Ray kills a worker whose neighbour failed; their server and its helper go as well."""
    tiny["optimisation"] |= {"epochs": 500}
    tiny["scale"] |= {"cpus_per_worker": 2, "loaders": 2}
    program = (
        "import json, sys, pathlib\n"
        "from components.images.store import Store\n"
        "from components.pretrain.batches import Batches\n"
        "from components.pretrain.contract import PretrainParams\n"
        "params, folder = PretrainParams(**json.loads(sys.argv[1])), pathlib.Path(sys.argv[2])\n"
        "run = Batches(params, Store(folder, 'train'), 0, 1)\n"
        "steps = run.steps(0, run.total)\n"
        "next(steps)\n"
        "print('trains', flush=True)\n"
        "sys.stdin.read()\n"
    )
    command = [sys.executable, "-c", program, json.dumps(tiny), str(toy_images)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as trainer:
        assert trainer.stdout is not None and trainer.stdout.readline() == "trains\n"
        others = psutil.Process(trainer.pid).children(recursive=True)
        assert len(others) >= 3  # the server and two that decode
        trainer.kill()
    assert not psutil.wait_procs(others, timeout=30)[1]


def test_what_a_process_is_sent_and_holds_does_not_grow_with_the_dataset(
    tiny: dict[str, Any], toy_images: Path, million: Path
) -> None:
    """Proportional memory of its own; a permutation of a million rows alone would be 8 MB, a list of their paths 60 MB."""
    tiny["scale"]["loaders"] = 1
    held = []
    for folder in (toy_images, million):
        run = batches(tiny, folder)
        assert len(pickle.dumps(run._crops)) < 2000
        steps = run.steps(0, 6)
        for _ in range(5):
            next(steps)
        (process,) = decoders()
        text = Path(f"/proc/{process.pid}/smaps_rollup").read_text()
        held.append({line.split()[0]: int(line.split()[1]) for line in text.splitlines()[1:]}["Pss_Anon:"] / 1024)
        steps.close()
        psutil.wait_procs([process], timeout=30)
    assert abs(held[1] - held[0]) < 4


def test_a_batch_larger_than_the_split_is_refused(tiny: dict[str, Any], toy_images: Path) -> None:
    tiny["optimisation"]["global_batch_size"] = 64
    with pytest.raises(ValueError, match="global_batch_size is 64, but the train split of 'toy' has 48 images"):
        batches(tiny, toy_images)
