"""Reader of the DAVIS layout: frames, palette or 0/255 masks, and a list of sequences, as in DAVIS 2017 and 2016."""

from collections import defaultdict
from pathlib import PurePosixPath

from components.prepare.published import Release, Size
from components.prepare.readers import Item, Listing, find_root, item, train_first
from components.prepare.tree import Tree

LAYOUT = (
    "JPEGImages/480p/<sequence>/*.jpg, Annotations/480p/<sequence>/*.png and ImageSets/2017/val.txt (or 2016), or a folder or zip with a "
    "folder DAVIS with these"
)
PUBLISHED: list[Release] = [  # frames of 2017, then of 2016
    {"train": Size(0, 4_209), "val": Size(0, 1_999)},
    {"train": Size(0, 2_079), "val": Size(0, 1_376)},
]
FRAMES, MASKS = "JPEGImages/480p", "Annotations/480p"


def read(tree: Tree) -> Listing:
    """Split val, and train where it is listed too. The 2017 lists come before those of 2016 where both are there.

    Raises ValueError naming the sequence that is missing, has a single frame or lacks the mask of its first frame.
    """
    root = find_root(tree, "DAVIS", "JPEGImages")
    lists = [f"ImageSets/{year}" for year in ("2017", "2016")] if root else []
    folder = next((path for path in lists if root and f"{path}/val.txt" in root.entries), None)
    if root is None or folder is None:
        raise ValueError(f"{str(tree.source)!r} has no JPEGImages or no ImageSets/2017/val.txt; DAVIS is {LAYOUT}")
    splits = train_first(split for split in ("train", "val") if f"{folder}/{split}.txt" in root.entries)
    frames, masks = _stems(root, FRAMES, ".jpg"), _stems(root, MASKS, ".png")
    listed = {split: _split(root, f"{folder}/{split}.txt", frames, masks) for split in splits}
    return Listing(root.files, "video", [], listed, root.stamp)


Stems = dict[str, list[str]]


def _split(root: Tree, path: str, frames: Stems, masks: Stems) -> list[Item]:
    sequences = _sequences(root.read(path).decode("utf-8"))
    if not sequences:
        raise ValueError(f"{root.where(path)!r} lists no sequence; write one name a line, a folder of {FRAMES}")
    where = {name: f"sequence {name!r}, listed in {root.where(path)!r}," for name in sequences}
    return [each for name in sequences for each in _items(root, name, where[name], frames, masks)]


def _sequences(text: str) -> list[str]:
    """Names in a list of DAVIS 2017 (a name a line) or 2016 (`/JPEGImages/480p/<name>/00000.jpg …`, a frame a line)."""
    lines = [line.split()[0] for line in text.splitlines() if line.strip()]
    return list(dict.fromkeys(PurePosixPath(line).parent.name if "/" in line else line for line in lines))


def _items(root: Tree, sequence: str, where: str, all_frames: Stems, all_masks: Stems) -> list[Item]:
    frames, masks = all_frames.get(sequence, []), set(all_masks.get(sequence, []))
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
        item(
            root,
            f"{FRAMES}/{sequence}/{stem}.jpg",
            {"sequence": sequence, "frame": frame},
            unit=sequence,
            mask=f"{MASKS}/{sequence}/{stem}.png" if stem in masks else "",
        )
        for frame, stem in enumerate(frames)
    ]


def _stems(root: Tree, folder: str, suffix: str) -> Stems:
    """Sorted names without suffix of the files in each folder of `folder`."""
    found: Stems = defaultdict(list)
    for path in map(PurePosixPath, root.under(folder).entries):
        if len(path.parts) == 2 and path.suffix == suffix:
            found[path.parts[0]].append(path.stem)
    return {name: sorted(stems) for name, stems in found.items()}
