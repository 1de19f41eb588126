"""A matrix in pieces: cut the same for everyone, there or not there, and found out when the disk changed it."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from components.probe.pieces import MOST_ROWS, Piece, Pieces, cut

MATRIX = np.random.default_rng(0).normal(size=(11, 3)).astype(np.float32)


def write(pieces: Pieces, piece: Piece) -> None:
    with pieces.writing(piece) as writer:
        for start in range(piece.start, piece.stop, 2):
            writer.add(MATRIX[start : min(start + 2, piece.stop)])


@pytest.fixture
def pieces(tmp_path: Path) -> Pieces:
    """Four pieces of a matrix of eleven rows, all written."""
    made = Pieces(tmp_path / "pieces", [Piece(0, 4), Piece(4, 8), Piece(8, 10), Piece(10, 11)], 3)
    for piece in reversed(made.all):
        write(made, piece)
    return made


@given(rows=st.integers(0, 300_000), batch=st.integers(1, MOST_ROWS))
def test_pieces_are_all_rows_once_in_whole_batches(rows: int, batch: int) -> None:
    found = cut(rows, batch)
    assert [piece.start for piece in found] == [0, *(piece.stop for piece in found)][: len(found)]
    assert sum(piece.rows for piece in found) == rows
    assert all(piece.start % batch == 0 and 0 < piece.rows <= max(batch, MOST_ROWS) for piece in found)
    assert len(found) >= min(16, -(-rows // batch))


def test_joined_they_are_the_file_that_numpy_writes(pieces: Pieces, tmp_path: Path) -> None:
    np.save(tmp_path / "witness.npy", MATRIX)
    pieces.join(tmp_path / "features.npy")
    np.testing.assert_array_equal(np.load(tmp_path / "features.npy"), MATRIX)
    kind, order, shape = header(tmp_path / "witness.npy")
    assert header(tmp_path / "features.npy") == (kind, order, shape)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["features.npy", "witness.npy"]


def header(path: Path) -> tuple[object, ...]:
    with path.open("rb") as file:
        assert np.lib.format.read_magic(file) == (1, 0)
        shape, fortran, kind = np.lib.format.read_array_header_1_0(file)
    return kind, fortran, shape


@pytest.mark.parametrize("place", [0, 5, -33, -32, -1])
@pytest.mark.parametrize("how", ["flipped", "cut", "longer"])
def test_whatever_is_damaged_is_found(pieces: Pieces, tmp_path: Path, place: int, how: str) -> None:
    (victim,) = pieces.folder.glob("000000004-*")
    data = bytearray(victim.read_bytes())
    if how == "flipped":
        data[place] ^= 1
    victim.write_bytes(data[:place] if how == "cut" else data + b"\0" * (how == "longer"))
    assert pieces.found() == ({Piece(0, 4), Piece(8, 10), Piece(10, 11)}, {Piece(4, 8)})
    with pytest.raises(
        RuntimeError, match=r"000000004-000000008' was damaged since it was written: look after the disk"
    ):
        pieces.join(tmp_path / "features.npy")
    assert [path.name for path in tmp_path.iterdir()] == ["pieces"] and len(list(pieces.folder.iterdir())) == 4


def test_a_piece_that_is_not_finished_is_not_there(tmp_path: Path) -> None:
    made = Pieces(tmp_path / "pieces", [Piece(0, 4)], 3)
    with pytest.raises(KeyboardInterrupt), made.writing(Piece(0, 4)) as writer:
        writer.add(MATRIX[:3])
        raise KeyboardInterrupt
    assert list(made.folder.iterdir()) == [] and made.found() == (set(), set())
