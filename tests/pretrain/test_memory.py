"""A node whose memory runs out: Ray's monitor ends workers there, with SIGKILL."""

from pathlib import Path
from typing import Any

import psutil
import pytest

from .test_run import pretrain

pytestmark = pytest.mark.faults


def test_workers_that_are_ended_each_time_get_the_ways_out(
    tmp_path: Path, tiny: dict[str, Any], toy_images: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To the monitor of this run the machine is full as it is."""
    memory = psutil.virtual_memory()
    monkeypatch.setenv("RAY_memory_usage_threshold", f"{0.5 * memory.used / memory.total:.4f}")
    monkeypatch.setenv("RAY_memory_monitor_refresh_ms", "100")
    tiny["optimisation"]["epochs"] = 1000
    tiny["checkpoint_every"] = 10**6
    done = pretrain(tmp_path, tiny, toy_images)
    assert done.returncode == 2, done.stdout
    assert (
        done.stdout.count("WARNING: a worker was lost: OutOfMemoryError: ") == 3
    )  # another process may have been to blame
    assert (
        "error: out of memory with 16 images at once of a worker's 16 (optimisation.global_batch_size 16" in done.stderr
    )
