"""J and F of the objects of one sequence, taken frame by frame."""

from dataclasses import dataclass

from components.davis import scores
from components.davis.palette import Ids
from components.davis.scores import Statistics


@dataclass(frozen=True)
class Score:
    """J and F of one object over the scored frames of its sequence, as fractions. `encoder` names what predicted."""

    encoder: str
    sequence: str
    object: int
    frames: int
    j: Statistics
    f: Statistics


class Judge:
    """Takes the scored frames of a sequence, one at a time, whatever their number. `perfect` until one differs from the truth."""

    def __init__(self, encoder: str, sequence: str, objects: int) -> None:
        self._encoder, self._sequence = encoder, sequence
        self._j: dict[int, list[float]] = {label: [] for label in range(1, objects + 1)}
        self._f: dict[int, list[float]] = {label: [] for label in range(1, objects + 1)}
        self.perfect = True

    def take(self, predicted_HW: Ids, truth_HW: Ids) -> None:
        """Scores each object in one frame. One that the prediction lacks is an empty mask."""
        for label in self._j:
            pair = predicted_HW == label, truth_HW == label
            self._j[label].append(scores.region_overlap(*pair))
            self._f[label].append(scores.boundary_agreement(*pair))
        self.perfect = self.perfect and all(values[-1] == 1.0 for values in self._j.values())

    def scores(self) -> list[Score]:
        """One score per object. Raises ValueError when no frame was taken."""
        return [
            Score(
                self._encoder,
                self._sequence,
                label,
                len(values),
                scores.statistics(values),
                scores.statistics(self._f[label]),
            )
            for label, values in self._j.items()
        ]
