"""Damage of every kind to a shard: whatever is read of it is what was written, or a ValueError that names it."""

import re
import subprocess
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from components.images.store import Store, decode

from .test_decoding import encoded, noise
from .test_store import dataset

KINDS: dict[str, tuple[list[dict[str, Any]], list[str], list[str]]] = {
    "images": (
        [{"path": f"é{n}", "image": bytes([n]) * (30 + n), "label": n} for n in range(4)],
        ["path", "label", "holdout"],
        ["image"],
    ),
    "video": (
        [{"path": f"é{n}", "image": b"i" * n, "sequence": "s", "frame": n, "mask": b"m" * (2 - n)} for n in range(3)],
        ["path", "sequence", "frame"],
        ["image", "mask"],
    ),
}


def values(store: Store, columns: list[str], binary: list[str]) -> Iterator[tuple[Any, Any]]:
    """What every read gives, None for a ValueError."""
    for name in columns:
        try:
            yield name, store.column(name).tolist()
        except ValueError as error:
            assert f"column {name!r} of shard" in str(error) and "dvc repro -s prepare@toy" in str(error)
            yield name, None
    for name in binary:
        for row in range(len(store)):
            try:
                yield (name, row), store.bytes(row, name)
            except ValueError as error:
                assert f"row {row} of split 'train' of dataset 'toy' in " in str(error) and "shard-00000" in str(error)
                yield (name, row), None


@pytest.mark.parametrize("kind", KINDS)
def test_no_flipped_bit_gives_other_values(tmp_path: Path, kind: str) -> None:
    """One bit of every fifth byte of a shard: header, footer, lengths, text, images, masks and the checksums themselves."""
    rows, columns, binary = KINDS[kind]
    folder = dataset(tmp_path / "d", kind, {"train": rows})
    shard = folder / "train/shard-00000.arrow"
    written, bits = shard.read_bytes(), np.random.default_rng(0)
    known = dict(values(Store(folder, "train"), columns, binary))
    assert None not in known.values()
    refused, unread = 0, set()
    for place in range(0, len(written), 5):
        harmed = bytearray(written)
        harmed[place] ^= 1 << int(bits.integers(8))
        shard.write_bytes(harmed)
        try:
            found = dict(values(Store(folder, "train"), columns, binary))
        except ValueError as error:
            assert "dvc repro" in str(error), error
            refused += 1
            continue
        assert all(value is None or value == known[what] for what, value in found.items()), place
        unread |= {what for what, value in found.items() if value is None}
    assert refused > 100 and len(unread) > len(known) / 2, "many were damaged and seen to be"


def test_a_shard_cut_anywhere_is_refused_when_the_store_opens(tmp_path: Path) -> None:
    """So that no page is missing which a memory map would die of, by SIGBUS."""
    folder = dataset(tmp_path / "d", "images", {"train": KINDS["images"][0]})
    shard = folder / "train/shard-00000.arrow"
    written = shard.read_bytes()
    for kept in [*range(0, len(written), 17), len(written) - 1]:
        for rest in (b"", written[-min(kept, 400) :]):  # the latter with its footer, the middle cut out
            if (harmed := written[:kept] + rest) != written and len(harmed) < len(written):
                shard.write_bytes(harmed)
                with pytest.raises(ValueError, match=r"shard '.*shard-00000.arrow' cannot be read: "):
                    Store(folder, "train")


def test_a_changed_picture_that_decodes_is_refused_all_the_same(tmp_path: Path) -> None:
    """A flipped bit in a JPEG's pixels is other pixels and no error to any decoder."""
    rows = [{"path": f"train/{n}.jpg", "image": encoded(noise(n)), "label": 0} for n in range(3)]
    folder = dataset(tmp_path / "d", "images", {"train": rows})
    shard = folder / "train/shard-00000.arrow"
    image = rows[1]["image"]
    changed = next(
        harmed
        for place in range(len(image) // 2, len(image))
        if is_decoded(harmed := image[:place] + bytes([image[place] ^ 1]) + image[place + 1 :])
    )
    assert np.asarray(decode(changed)).tolist() != np.asarray(decode(image)).tolist()
    shard.write_bytes(shard.read_bytes().replace(image, changed))
    store = Store(folder, "train")
    assert store.bytes(0) == rows[0]["image"] and store.bytes(2) == rows[2]["image"]
    with pytest.raises(ValueError, match=r"^'train/1.jpg', row 1 of split 'train' of dataset 'toy'.* other bytes"):
        store.image(1)


def is_decoded(data: bytes) -> bool:
    try:
        decode(data)
    except ValueError:
        return False
    return True


def test_shards_without_checksums_are_told_from_damaged_ones(tmp_path: Path) -> None:
    folder = dataset(tmp_path / "d", "images", {"train": KINDS["images"][0]})
    shard = folder / "train/shard-00000.arrow"
    with pa.memory_map(str(shard)) as source:
        table = pa.ipc.open_file(source).read_all()
    with pa.OSFile(str(shard), "wb") as sink, pa.ipc.new_file(sink, table.drop_columns("crc32").schema) as writer:
        writer.write_batch(table.drop_columns("crc32").to_batches()[0])
    with pytest.raises(ValueError, match="earlier version, without checksums.*: `dvc repro prepare@toy`$"):
        Store(folder, "train")


PIPELINE = """stages:
  prepare:
    foreach: [toy]
    do:
      cmd: cp -r kept data/prepared/${item}
      deps: [kept]
      outs: [data/prepared/toy]
"""


@pytest.mark.faults
@pytest.mark.parametrize("link", ["copy", "hardlink", "symlink"])
def test_what_the_message_says_brings_back_what_was_stored(tmp_path: Path, link: str) -> None:
    """In a real DVC repository, however its cache is linked; a link shares the damage with the cache, and `dvc checkout` keeps it."""

    def shell(command: str) -> None:
        done = subprocess.run(["bash", "-ec", command], cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr

    folder = Path("data/prepared/toy")
    rows = KINDS["images"][0]
    dataset(tmp_path / "kept", "images", {"train": rows})
    (tmp_path / folder.parent).mkdir(parents=True)
    (tmp_path / "dvc.yaml").write_text(PIPELINE)
    python = f"PATH={Path(sys.executable).parent}:$PATH"
    shell(f"export {python}; git init -q; dvc init -q; dvc config cache.type {link}; dvc repro -q")
    shard = (tmp_path / folder / "train/shard-00000.arrow").resolve()
    written = shard.read_bytes()
    shard.chmod(0o644)
    with shard.open("r+b") as file:  # in place, as a bad disk does
        file.seek(written.index(rows[2]["image"]))
        file.write(b"?")
    shard.chmod(0o444)
    with pytest.raises(ValueError, match="other bytes than were written") as caught:
        Store(tmp_path / folder, "train").bytes(2)
    told = re.search(r"To bring back what was stored: (.*)$", str(caught.value))
    assert told
    shell(f"export {python}; {told[1]}")
    for command in ("true", f"rm -r {folder}; dvc checkout -q {folder}"):
        shell(f"export {python}; {command}")
        store = Store(tmp_path / folder, "train")
        assert [store.bytes(row) for row in range(len(store))] == [row["image"] for row in rows]
    assert zlib.crc32((tmp_path / folder / "train/shard-00000.arrow").read_bytes()) == zlib.crc32(written)
