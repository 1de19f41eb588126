"""SIGKILL of a process that decodes images, in the middle of pretraining."""

import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from .test_faults import logged, start, steps_of, steps_shown


def decoders(process: int) -> list[psutil.Process]:
    """Forks of the fork servers that a process and its children have: those that decode, and nothing else."""
    tree = psutil.Process(process).children(recursive=True)
    servers = {child.pid for child in tree if is_server(child)}
    return [child for child in tree if child.ppid() in servers]


def is_server(process: psutil.Process) -> bool:
    try:
        return "forkserver" in " ".join(process.cmdline()) and "forkserver" not in " ".join(
            psutil.Process(process.ppid()).cmdline()
        )
    except psutil.NoSuchProcess:
        return False


@pytest.mark.faults
def test_a_killed_loader_costs_the_steps_since_the_last_checkpoint_and_nobody_has_to_come(
    tmp_path: Path, tiny: dict[str, Any], toy_images: Path
) -> None:
    tiny["optimisation"]["epochs"], tiny["checkpoint_every"] = 20, 10
    tiny["scale"] |= {"cpus_per_worker": 2, "loaders": 2}
    process, deadline = start(tmp_path / "killed", tiny, toy_images), time.monotonic() + 240
    while not any(logged(path) > 12 for path in (tmp_path / "killed/work").glob("*/history.jsonl")):
        assert time.monotonic() < deadline and process.poll() is None, process.stdout and process.stdout.read()
        time.sleep(0.02)
    found = decoders(process.pid)
    assert len(found) == 2
    found[0].kill()
    output, _ = process.communicate(timeout=500)
    assert process.returncode == 0, output
    (told,) = [line for line in output.splitlines() if "a worker was lost" in line]
    assert "a process that decodes images was killed" in told and "starting the workers again from step" in told
    restarted = int(told.rsplit(" ", 1)[1])
    assert 10 <= restarted < 60 and steps_shown(output)[-1] == 60
    assert steps_of(tmp_path / "killed/history.csv") == list(range(1, 61))

    whole = start(tmp_path / "whole", tiny, toy_images)
    output, _ = whole.communicate(timeout=500)
    assert whole.returncode == 0, output
    encoders = [(tmp_path / name / "encoder.safetensors").read_bytes() for name in ("killed", "whole")]
    assert encoders[0] == encoders[1]
