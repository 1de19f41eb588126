"""A node of the cluster loses its power in the middle of pretraining; another one takes its place."""

import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from queue import Empty, Queue
from threading import Thread
from typing import Any

import psutil
import pytest

from ..cluster.nodes import Nodes
from .test_faults import logged, start, steps_of, steps_shown

pytestmark = [pytest.mark.faults, pytest.mark.timeout(1200)]  # a minute; ten where other work takes the cores

PATIENCE_S = 240


@pytest.fixture
def nodes() -> Iterator[Nodes]:
    """A head that trains nothing; the driver is beside it."""
    cluster = Nodes(0)
    yield cluster
    cluster.close()


class Told:
    """A process's lines as they come."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.text, self._lines = "", Queue[str]()
        self._thread = Thread(target=self._read, args=(process,), daemon=True)
        self._thread.start()

    def _read(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout
        for line in process.stdout:
            self._lines.put(line)

    def until(self, words: str) -> None:
        """Returns with the line that holds `words`."""
        deadline = time.monotonic() + PATIENCE_S
        while words not in self.text:
            try:
                self.text += self._lines.get(timeout=max(0.0, deadline - time.monotonic()))
            except Empty:
                pytest.fail(f"no {words!r} in:\n{self.text}")

    def end(self) -> str:
        """All of it, once the process has gone."""
        self._thread.join(PATIENCE_S)
        while not self._lines.empty():
            self.text += self._lines.get()
        return self.text


def joined(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch, place: Path, values: dict[str, Any], toy: Path
) -> subprocess.Popen[str]:
    """Pretraining on that cluster."""
    with monkeypatch.context() as patch:
        for name in os.environ.keys() | nodes.environment:
            if name.startswith("RAY_"):
                patch.delenv(name, raising=False)
        for name, value in nodes.environment.items():
            if name.startswith("RAY_"):
                patch.setenv(name, value)
        return start(place, values, toy)


def until_logged(place: Path, driver: subprocess.Popen[str], told: Told, rows: int) -> None:
    """Returns once it has logged more than so many steps."""
    deadline = time.monotonic() + PATIENCE_S
    while not [path for path in (place / "work").glob("*/history.jsonl") if logged(path) > rows]:
        assert time.monotonic() < deadline and driver.poll() is None, told.end()
        time.sleep(0.05)


def test_training_goes_on_on_another_node_and_ends_as_if_nothing_had_been(
    tmp_path: Path, tiny: dict[str, Any], toy_images: Path, nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny["optimisation"]["epochs"] = 40
    tiny["scale"]["workers"] = 2
    lost, place = nodes.add(2), tmp_path / "lost"
    driver = joined(nodes, monkeypatch, place, tiny, toy_images)
    told = Told(driver)
    until_logged(place, driver, told, 8)
    nodes.kill(lost)
    told.until("starting the workers again from step")
    told.until("the Ray cluster of 1 nodes has 0 CPUs (0 free); waiting, for")
    nodes.add(2)
    output = told.end()
    assert driver.wait(timeout=60) == 0, output
    assert steps_of(place / "history.csv") == list(range(1, 121)) and steps_shown(output)[-1] == 120
    assert output.count("WARNING: a worker was lost") == 1 and "starting the workers again from step 0" not in output

    whole = start(tmp_path / "whole", tiny, toy_images)
    output, _ = whole.communicate(timeout=300)
    assert whole.returncode == 0, output
    for name in ("encoder.safetensors", "predictor.safetensors"):
        assert (tmp_path / "whole" / name).read_bytes() == (place / name).read_bytes()


def test_a_node_that_is_drained_is_a_lost_one_and_ray_starts_nothing_by_itself(
    tmp_path: Path, tiny: dict[str, Any], toy_images: Path, nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cloud takes a machine away and says so before: Ray would start the workers again with the checkpoint that they began with."""
    tiny["optimisation"]["epochs"] = 50
    nodes.add(1)
    (busy,) = nodes.with_cpus()
    driver = joined(nodes, monkeypatch, tmp_path / "drained", tiny, toy_images)
    told = Told(driver)
    until_logged(tmp_path / "drained", driver, told, 8)
    nodes.add(1)
    nodes.drain(busy, 3)
    told.until("starting the workers again from step")
    output = told.end()
    assert driver.wait(timeout=60) == 0, output
    assert steps_of(tmp_path / "drained/history.csv") == list(range(1, 151)) and steps_shown(output)[-1] == 150
    assert output.count("WARNING: a worker was lost") == 1 and "starting the workers again from step 0" not in output


def test_where_a_spare_node_is_there_training_goes_on_at_once(
    tmp_path: Path, tiny: dict[str, Any], toy_images: Path, nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its loss is felt before Ray counts the node as gone, which then still counts among those that must see the files."""
    tiny["optimisation"]["epochs"] = 40
    tiny["scale"]["workers"] = 2
    added = [nodes.add(1) for _ in range(3)]
    driver = joined(nodes, monkeypatch, tmp_path / "spare", tiny, toy_images)
    told = Told(driver)
    until_logged(tmp_path / "spare", driver, told, 8)
    nodes.kill(next(node for node in added if trains(node)))
    told.until("starting the workers again from step")
    output = told.end()
    assert driver.wait(timeout=60) == 0, output
    assert steps_of(tmp_path / "spare/history.csv") == list(range(1, 121))
    assert "starting the workers again from step 0" not in output and "giving up" not in output


def trains(node: subprocess.Popen[bytes]) -> bool:
    """Whether a worker is on it."""
    return any(
        "RayTrainWorker" in " ".join(each.cmdline()) for each in psutil.Process(node.pid).children(recursive=True)
    )
