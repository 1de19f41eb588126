"""What a second worker gives: `python benchmarks/workers.py [--turns 8] [--seconds 30] [--batch 128]`.

Real runs of the stage on a synthetic dataset stand side by side, each worker with one thread on a core of its own. At any time all but one
of them are stopped (SIGSTOP); they go by turns of so many seconds. So each turn compares minutes that are next to each other: a machine
that others share may be a quarter slower five minutes later. A logged step that a stop cut in two doesn't count. Leave its shell open:
the kernel ends stopped processes whose shell is gone.

Images/s of two workers in relation to one worker's, where 1 is twice as many: once with the same images a worker, as workers are added to
train on larger batches, once with the same global batch. Beside each two bare loops at once with as many images, that know nothing of each
other: what the machine itself lets two processes do. A second table says who took the cores' time meanwhile.
"""

import argparse
import contextlib
import os
import signal
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil
import torch

sys.path.insert(0, str(Path(__file__).parents[1]))  # where the project is not installed

from benchmarks.scaling import SIDE, begin, dataset, rows, until, values, workers_of

WARM_S = 45
"""Seconds after the first steps until the first curves are drawn and MLflow samples the machine as rarely as in the days to come."""
ONE = "one worker"
TAKERS = ("workers", "stage", "Ray")
"""Of processor time: worker processes, the stage that waits for them and logs, Ray's other processes."""
MASKS = {
    "target_scale_min": 0.17, "target_scale_max": 0.17, "target_aspect_min": 1.0, "target_aspect_max": 1.0,
    "context_scale_min": 0.9, "context_scale_max": 0.9,
}  # fmt: skip
"""Of one size, so that each step costs the same: the runs are at different ones."""


class Run:
    """One stage, or some bare loops, that go and stand together; `images` come with a step of all of them."""

    def __init__(self, folder: Path, data: Path, chosen: dict[str, Any], images: int, bare: int = 0) -> None:
        """Starts `bare` bare loops, else a stage."""
        self._images, self._bare, self.went = images, bare, 0.0
        self.took = dict.fromkeys(TAKERS, 0.0)
        self._folders = [folder / str(number) for number in range(bare or 1)]
        folder.mkdir()
        self._processes = [begin(each, data, chosen, bool(bare)) for each in self._folders]

    def warm(self) -> None:
        """Lets it train until nothing of its start is left, and stops it."""
        until(self._training)
        time.sleep(WARM_S)
        self._pin()
        self._signal(signal.SIGSTOP)

    def _training(self) -> bool:
        for folder, process in zip(self._folders, self._processes, strict=True):
            assert process.poll() is None, (folder / "log").read_text()
        return all(len(rows(folder)) > 3 for folder in self._folders)

    def _pin(self) -> None:
        """Each worker with all its threads to a core; those that it starts from now on inherit it."""
        for core, pid in zip(sorted(os.sched_getaffinity(0)), self._workers(), strict=False):
            for thread in Path(f"/proc/{pid}/task").iterdir():
                os.sched_setaffinity(int(thread.name), {core})

    def turn(self, seconds: float) -> float:
        """Images/s while it goes for so long."""
        logged, had = [len(rows(folder)) for folder in self._folders], self._processor()
        self._signal(signal.SIGCONT)
        time.sleep(seconds)
        self._signal(signal.SIGSTOP)
        self.went += seconds
        for taker, total in self._processor().items():
            self.took[taker] += total - had[taker]
        new = [row for folder, before in zip(self._folders, logged, strict=True) for row in rows(folder)[before:]]
        whole = [row["seconds_per_step"] for row in new if row["seconds"] < seconds]
        assert whole, f"no two logged steps within {seconds} s; --seconds must be more"
        per_step: float = statistics.mean(whole)
        return self._images / per_step

    def _workers(self) -> list[int]:
        stages = [process.pid for process in self._processes]
        return stages if self._bare else workers_of(self._processes[0])

    def _all(self) -> list[psutil.Process]:
        """Ray's own as well."""
        stages = [psutil.Process(process.pid) for process in self._processes]
        return stages + [child for stage in stages for child in stage.children(recursive=True)]

    def _processor(self) -> dict[str, float]:
        """Seconds of processor time that each of `TAKERS` has had so far."""
        workers, stages = set(self._workers()), {process.pid for process in self._processes}
        seconds = dict.fromkeys(TAKERS, 0.0)
        for each in self._all():
            taker = "workers" if each.pid in workers else "stage" if each.pid in stages else "Ray"
            with contextlib.suppress(psutil.NoSuchProcess):
                seconds[taker] += sum(each.cpu_times()[:2])
        return seconds

    def _signal(self, number: int) -> None:
        for each in self._all():
            with contextlib.suppress(psutil.NoSuchProcess):
                each.send_signal(number)

    def end(self) -> None:
        """Without what it would still do."""
        self._signal(signal.SIGKILL)
        for process in self._processes:
            process.wait()


def started(home: Path, data: Path, batch: int, ending: contextlib.ExitStack) -> dict[str, Run]:
    """All that is compared, each with more steps than it will get to; started one after the other, and stopped."""

    def long(images: int, backend: str = "ray", workers: int = 1) -> dict[str, Any]:
        chosen = values(10**6, images, backend, workers) | {"log_every": 2}
        chosen["masks"] |= MASKS
        return chosen

    ways: dict[str, tuple[dict[str, Any], int, int]] = {
        ONE: (long(batch), batch, 0),
        "two workers, the same images each": (long(2 * batch, workers=2), 2 * batch, 0),
        "two loops apart, the same images each": (long(batch, "none"), 2 * batch, 2),
        "two workers, half the images each": (long(batch, workers=2), batch, 0),
        "two loops apart, half the images each": (long(batch // 2, "none"), batch, 2),
    }
    runs = dict[str, Run]()
    for number, (name, (chosen, images, bare)) in enumerate(ways.items()):
        runs[name] = Run(home / str(number), data, chosen, images, bare)
        ending.callback(runs[name].end)
        runs[name].warm()
    return runs


def compared(runs: dict[str, Run], turns: int, seconds: float) -> dict[str, list[float]]:
    """Images/s of each run in each turn."""
    found: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(turns):
        for name, run in runs.items():
            found[name].append(run.turn(seconds))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=30, help="of a run in each turn; two logged steps must fit in")
    parser.add_argument("--batch", type=int, default=128, help="images a step of one worker; 128 are preset cifar10's")
    chosen = parser.parse_args()
    if chosen.turns < 2:
        parser.error(f"--turns is {chosen.turns}; the spread needs at least 2")
    with tempfile.TemporaryDirectory() as home_name, contextlib.ExitStack() as ending:
        home = Path(home_name)
        data = dataset(home / "noise")
        runs = started(home, data, chosen.batch, ending)
        before = psutil.cpu_times()
        found = compared(runs, chosen.turns, chosen.seconds)
        taken = [after - earlier for earlier, after in zip(before, psutil.cpu_times(), strict=True)]
    print(
        f"torch {torch.__version__}, {os.cpu_count()} cores; ViT 192 wide, 6 layers, {SIDE} px, batch {chosen.batch}; other machines on "
        f"this host took {100 * taken[before._fields.index('steal')] / sum(taken[:8]):.1f}% of the processor's time"
    )
    print("\n| | images/s | of twice one worker's | middle half of the turns |\n|---|---|---|---|")
    for name, rates in found.items():
        gains = [rate / (2 * one) for one, rate in zip(found[ONE], rates, strict=True)]
        low, _, high = statistics.quantiles(gains, n=4)
        print(f"| {name} | {statistics.median(rates):.1f} | {statistics.median(gains):.3f} | {low:.3f} to {high:.3f} |")
    print(f"\n| of {os.cpu_count()} cores' time | {' | '.join(TAKERS)} |\n|---|---|---|---|")
    for name, run in runs.items():
        shares = (run.took[taker] / run.went / (os.cpu_count() or 1) for taker in TAKERS)
        print(f"| {name} | {' | '.join(f'{100 * share:.1f}%' for share in shares)} |")


if __name__ == "__main__":
    main()
