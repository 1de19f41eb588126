"""Finished sequences, kept until the stage is done, so that a stage that was stopped goes on with the others."""

import json
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from components import progress
from components.davis.judging import Judge, Score
from components.davis.palette import Ids, write_ids
from components.davis.scores import Statistics
from components.davis.sequence import Sequence
from components.stage import atomic, write_json
from components.work import alone, finish, forget_finished

SCORES = "scores.json"


class Work:
    """`<folder>/<follower>/<sequence>/` with its masks and `scores.json`: there is all of it or nothing."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def has(self, follower: str, video: Sequence) -> bool:
        """Whether that sequence is done."""
        return (self._folder / follower / video.name).is_dir()

    def do(self, follower: str, video: Sequence, predicted: Iterable[Ids]) -> None:
        """Writes and scores the ids of every frame, one at a time."""
        scored, judge = set(video.scored), Judge(follower, video.name, video.objects)
        with atomic(self._folder / follower / video.name) as folder:
            folder.mkdir()
            for frame, ids_HW in enumerate(predicted):
                write_ids(folder / f"{video.paths[frame].stem}.png", ids_HW)
                if frame in scored:
                    judge.take(ids_HW, video.truth(frame))
            write_json(folder / SCORES, [[s.object, s.frames, s.j, s.f] for s in judge.scores()])

    def scores(self, follower: str, video: Sequence) -> list[Score]:
        """One score per object of a finished sequence."""
        rows = json.loads((self._folder / follower / video.name / SCORES).read_text(encoding="utf-8"))
        return [
            Score(follower, video.name, label, frames, Statistics(*j), Statistics(*f)) for label, frames, j, f in rows
        ]

    def copy_masks(self, follower: str, video: Sequence, target: Path) -> None:
        """The masks alone of a finished sequence, at `target/<follower>/<sequence>/<frame>.png`."""
        finished = self._folder / follower / video.name
        shutil.copytree(finished, target / follower / video.name, ignore=shutil.ignore_patterns(SCORES))


@contextmanager
def resumable(folder: Path) -> Iterator[Work]:
    """The work in `folder`, which names by its last part what it is the work of; kept for a day after all went well.

    One process at a time is at it; another waits and uses what it made.
    """
    with alone(folder, f"davis: another process follows these very objects in {folder}; waiting to use its masks"):
        forget_finished(folder.parent)
        yield Work(folder)
        finish(folder)


def announce(work: Work, pairs: list[tuple[str, Sequence]], folder: Path) -> list[tuple[str, Sequence]]:
    """The follower and sequence of each piece of work that is left; one line says what is there already."""
    left = [(follower, video) for follower, video in pairs if not work.has(follower, video)]
    if len(left) < len(pairs):
        progress.show(
            f"davis: {len(pairs) - len(left)} of {len(pairs)} passes over a sequence are done already, in {folder}"
        )
    return left
