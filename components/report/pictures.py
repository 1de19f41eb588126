"""The figures of the page: pictures that stages left, scaled down, and curves and confusion matrices drawn from their tables."""

import base64
import csv
import re
from collections.abc import Callable, Collection, Iterator, Sequence
from io import BytesIO
from pathlib import Path
from typing import NamedTuple

import numpy as np
from matplotlib.figure import Figure as Drawing
from PIL import Image, UnidentifiedImageError

from components import figures
from components.report.content import Table
from components.stage import STAGES

COLOURS = 128  # of a drawing's palette: lines and letters lose nothing, and the file shrinks to a third
QUALITY = 88  # of a photograph's JPEG
ROWS = 500  # of a table in the page, whose title says so; the CSV has all
WIDE = ("pretrain", "history")
NUMBER = re.compile(r"|nan|-?[0-9.]+(e[-+]?[0-9]+)?")
TITLES = {
    "pretrain": "curves over the steps",
    "pretrain_spectrum": "eigenvalues of AAᵀ",
    "pretrain_masks": "first training crops with context and targets",
    "confusion": "actual and predicted classes",
    "heads": "every head of the grid, percent right",
    "count_confusion": "number of objects, chosen head",
    "count_heads": "number of objects: every head of the grid, percent right",
    "distance_confusion": "distance of the closest object, chosen head",
    "distance_heads": "distance of the closest object: every head of the grid, percent right",
    "davis_sequences": "every sequence, percent",
    "history": "finetuning, epoch by epoch",
}
"""By the name of the file; others are told by their stage, or by their own name in words."""


class Figure(NamedTuple):
    """A picture as a data URI, or a table; `stage` is whose it is, `title` what it shows; two `half` ones fit side by side."""

    stage: str
    title: str
    picture: str = ""
    half: bool = False
    table: Table | None = None


def collect(plots: Path, current: Collection[str], pixels: int) -> list[Figure]:
    """Every figure and table under `plots` that belongs to a stage or member in `current`.

    Pictures get at most `pixels` on their longest side. Raises ValueError, naming the file, for one that cannot be read.
    """
    found: list[Figure] = []
    for path in sorted(plots.rglob("*")):
        name = path.relative_to(plots).with_suffix("").as_posix()
        stage = _owner(name, current)
        if stage and path.is_file() and path.suffix in (".png", ".csv"):
            found += _figures(path, stage, _title(name, stage, path.suffix), pixels)
    return sorted(found, key=lambda figure: _place(figure.stage))


def _title(name: str, stage: str, suffix: str) -> str:
    """What the figure `name` of a stage shows, in words."""
    own = name.removeprefix(stage).strip("_/")
    if not own and stage != "pretrain":
        return (
            {"davis": "masks of some frames"}.get(stage, "some of the images")
            if suffix == ".png"
            else "every object, percent"
        )
    return TITLES.get(name.rpartition("/")[2], own.replace("_", " "))


def _place(stage: str) -> int:
    """The order of the pipeline, but the data last."""
    word = stage.partition("/")[0]
    return len(STAGES) if word == "prepare" else STAGES.index(word)


def _owner(name: str, current: Collection[str]) -> str:
    """The stage that left a file: plots/davis.png, plots/pretrain_masks.png, plots/linear_probe/digits/heads.csv; '' for none.

    At the top of the folder an underscore parts stage and subject. Below it does not, where `shapes_video` is no figure of `shapes`.
    """
    owners = [
        stage
        for stage in current
        if name == stage or name.startswith((f"{stage}/", *[f"{stage}_"] * ("/" not in name)))
    ]
    return max(owners, key=len, default="")


def _figures(path: Path, stage: str, title: str, pixels: int) -> Iterator[Figure]:
    try:
        if path.suffix == ".png":
            with Image.open(path) as image:
                yield Figure(stage, title, picture(image, pixels))
            return
        head, *rows = _read(path)
        drawing = _drawing(path, head, rows)
    except (UnidentifiedImageError, OSError, ValueError, KeyError, IndexError) as error:
        raise ValueError(f"{path} cannot be shown: {error}; remove it, and `dvc repro` makes it again") from error
    if drawing:
        yield Figure(stage, title, _drawn(drawing, pixels), half=path.stem not in WIDE)
    else:
        part = f" (the first {ROWS} of {len(rows)} rows)" if len(rows) > ROWS else ""
        yield Figure(
            stage, title + part, table=Table(tuple(head), [tuple(row) for row in rows[:ROWS]], words=len(head))
        )


def _read(path: Path) -> list[list[str]]:
    with path.open(newline="", encoding="utf-8") as file:
        rows = list(csv.reader(file))
    if not rows:
        raise ValueError("it is empty")
    return rows


def _drawing(path: Path, head: Sequence[str], rows: Sequence[Sequence[str]]) -> Drawing | None:
    """The drawing of a table by its columns; None for one that is to be read."""
    columns = {name: [row[i] for row in rows] for i, name in enumerate(head)}
    if path.stem == "pretrain":
        # An empty cell is what was not measured at that step.
        return figures.curves(
            [{name: float(cell) for name, cell in zip(head, row, strict=True) if cell} for row in rows]
        )
    if head[0] == "epoch":
        return figures.by_epoch({name: [float(cell) for cell in cells] for name, cells in columns.items()})
    if {"start", "end"} <= columns.keys():
        return figures.spectrum(*([float(cell) for cell in columns[name]] for name in ("end", "start")))
    if list(head) == ["actual", "predicted"]:
        classes = sorted({*columns["actual"], *columns["predicted"]})
        labels = {name: i for i, name in enumerate(classes)}
        return figures.confusion(classes, *(np.array([labels[cell] for cell in columns[name]]) for name in head))
    return None


def _drawn(drawing: Drawing, pixels: int) -> str:
    stream = BytesIO()
    drawing.savefig(stream, format="png")
    with Image.open(stream) as image:
        return picture(image, pixels)


def picture(image: Image.Image, pixels: int) -> str:
    """A data URI: a PNG of few colours for drawings, a JPEG for photographs, whichever is smaller."""
    small = Image.new("RGB", image.size, "white")
    small.paste(image.convert("RGB"), mask=image.convert("RGBA").getchannel("A"))
    small.thumbnail((pixels, pixels), Image.Resampling.LANCZOS)
    encodings: dict[str, Callable[[BytesIO], None]] = {
        "png": lambda stream: small.quantize(COLOURS, dither=Image.Dither.NONE).save(stream, "PNG", optimize=True),
        "jpeg": lambda stream: small.save(stream, "JPEG", quality=QUALITY, optimize=True, subsampling=0),
    }
    made = {}
    for kind, encode in encodings.items():
        encode(stream := BytesIO())
        made[kind] = stream.getvalue()
    kind = min(made, key=lambda name: len(made[name]))
    return f"data:image/{kind};base64,{base64.b64encode(made[kind]).decode()}"
