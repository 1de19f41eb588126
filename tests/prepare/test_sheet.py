"""The contact sheet shows the dataset's own pixels, in order, with masks over them."""

from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from components.images.store import write, write_card
from components.prepare.sheet import CAPTION, COLUMNS, IMAGES, TILE, draw


def png(image: Image.Image) -> bytes:
    stream = BytesIO()
    image.save(stream, "PNG")
    return stream.getvalue()


def sheet(folder: Path, kind: str, rows: dict[str, list[dict[str, Any]]], classes: list[str]) -> np.ndarray:
    splits = write(folder / "set", kind, rows, 1)
    card = {"name": "toy", "kind": kind, "format": "image_folder", "classes": classes, "skipped": []}
    write_card(folder / "set", {**card, "splits": splits, "mean": [0.5] * 3, "std": [0.5] * 3})
    draw(folder / "set", folder / "sheet.png")
    return np.asarray(Image.open(folder / "sheet.png"))


def test_up_to_48_images_spread_over_all_splits(tmp_path: Path) -> None:
    rows = [{"path": str(n), "image": png(Image.new("RGB", (4, 4), (n, 0, 0))), "label": -1} for n in range(192)]
    pixels = sheet(tmp_path, "images", {"train": rows[:160], "val": rows[160:]}, [])
    assert pixels.shape == (IMAGES // COLUMNS * (TILE + CAPTION), COLUMNS * TILE, 3)
    middles = pixels[TILE // 2 :: TILE + CAPTION, TILE // 2 :: TILE, 0]
    assert middles.ravel().tolist() == list(range(0, 192, 4))


def test_captions_differ_where_labels_differ(tmp_path: Path) -> None:
    image = png(Image.new("RGB", (4, 4)))
    rows = [{"path": str(n), "image": image, "label": n} for n in (-1, 0, 1, 1)]
    pixels = sheet(tmp_path, "images", {"train": rows}, ["cat", "a very long name " * 9])
    none, cat, long, again = (pixels[TILE:, n * TILE : (n + 1) * TILE] for n in range(4))
    assert len({caption.tobytes() for caption in (none, cat, long)}) == 3
    assert (long == again).all()
    assert (pixels[TILE:, 4 * TILE] == 255).all()  # the long name was cut at its tile's edge


def test_masks_tint_their_objects_only(tmp_path: Path) -> None:
    ids = np.zeros((128, 128), np.uint8)
    ids[:, 64:] = 1
    palette = Image.fromarray(ids, "P")
    palette.putpalette([0, 0, 0, 0, 0, 200])
    grey = Image.fromarray(ids * 255)
    frame = png(Image.new("RGB", (128, 128), (100, 100, 100)))
    rows = [
        {"path": str(n), "image": frame, "sequence": "s", "frame": n, "mask": mask}
        for n, mask in enumerate((png(palette), png(grey), b""))
    ]
    pixels = sheet(tmp_path, "video", {"val": rows}, [])
    assert pixels[5, [10, 100]].tolist() == [[100, 100, 100], [50, 50, 150]]  # halfway to the palette's colour
    assert pixels[5, [138, 228]].tolist() == [[100, 100, 100], [177, 50, 50]]  # halfway to red
    assert pixels[5, [266, 356]].tolist() == [[100, 100, 100], [100, 100, 100]]
