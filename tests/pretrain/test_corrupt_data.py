"""A shard that changes on the disk in the middle of pretraining: one error that names it, and nothing lost that a checkpoint holds."""

import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from subprocess import Popen
from typing import Any

import pytest

from components.images.store import Store
from components.pretrain.checkpoints import newest, step_of

from .test_faults import logged, start, steps_shown

SHARD = "train/shard-00000.arrow"


def damaged_while_training(
    folder: Path, values: dict[str, Any], data: Path, damage: Callable[[Path], None]
) -> tuple[Popen[str], str]:
    """Starts pretraining on `data` and damages its shard once some steps are logged; the ended process and what it said."""
    process, deadline = start(folder, values, data), time.monotonic() + 240
    while not any(logged(path) > 12 for path in (folder / "work").glob("*/history.jsonl")):
        assert time.monotonic() < deadline and process.poll() is None, process.stdout and process.stdout.read()
        time.sleep(0.02)
    damage(data / SHARD)
    output, _ = process.communicate(timeout=500)
    return process, output


def flipped(shard: Path) -> None:
    """A bit of the last image, in place, where the workers have it mapped."""
    image = Store(shard.parents[1], "train").bytes(47)
    with shard.open("r+b") as file:
        place = file.read().index(image) + len(image) // 2
        file.seek(place)
        byte = file.read(1)[0]
        file.seek(place)
        file.write(bytes([byte ^ 1]))


def repaired(data: Path, toy: Path) -> None:
    """As DVC does it: a new file in the place of the old one."""
    shutil.copy(toy / SHARD, data / "new")
    os.replace(data / "new", data / SHARD)


@pytest.mark.faults
@pytest.mark.parametrize(
    "scale",
    [{"backend": "none"}, {"workers": 2}, {"cpus_per_worker": 2, "loaders": 2}],
    ids=["alone", "workers", "loaders"],
)
def test_a_damaged_image_stops_training_with_one_error_and_repaired_it_goes_on(
    tmp_path: Path, tiny: dict[str, Any], toy_images: Path, scale: dict[str, Any]
) -> None:
    # Ray's polls set the pace of the others; the loop alone is so quick that 60 steps could end before the damage.
    steps = 180 if scale.get("backend") == "none" else 60
    tiny["optimisation"]["epochs"], tiny["checkpoint_every"] = steps // 3, 10
    tiny["scale"] |= scale
    place, data = tmp_path / "harmed", tmp_path / "data"
    shutil.copytree(toy_images, data)
    process, output = damaged_while_training(place, tiny, data, flipped)
    assert process.returncode == 2, output
    path = Store(toy_images, "train").column("path")[47]
    (error,) = [line for line in output.splitlines() if line.startswith("error: ")]
    assert f"'{path}', row 47 of split 'train' of dataset 'toy' in '{data}'" in error and SHARD in error
    assert "has other bytes than were written" in error and "dvc repro -s prepare@toy" in error
    assert "starting the workers again" not in output, "no restart mends it"

    (work,) = (path.parent for path in (place / "work").glob("*/about.json"))
    checkpoint = newest(work)
    assert checkpoint
    saved, reached = step_of(checkpoint), max(steps_shown(output))
    assert reached - 10 <= saved <= reached < steps, "what was lost since the checkpoint before"
    repaired(data, toy_images)
    process = start(place, tiny, data)
    output, _ = process.communicate(timeout=500)
    assert process.returncode == 0, output
    assert steps_shown(output)[0] > saved and steps_shown(output)[-1] == steps

    whole = start(tmp_path / "whole", tiny, toy_images)
    output, _ = whole.communicate(timeout=500)
    assert whole.returncode == 0, output
    assert (tmp_path / "whole/encoder.safetensors").read_bytes() == (place / "encoder.safetensors").read_bytes()


@pytest.mark.faults
def test_a_shard_cut_short_kills_its_readers_and_the_restart_names_it(
    tmp_path: Path, tiny: dict[str, Any], toy_images: Path
) -> None:
    """A page of the memory map that is gone is a SIGBUS, which no process survives."""
    tiny["optimisation"]["epochs"], tiny["checkpoint_every"] = 20, 10
    data = tmp_path / "data"
    shutil.copytree(toy_images, data)
    process, output = damaged_while_training(tmp_path, tiny, data, lambda shard: os.truncate(shard, 4096))
    assert process.returncode == 2, output
    assert output.count("starting the workers again from step") == 1
    (error,) = [line for line in output.splitlines() if line.startswith("error: ")]
    assert f"shard '{data / SHARD}' cannot be read: " in error and "dvc repro -s prepare@toy" in error
