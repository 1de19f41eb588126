"""What a person sees while a stage works: lines on standard output, which flows show in Prefect's UI as well.

A line that ends in "left" and holds DONE/TOTAL moves the stage's progress there.
"""

import time


class Meter:
    """Prints `label 3200/20000 images, 900 images/s, 19 s left`, at most every two seconds, less often the
    longer it takes, and at the end."""

    def __init__(self, label: str, total: int, unit: str) -> None:
        self._label, self._total, self._unit = label, total, unit
        self._done, self._before, self._start = 0, 0, time.monotonic()
        self._last = self._start

    def skip(self, count: int) -> None:
        """Counts `count` units as done before, which says nothing about the speed."""
        self._done += count
        self._before += count

    def advance(self, count: int) -> None:
        """Counts `count` more units as done."""
        self._done += count
        now = time.monotonic()
        if self._done < self._total and now - self._last < max(2.0, 0.01 * (now - self._start)):
            return
        self._last = now
        rate = max(self._done - self._before, 1e-9) / max(now - self._start, 1e-9)
        left = (self._total - self._done) / rate
        show(f"{self._label}: {self._done}/{self._total} {self._unit}, {rate:.0f} {self._unit}/s, {left:.0f} s left")


def show(text: str) -> None:
    """One line for a person, at once."""
    print(text, flush=True)
