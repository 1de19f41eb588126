"""One video: its frames in order and its true masks."""

from pathlib import Path, PurePosixPath

from PIL import Image

from components.davis.annotation import Annotation
from components.davis.palette import Ids
from components.images.store import Store, read_card


class Sequence:
    """Frames of one video (`frames`: row of the store → path, in order) and the masks that exist.

    Raises ValueError when the first mask is missing, empty or skips an id, and when a frame is missing.
    """

    def __init__(self, store: Store, name: str, frames: dict[int, PurePosixPath]) -> None:
        self._store, self._rows = store, list(frames)
        self.name, self.paths = name, list(frames.values())
        check_numbers(name, self.paths)
        self._annotated = [frame for frame, row in enumerate(self._rows) if store.bytes(row, "mask")]
        if self._annotated[:1] != [0]:
            raise ValueError(
                f"sequence {self.name!r} has no mask for its first frame {self.paths[0]}; label propagation starts from it: "
                f"add the annotation or take the sequence out of the dataset's list"
            )
        self._annotation = Annotation(name, store.bytes(self._rows[0], "mask"), f"mask of {self.paths[0]}")
        self.size, self.objects = self._annotation.size, self._annotation.objects

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def scored(self) -> list[int]:
        """Frames that count: annotated ones, without the first and the last of these, which the official tool leaves out."""
        return self._annotated[1:-1]

    def image(self, frame: int) -> Image.Image:
        """The frame as RGB. Raises ValueError when its size is not that of the masks."""
        image = self._store.image(self._rows[frame])
        self._annotation.check_size(str(self.paths[frame]), (image.height, image.width))
        return image

    def truth(self, frame: int) -> Ids:
        """True object ids [H,W] of an annotated frame, 0 for background and void."""
        return self._annotation.ids(self._store.bytes(self._rows[frame], "mask"), f"mask of {self.paths[frame]}")


def check_numbers(name: str, paths: list[PurePosixPath]) -> None:
    """Raises ValueError when the numbers that frames are named by leave one out, for all later ones would be one step early."""
    stems = [path.stem for path in paths]
    if not all(stem.isdecimal() for stem in stems):
        return  # names that are no numbers say nothing about what is missing
    numbers = [int(stem) for stem in stems]
    steps = [after - before for before, after in zip(numbers[:-1], numbers[1:], strict=True)]
    for before, step in zip(paths, steps, strict=False):
        if step != min(steps):
            missing = before.with_stem(str(int(before.stem) + min(steps)).zfill(len(before.stem)))
            raise ValueError(
                f"sequence {name!r}: after {before} comes no {missing.name}; a missing frame lets objects jump: add it, or number the "
                f"frames without a gap if the video has none there"
            )


def sequences(dataset: Path) -> list[Sequence]:
    """The videos in split `val` of a prepared dataset, in its order. Raises ValueError when there is none."""
    card = read_card(dataset)
    if card["kind"] != "video":
        raise ValueError(
            f"dataset {card['name']!r} is of kind {card['kind']!r}; davis needs kind 'video': name a video dataset in params/davis.yaml"
        )
    store = Store(dataset, "val")
    frames: dict[str, dict[int, PurePosixPath]] = {}  # sequence → row of the store → path
    for row, (name, path) in enumerate(zip(store.column("sequence"), store.column("path"), strict=True)):
        frames.setdefault(name, {})[row] = PurePosixPath(path)
    if not frames:
        raise ValueError(
            f"dataset {card['name']!r} holds no frame; prepare one whose val.txt names at least one sequence"
        )
    return [Sequence(store, name, members) for name, members in frames.items()]
