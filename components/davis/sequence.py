"""One video: its frames in order, its true masks as object ids, and the size at which it enters the encoder."""

from pathlib import Path, PurePosixPath
from typing import Literal

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.nn import functional

from components.davis.palette import Ids, read_values
from components.images.store import Store, read_card
from components.images.transforms import STD, direct_resize, normalise

VOID = 255
PAPER_RED_STD = 0.228  # DINO's slip; part of the published protocol
PAPER_TOKENS = 4  # DINO floors the long side to 64 pixels at patch 16

Profile = Literal["paper", "clean"]


class Sequence:
    """Frames of one video (`frames`: row of the store → path, in order) and the masks that exist.

    Object ids are 1..`objects`, those of the first mask.
    A grey first mask of 0 and 255 (DAVIS 2016) is one object; otherwise values are ids (DAVIS 2017) and 255 is void, which
    counts as background, as in the official tool's semi-supervised task. Raises ValueError when the first mask is missing,
    empty or skips an id.
    """

    def __init__(self, store: Store, name: str, frames: dict[int, PurePosixPath]) -> None:
        self._store, self._rows = store, list(frames)
        self.name, self.paths = name, list(frames.values())
        self._annotated = [len(store.bytes(row, "mask")) > 0 for row in self._rows]
        if not self._annotated[0]:
            raise ValueError(
                f"sequence {self.name!r} has no mask for its first frame {self.paths[0]}; label propagation starts from it: "
                f"add the annotation or take the sequence out of the dataset's list"
            )
        values_HW, palette = read_values(store.bytes(self._rows[0], "mask"))
        self._one_object = not palette and {VOID} <= set(np.unique(values_HW).tolist()) <= {0, VOID}
        self.size: tuple[int, int] = (values_HW.shape[0], values_HW.shape[1])
        self.objects = self._count_objects(self.truth(0))

    def _count_objects(self, ids_HW: Ids) -> int:
        ids = [int(value) for value in np.unique(ids_HW) if value]
        if ids != list(range(1, len(ids) + 1)) or not ids:
            found = ", ".join(map(str, ids[:8])) + (", …" if len(ids) > 8 else "") if ids else "none"
            raise ValueError(
                f"sequence {self.name!r}: the object ids of its first mask ({self.paths[0]}) are {found}; they must be 1, 2, … "
                f"without a gap (the official tool takes no others): renumber them in all masks of the sequence"
            )
        return len(ids)

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def scored(self) -> list[int]:
        """Frames that count: annotated ones, without the first and the last, which the official tool leaves out."""
        return [frame for frame in range(1, len(self) - 1) if self._annotated[frame]]

    def image(self, frame: int) -> Image.Image:
        """The frame as RGB. Raises ValueError when its size is not that of the masks."""
        image = self._store.image(self._rows[frame])
        self._check_size(frame, (image.height, image.width))
        return image

    def truth(self, frame: int) -> Ids:
        """True object ids [H,W] of an annotated frame, 0 for background and void."""
        values_HW, _ = read_values(self._store.bytes(self._rows[frame], "mask"))
        self._check_size(frame, values_HW.shape)
        if self._one_object:
            return (values_HW > 127).astype(np.uint8)
        return np.where(values_HW == VOID, 0, values_HW).astype(np.uint8)

    def _check_size(self, frame: int, size: tuple[int, ...]) -> None:
        if size != self.size:
            height, width = self.size
            raise ValueError(
                f"{self.paths[frame]}: frame or mask has {size[1]}×{size[0]} pixels and the sequence's first mask {width}×{height}; "
                f"all frames and masks of a sequence must have one size"
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


def grid_size(height: int, width: int, short_side: int, patch: int, profile: Profile) -> tuple[int, int]:
    """Token grid (h, w) of a frame whose short side becomes `short_side` pixels, rounded to whole patches.

    h·patch × w·patch is the box that image, labels and prediction share.
    """
    short = max(round(short_side / patch), 1)
    long = short_side * max(height, width) / min(height, width) / patch
    whole = round(long) if profile == "clean" else int(long) // PAPER_TOKENS * PAPER_TOKENS
    return (short, max(whole, short)) if height <= width else (max(whole, short), short)


def pixels(image: Image.Image, height: int, width: int, profile: Profile) -> Tensor:
    """The frame as the encoder takes it: [1,3,height,width], normalised."""
    if profile == "clean":
        return normalise(np.stack([direct_resize(image, height, width)]))
    image_1CHW = torch.from_numpy(np.array(image)).permute(2, 0, 1)[None].float()
    resized = functional.interpolate(image_1CHW, (height, width), mode="bilinear", antialias=False)
    red = torch.tensor([STD[0] / PAPER_RED_STD, 1.0, 1.0])[:, None, None]
    return normalise(resized.round().byte().permute(0, 2, 3, 1)) * red
