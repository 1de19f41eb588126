"""Prepared datasets: memory-mapped Arrow shards beside a card that says what they hold.

`<folder>/card.json` and `<folder>/<split>/shard-00000.arrow`, one record batch a shard, in Arrow's IPC file format.
The bytes are a function of the rows alone: no time, no random id, no library version.
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
import pyarrow as pa
from PIL import Image, ImageOps, UnidentifiedImageError

from components.stage import write_json

Row = Mapping[str, Any]

COLUMNS: dict[str, dict[str, pa.DataType]] = {
    kind: {"path": pa.string(), "image": pa.binary(), **extra}
    for kind, extra in {
        "images": {"label": pa.int32(), "holdout": pa.float64()},  # label -1 where there are no classes
        "scenes": {"count": pa.int32(), "distance": pa.float64(), "holdout": pa.float64()},
        "video": {"sequence": pa.string(), "frame": pa.int32(), "mask": pa.binary()},  # b"" without annotation
    }.items()
}
AGAIN = "it was damaged after it was prepared: remove the folder and prepare the dataset again"
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


def hold(path: str) -> float:
    """Where an item falls between 0 and 1, by the sha256 of its path alone: below a fraction it is held out of training to choose on.

    So a share that is held out never moves, whatever else is added, removed or drawn.
    """
    return int.from_bytes(hashlib.sha256(path.encode()).digest()[:8], "big") / 2**64


def complete(row: Row, kind: str) -> Row:
    """The row with the columns that follow from others."""
    return {**row, "holdout": hold(row["path"])} if "holdout" in COLUMNS[kind] else row


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


def size(row: Row, kind: str) -> int:
    """Bytes of a row's images and masks."""
    return sum(len(row[name]) for name in _binary(kind))


def _binary(kind: str) -> list[str]:
    return [name for name, column in COLUMNS[kind].items() if column == pa.binary()]


def _shards(rows: Iterable[Row], kind: str, limit: int) -> Iterator[list[Row]]:
    """Runs of rows whose binary columns hold at most `limit` bytes together; a larger row stands alone."""
    shard: list[Row] = []
    total = 0
    for row in rows:
        if shard and total + size(row, kind) > limit:
            yield shard
            shard, total = [], 0
        shard.append(row)
        total += size(row, kind)
    if shard:
        yield shard


def row_digest(row: Row, kind: str, image: bytes = b"") -> bytes:
    """sha256 [32] of one row: each value's text, or the sha256 of its bytes, behind its length, so that no two rows share a text.

    `image` is the sha256 of the image's bytes where it is known. `holdout` follows from the path and is left out.
    """
    digest = hashlib.sha256()
    for name in COLUMNS[kind]:
        if name == "holdout":
            continue
        value = row[name]
        known = image if name == "image" else b""
        data = known or hashlib.sha256(value).digest() if isinstance(value, bytes) else str(value).encode()
        digest.update(struct.pack("<q", len(data)) + data)
    return digest.digest()


def write_shard(path: Path, rows: Sequence[Row], kind: str) -> None:
    """One record batch with all columns of `kind`."""
    schema = pa.schema([pa.field(name, column, nullable=False) for name, column in COLUMNS[kind].items()])
    arrays = [_array([row[field.name] for row in rows], field.type) for field in schema]
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, schema) as writer:
        writer.write_batch(pa.record_batch(arrays, schema=schema))


def _array(values: list[Any], kind: pa.DataType) -> pa.Array:
    """Images are joined in one step; Arrow would copy a growing buffer again and again."""
    if kind != pa.binary():
        return pa.array(values, kind)
    ends = np.cumsum([0, *map(len, values)], dtype=np.int64)
    assert ends[-1] < 2**31, "a shard's images have less than 2 GiB"
    buffers = [None, pa.py_buffer(ends.astype(np.int32)), pa.py_buffer(b"".join(values))]
    return pa.Array.from_buffers(kind, len(values), buffers)


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

    Raises ValueError when the folder is no prepared dataset or has no such split. Pickles to its two arguments.
    """

    def __init__(self, folder: Path, split: str) -> None:
        self.folder, self.split = folder, split
        self.card: dict[str, Any] = read_card(folder)
        if split not in self.card["splits"]:
            raise ValueError(
                f"{str(folder)!r} has no split {split!r}; its splits are: {', '.join(self.card['splits'])}"
            )
        paths = [folder / split / f"shard-{n:05d}.arrow" for n in range(self.card["splits"][split]["shards"])]
        self._batches = [_mapped(path) for path in paths]
        self._ends = np.cumsum([batch.num_rows for batch in self._batches]).tolist()
        if len(self) != (count := self.card["splits"][split]["count"]):
            raise ValueError(
                f"the shards of split {split!r} in {str(folder)!r} hold {len(self)} rows, but its card counts {count}; {AGAIN}"
            )
        self._binary: dict[str, list[tuple[npt.NDArray[np.int32], memoryview]]] = {}

    def __reduce__(self) -> tuple[type["Store"], tuple[Path, str]]:
        return Store, (self.folder, self.split)

    def __len__(self) -> int:
        return int(self._ends[-1]) if self._ends else 0

    def column(self, name: str) -> npt.NDArray[Any]:
        """All values [n] of a column that holds no image bytes; strings come as an object array."""
        values = [batch.column(name).to_numpy(zero_copy_only=False) for batch in self._batches]
        return np.concatenate(values) if values else np.empty(0)

    def image(self, index: int) -> Image.Image:
        """Picture `index` as RGB, turned as its EXIF says. Raises ValueError as `damaged` has it."""
        try:
            return decode(self.view(index))
        except ValueError as error:
            raise self.damaged(index, error) from error

    def damaged(self, index: int, error: ValueError) -> ValueError:
        """What to raise when picture `index` can't be decoded for the reason `error`: it names the picture."""
        shard, row = self._place(index)
        path = self._batches[shard].column("path")[row].as_py()
        return ValueError(
            f"{path!r}, row {index} of split {self.split!r} of dataset {self.card['name']!r} in {str(self.folder)!r}, cannot be "
            f"decoded: {error}; it was damaged after it was prepared, or before and `check: structure` did not see it: prepare the "
            "dataset again with `check: decode`"
        )

    def bytes(self, index: int, column: str = "image") -> bytes:
        """The bytes of the file as they came; for `mask`, b"" where the frame has no annotation."""
        return bytes(self.view(index, column))

    def view(self, index: int, column: str = "image") -> memoryview:
        """The same bytes as they lie in the memory map, read-only."""
        shard, row = self._place(index)
        if column not in self._binary:  # offsets and bytes as they lie in the map; Arrow's scalars are 20 times slower
            self._binary[column] = [_buffers(batch.column(column)) for batch in self._batches]
        offsets, data = self._binary[column][shard]
        return data[offsets[row] : offsets[row + 1]]

    def _place(self, index: int) -> tuple[int, int]:
        """Shard and row in it."""
        if not 0 <= index < len(self):
            raise IndexError(f"row {index} of {len(self)}")
        shard = bisect.bisect_right(self._ends, index)
        return shard, index - (self._ends[shard - 1] if shard else 0)


def _mapped(path: Path) -> pa.RecordBatch:
    """The shard's one batch. The file is closed: its pages stay mapped, and ImageNet has more shards than a process may open files."""
    try:
        with pa.memory_map(str(path)) as source:
            return pa.ipc.open_file(source).get_batch(0)
    except (OSError, pa.ArrowInvalid) as error:
        raise ValueError(f"shard {str(path)!r} cannot be read: {error}; {AGAIN}") from error


def _buffers(array: pa.Array) -> tuple[npt.NDArray[np.int32], memoryview]:
    _, offsets, data = array.buffers()
    return np.frombuffer(offsets, np.int32), memoryview(data if data is not None else b"")
