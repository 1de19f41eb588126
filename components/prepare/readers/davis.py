"""Reader of the DAVIS layout: frames, palette or 0/255 masks, and a list of sequences, as in DAVIS 2017 and 2016."""

from pathlib import Path, PurePosixPath

from components.prepare.contract import LAYOUTS
from components.prepare.readers import Item, Listing, find_root, train_first

FRAMES, MASKS = "JPEGImages/480p", "Annotations/480p"


def read(source: Path) -> Listing:
    """Split val, and train where it is listed too. The 2017 lists come before those of 2016 where both are there.

    Raises ValueError naming the sequence that is missing, has a single frame or lacks the mask of its first frame.
    """
    root = find_root(source, "DAVIS", "JPEGImages")
    lists = [root / "ImageSets" / year for year in ("2017", "2016")] if root else []
    folder = next((path for path in lists if (path / "val.txt").is_file()), None)
    if root is None or folder is None:
        raise ValueError(f"{str(source)!r} has no JPEGImages or no ImageSets/2017/val.txt; DAVIS is {LAYOUTS['davis']}")
    splits = train_first(split for split in ("train", "val") if (folder / f"{split}.txt").is_file())
    return Listing(root, "video", [], {split: _split(root, folder / f"{split}.txt") for split in splits})


def _split(root: Path, path: Path) -> list[Item]:
    sequences = _sequences(path)
    if not sequences:
        raise ValueError(f"{str(path)!r} lists no sequence; write one name a line, a folder of {FRAMES}")
    return [item for sequence in sequences for item in _items(root, sequence, path)]


def _sequences(path: Path) -> list[str]:
    """Names in a list of DAVIS 2017 (a name a line) or 2016 (`/JPEGImages/480p/<name>/00000.jpg …`, a frame a line)."""
    lines = [line.split()[0] for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    return list(dict.fromkeys(PurePosixPath(line).parent.name if "/" in line else line for line in lines))


def _items(root: Path, sequence: str, listed_in: Path) -> list[Item]:
    frames = _stems(root / FRAMES / sequence, ".jpg")
    masks = set(_stems(root / MASKS / sequence, ".png"))
    where = f"sequence {sequence!r}, listed in {str(listed_in)!r},"
    if len(frames) < 2:
        raise ValueError(
            f"{where} has {len(frames)} frames (*.jpg) in {FRAMES}/{sequence}; a sequence has at least 2: "
            f"add them or remove its line"
        )
    if frames[0] not in masks:
        raise ValueError(
            f"{where} has no mask of its first frame, {MASKS}/{sequence}/{frames[0]}.png, which says what to follow; "
            f"add it or remove the sequence's line"
        )
    for stem in sorted(masks.difference(frames)):
        raise ValueError(
            f"{where} has a mask {MASKS}/{sequence}/{stem}.png but no frame {FRAMES}/{sequence}/{stem}.jpg; "
            f"a missing frame would shift all later ones: add it or remove the mask"
        )
    return [
        Item(
            path=f"{FRAMES}/{sequence}/{stem}.jpg",
            values={"sequence": sequence, "frame": frame},
            group="",
            unit=sequence,
            mask=f"{MASKS}/{sequence}/{stem}.png" if stem in masks else "",
        )
        for frame, stem in enumerate(frames)
    ]


def _stems(folder: Path, suffix: str) -> list[str]:
    """Sorted names without suffix; [] where there is no such folder."""
    paths = folder.iterdir() if folder.is_dir() else ()
    return sorted(path.stem for path in paths if path.suffix == suffix and not path.name.startswith("."))
