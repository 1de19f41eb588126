"""What the values of a mask mean: ids of objects, void, or black and white."""

from io import BytesIO

import numpy as np
from PIL import Image, UnidentifiedImageError

from components import progress
from components.davis.palette import Ids

VOID = 255


class Annotation:
    """How the true masks of one sequence read; the first one decides.

    A first mask of 0 and 255 (DAVIS 2016) is one object; otherwise values are ids (DAVIS 2017) and 255 is void, which
    counts as background. Objects are 1..`objects` of the first mask: what comes up later is background, and said. All this is
    the official tool's semi-supervised task, except that it takes 0/255 for 255 objects.
    """

    def __init__(self, sequence: str, png: bytes, where: str) -> None:
        """Reads the first mask, `png` from the file `where`. Raises ValueError unless its ids are 1, 2, … without a gap."""
        values_HW, _ = read_values(png, where)
        self._sequence, self._first, self._told = sequence, where, False
        self._one_object = _black_and_white(values_HW)
        self.size: tuple[int, int] = (values_HW.shape[0], values_HW.shape[1])
        self.objects = VOID  # none stands out in the mask that says which there are
        self.objects = self._count(self.ids(png, where))

    def _count(self, ids_HW: Ids) -> int:
        ids = [int(value) for value in np.unique(ids_HW) if value]
        if ids != list(range(1, len(ids) + 1)) or not ids:
            found = ", ".join(map(str, ids[:8])) + (", …" if len(ids) > 8 else "") if ids else "none"
            raise ValueError(
                f"sequence {self._sequence!r}: the object ids of its first mask ({self._first}) are {found}; they must be 1, 2, … "
                f"without a gap (the official tool takes no others): renumber them in all masks of the sequence"
            )
        return len(ids)

    def ids(self, png: bytes, where: str) -> Ids:
        """True object ids [H,W]; 0 for background, void and objects that the first mask lacks."""
        values_HW, _ = read_values(png, where)
        self.check_size(where, values_HW.shape)
        if self._one_object:
            return (values_HW > 127).astype(np.uint8)
        ids_HW = np.where(values_HW == VOID, 0, values_HW).astype(np.uint8)
        late_HW = ids_HW > self.objects
        if late_HW.any():
            self._tell(where, np.unique(ids_HW[late_HW]).tolist())
            ids_HW[late_HW] = 0
        return ids_HW

    def _tell(self, where: str, late: list[int]) -> None:
        if not self._told:
            ids = ", ".join(map(str, late[:8]))
            progress.show(
                f"davis: {self._sequence}: {where} has object ids that the sequence's first mask lacks ({ids}); there and in "
                f"later masks they count as background, as in the official tool"
            )
        self._told = True

    def predicted(self, png: bytes, where: str) -> Ids:
        """Predicted ids [H,W] of a frame. Raises ValueError for an object that the first true mask lacks."""
        values_HW, _ = read_values(png, where)
        self.check_size(where, values_HW.shape)
        if self.objects == 1 and _black_and_white(values_HW):
            return (values_HW > 127).astype(np.uint8)
        extra = np.unique(values_HW[values_HW > self.objects]).tolist()
        if extra:
            raise ValueError(
                f"{where} has object ids {', '.join(map(str, extra[:8]))}, but the first true mask of {self._sequence!r} has only 1 to "
                f"{self.objects}; a prediction may hold those and 0 for background"
            )
        return values_HW

    def check_size(self, where: str, size: tuple[int, ...]) -> None:
        """Raises ValueError for a frame or mask that is not as large as the first mask."""
        if size != self.size:
            height, width = self.size
            raise ValueError(
                f"{where}: frame or mask has {size[1]}×{size[0]} pixels and the sequence's first mask {width}×{height}; "
                f"all frames and masks of a sequence must have one size"
            )


def read_values(png: bytes, where: str) -> tuple[Ids, bool]:
    """The stored values [H,W] of a mask, and whether it has a palette (else it is grey; black and white read as 0 and 255)."""
    try:
        with Image.open(BytesIO(png)) as image:
            if image.mode not in ("1", "L", "P"):
                raise ValueError(
                    f"{where} is an image of mode {image.mode}; a mask has one channel of ids (PNG mode P or L)"
                )
            grey = image.convert("L") if image.mode == "1" else image
            return np.array(grey, dtype=np.uint8), image.mode == "P"
    except (UnidentifiedImageError, OSError, SyntaxError) as error:
        raise ValueError(f"{where} cannot be read as a PNG: {error}; write or unpack it again") from error


def _black_and_white(values_HW: Ids) -> bool:
    return (
        {VOID} <= set(np.unique(values_HW).tolist()) <= {0, VOID}
    )  # with a palette, too: void alone would mean nothing
