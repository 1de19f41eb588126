"""Contact sheet: what a person looks at before trusting a dataset."""

from collections.abc import Iterator
from io import BytesIO
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw

from components.images.store import Store, splits
from components.stage import atomic

IMAGES, COLUMNS = 48, 8
TILE, CAPTION = 128, 14  # pixels: longer side of a picture, height of the line below it


def draw(dataset: Path, path: Path) -> None:
    """A PNG of up to 48 images spread evenly over all splits, each with its class, count and distance, or mask."""
    tiles = list(_tiles([Store(dataset, split) for split in splits(dataset)]))
    rows = -(-len(tiles) // COLUMNS)
    height = max(picture.height for picture, _ in tiles)
    sheet = Image.new("RGB", (COLUMNS * TILE, rows * (height + CAPTION)), "white")
    pen = ImageDraw.Draw(sheet)
    for number, (picture, caption) in enumerate(tiles):
        left, top = number % COLUMNS * TILE, number // COLUMNS * (height + CAPTION)
        sheet.paste(picture, (left + (TILE - picture.width) // 2, top + (height - picture.height) // 2))
        while pen.textlength(caption) > TILE - 6:
            caption = caption[:-1]
        pen.text((left + 3, top + height + 1), caption, fill="black")
    with atomic(path) as temporary:
        sheet.save(temporary, "PNG")


def _tiles(stores: list[Store]) -> Iterator[tuple[Image.Image, str]]:
    """Pictures and their captions: images 0, n/48, 2n/48 … of the n images of all splits one after another."""
    total = sum(len(store) for store in stores)
    places = [place * total // IMAGES for place in range(IMAGES)] if total > IMAGES else list(range(total))
    first = 0
    for store in stores:
        captions = _captions(store, [place - first for place in places if first <= place < first + len(store)])
        for index, caption in captions.items():
            yield _fit(_picture(store, index)), caption
        first += len(store)


def _captions(store: Store, indices: list[int]) -> dict[int, str]:
    if store.card["kind"] == "scenes":
        counts, distances = store.column("count"), store.column("distance")
        return {index: f"{counts[index]} objects, {distances[index]:.1f} away" for index in indices}
    if store.card["kind"] == "video":
        sequences, frames = store.column("sequence"), store.column("frame")
        return {index: f"{frames[index]}  {sequences[index]}" for index in indices}
    labels, classes = store.column("label"), store.card["classes"]
    names = [*classes, "no class"]  # label -1
    return {index: f"{names[labels[index]]} ({store.split})" for index in indices}


def _picture(store: Store, index: int) -> Image.Image:
    """The image, objects of its mask tinted: in their own colours where the mask has a palette, else red."""
    image = store.image(index)
    mask = store.bytes(index, "mask") if store.card["kind"] == "video" else b""
    if mask:
        with Image.open(BytesIO(mask)) as ids:
            colours = ids.convert("RGB") if ids.mode == "P" else Image.new("RGB", ids.size, "red")
            inside = Image.fromarray(np.where(np.asarray(ids), np.uint8(255), np.uint8(0)))
        image.paste(Image.blend(image, colours, 0.5), mask=inside)
    return image


def _fit(image: Image.Image) -> Image.Image:
    """Scaled to fit a tile; small images stay crisp."""
    scale = TILE / max(image.size)
    size = (max(1, round(image.width * scale)), max(1, round(image.height * scale)))
    return image.resize(size, Image.Resampling.NEAREST if scale > 1 else Image.Resampling.BICUBIC)
