"""Prepared datasets: memory-mapped shards beside a card that says what they hold.

`<folder>/card.json` and `<folder>/<split>/shard-00000.arrow`, each as `shard` has it.
"""

import bisect
import hashlib
import json
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageOps, UnidentifiedImageError

from components.images.shard import EarlierError, Row, Shard, bytes_of, complete, row_digest, write_shard
from components.stage import write_json

CARD = ("name", "kind", "format", "classes", "splits", "mean", "std", "skipped")
"""What every card has; those of `prepare` have more."""
FORMATS = ("JPEG", "PNG")
"""What images are stored as."""


def decode(data: bytes | memoryview, others: tuple[str, ...] = ()) -> Image.Image:
    """The RGB picture in the bytes of a JPEG, PNG or one of the formats `others`, turned as its EXIF says.

    16-bit grey is rounded to 8. Raises ValueError, naming no file, if it is broken or larger than Pillow's limit of 179 megapixels.
    """
    image = opened(data, others)
    try:
        ImageOps.exif_transpose(image, in_place=True)
        if image.mode.startswith("I;16"):  # PIL would clip these to white without a word
            grey = np.asarray(image).astype(np.uint32)
            image = Image.fromarray(((grey * 255 + 32767) // 65535).astype(np.uint8))
        if image.mode[0] in "IF":
            raise ValueError(f"its pixels have mode {image.mode}; 8 or 16 bits a channel are read")
        return image if image.mode == "RGB" else image.convert("RGB")
    except BROKEN as error:
        raise _why(error) from error


def opened(data: bytes | bytearray | memoryview, others: tuple[str, ...] = ()) -> Image.Image:
    """The picture with its header read and no pixel yet. Raises ValueError as `decode` does."""
    try:
        return Image.open(BytesIO(data), formats=(*FORMATS, *others))
    except UnidentifiedImageError:  # its text holds a memory address, which has no place in a card
        if bytes(data[:8]).startswith(_STARTS):
            raise ValueError("its header is damaged") from None
        raise ValueError("it is neither JPEG nor PNG" if data else "it is empty") from None
    except BROKEN as error:
        raise _why(error) from error


def turned_size(image: Image.Image) -> tuple[int, int]:
    """Width and height that `decode` gives what `opened` did, from its header alone: its EXIF may lay it on its side.

    Raises ValueError for EXIF that is broken.
    """
    try:
        orientation = Image.Image.getexif(image).get(0x0112)  # PNG's own would read all pixels to find it behind them
    except BROKEN as error:
        raise _why(error) from error
    return image.size[::-1] if orientation in (5, 6, 7, 8) else image.size


_STARTS = (b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n")
_TOLD = (OSError, SyntaxError, EOFError, Image.DecompressionBombError)
BROKEN = (*_TOLD, struct.error, RuntimeError, TypeError, LookupError, ArithmeticError, AttributeError)
"""What Pillow raises for a file that is; those after _TOLD, met when files were damaged at random, say little by themselves."""


def _why(error: Exception) -> ValueError:
    return ValueError(str(error) if isinstance(error, _TOLD) else f"it is damaged: {error}")


def write(folder: Path, kind: str, rows: Mapping[str, Iterable[Row]], shard_mib: int) -> dict[str, dict[str, Any]]:
    """Streams each split's rows into shards of at most `shard_mib` MiB (or one row); returns the card's `splits`."""
    splits = {}
    for split, source in rows.items():
        (folder / split).mkdir(parents=True)
        digests, shards = list[bytes](), 0
        for shards, shard in enumerate(_shards((complete(row, kind) for row in source), kind, shard_mib * 2**20), 1):
            digests += [row_digest(row, kind) for row in shard]
            write_shard(folder / split / f"shard-{shards - 1:05d}.arrow", shard, kind)
        splits[split] = about_split(digests, shards)
    return splits


def about_split(digests: Sequence[bytes], shards: int) -> dict[str, Any]:
    """A split's entry in the card. `content` hashes the rows in order and not the shards, so it is the same for shards of any size."""
    return {"count": len(digests), "shards": shards, "content": hashlib.sha256(b"".join(digests)).hexdigest()}


def _shards(rows: Iterable[Row], kind: str, limit: int) -> Iterator[list[Row]]:
    """Runs of rows whose binary columns hold at most `limit` bytes together; a larger row stands alone."""
    shard: list[Row] = []
    total = 0
    for row in rows:
        if shard and total + bytes_of(row, kind) > limit:
            yield shard
            shard, total = [], 0
        shard.append(row)
        total += bytes_of(row, kind)
    if shard:
        yield shard


def write_card(folder: Path, card: Mapping[str, Any]) -> None:
    """Writes `card` (with all keys of CARD) and `content`, the hash that says which images, labels and splits these are."""
    assert set(CARD) <= set(card), f"a card has the keys {CARD}, not {tuple(card)}"
    identity = [card["kind"], card["classes"], [[name, split["content"]] for name, split in card["splits"].items()]]
    content = hashlib.sha256(json.dumps(identity).encode()).hexdigest()
    write_json(folder / "card.json", {**card, "content": content})


def read_card(folder: Path) -> dict[str, Any]:
    """The card of a prepared dataset. Raises ValueError when `folder` is none."""
    path = folder / "card.json"
    if not path.is_file():
        raise ValueError(
            f"{str(folder)!r} is no prepared dataset: it has no card.json; make it with `dvc repro prepare`"
        )
    card: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return card


def splits(folder: Path) -> list[str]:
    """Names of the splits; on the first, train where there is one, `mean` and `std` were measured."""
    return list(read_card(folder)["splits"])


class Store:
    """One split of a prepared dataset, read through a memory map: random access costs no copy of the shard.

    Raises ValueError when the folder is no prepared dataset or has no such split; also, and then it says how to bring back what was
    stored, when a shard is not what was written: at once if it is cut short, when they are read if values in it are others.
    Pickles to its two arguments.
    """

    def __init__(self, folder: Path, split: str) -> None:
        self.folder, self.split = folder, split
        self.card: dict[str, Any] = read_card(folder)
        if split not in self.card["splits"]:
            raise ValueError(
                f"{str(folder)!r} has no split {split!r}; its splits are: {', '.join(self.card['splits'])}"
            )
        count, shards = (self.card["splits"][split][key] for key in ("count", "shards"))
        self._shards = [self._opened(folder / split / f"shard-{n:05d}.arrow") for n in range(shards)]
        self._ends = np.cumsum([len(shard) for shard in self._shards]).tolist()
        if len(self) != count:
            raise ValueError(
                f"the shards of split {split!r} in {str(folder)!r} hold {len(self)} rows, but its card counts {count}; {self._again()}"
            )

    def __reduce__(self) -> tuple[type["Store"], tuple[Path, str]]:
        return Store, (self.folder, self.split)

    def __len__(self) -> int:
        return int(self._ends[-1]) if self._ends else 0

    def column(self, name: str) -> npt.NDArray[Any]:
        """All values [n] of a column that holds no image bytes; strings come as an object array."""
        values = [self._column(shard, name) for shard in self._shards]
        return np.concatenate(values) if values else np.empty(0)

    def image(self, index: int) -> Image.Image:
        """Picture `index` as RGB, turned as its EXIF says. Raises ValueError as `undecodable` has it, and as `view` does."""
        data = self.view(index)
        try:
            return decode(data)
        except ValueError as error:
            raise self.undecodable(index, error) from error

    def undecodable(self, index: int, error: ValueError) -> ValueError:
        """What to raise when picture `index` can't be decoded for the reason `error`: it names the picture."""
        return ValueError(
            f"{self._named(index)} cannot be decoded: {error}; it was stored like that, for `check: structure` does not see all: "
            "prepare the dataset again with `check: decode`"
        )

    def bytes(self, index: int, column: str = "image") -> bytes:
        """The bytes of the file as they came; for `mask`, b"" where the frame has no annotation."""
        return bytes(self.view(index, column))

    def view(self, index: int, column: str = "image") -> memoryview:
        """The same bytes as they lie in the memory map, read-only. Raises ValueError, which names them, for others than were stored."""
        shard, row = self._place(index)
        try:
            return self._shards[shard].view(row, column)
        except ValueError as error:
            raise ValueError(f"{self._named(index)}: {error}; {self._again(self._shards[shard].path)}") from error

    def _named(self, index: int) -> str:
        shard, row = self._place(index)
        path = self._shards[shard].path_of(row)
        return (
            f"{path!r}, row {index} of split {self.split!r} of dataset {self.card['name']!r} in {str(self.folder)!r},"
        )

    def _opened(self, path: Path) -> Shard:
        try:
            return Shard(path, self.card["kind"])
        except EarlierError as error:
            raise ValueError(f"{error}; prepare the dataset again: `dvc repro prepare@{self.card['name']}`") from error
        except ValueError as error:
            raise ValueError(f"{error}; {self._again(path)}") from error

    def _column(self, shard: Shard, name: str) -> npt.NDArray[Any]:
        try:
            return shard.column(name)
        except ValueError as error:
            raise ValueError(f"{error}; {self._again(shard.path)}") from error

    def _place(self, index: int) -> tuple[int, int]:
        """Shard and row in it."""
        if not 0 <= index < len(self):
            raise IndexError(f"row {index} of {len(self)}")
        shard = bisect.bisect_right(self._ends, index)
        return shard, index - (self._ends[shard - 1] if shard else 0)

    def _again(self, shard: Path | None = None) -> str:
        """How to bring back what was stored. DVC's cache may hold the very file, hard-linked, and then with the same damage."""
        cached = f'find -L "$(dvc cache dir)" -samefile {shard} -exec rm -f {{}} +; ' if shard else ""
        return (
            f"it was damaged after it was prepared. To bring back what was stored: {cached}rm -r {self.folder}; "
            f"dvc repro -s prepare@{self.card['name']}"
        )
