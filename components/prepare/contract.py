"""What is legal for the stage `prepare`."""

import importlib
import re
from pathlib import Path
from typing import Literal, Self

from pydantic import Field, field_validator, model_validator

from components.stage import Inputs, Metrics, Outputs, Params

MEMBERS = "datasets"

READERS = Path(__file__).with_name("readers")
READ_AS = {"shapes": "clevr", "shapes_video": "davis", "digits": "image_folder"}  # embedded format -> its layout
FORMATS = sorted({path.stem for path in READERS.glob("[a-z]*.py")} | READ_AS.keys())
"""A reader is found by its file's name, so that a new one is one file."""
VIDEO = ("davis", "shapes_video")
LIST = "params/subsets/all.txt"
"""The list that stands for every image."""


class Subset(Params):
    """Which of the images are kept: all, some of each class, or those that a list names."""

    per_class: int = Field(
        ge=0,
        le=10_000_000,
        description="Most images kept of each class in each split (of each split where there are no classes; for "
        "videos, whole sequences), drawn by `seed`. 0 keeps all. Set it for a quick run on a large dataset.",
    )
    list: str = Field(
        description="File that names the images kept of split train, one a line, such as ImageNet's 1 %; other splits stay whole. "
        "`params/subsets/all.txt` keeps all."
    )
    sha256: str = Field(
        pattern=r"^[0-9a-f]{64}$",
        description="sha256 of that file, so that nobody takes another list for it.",
    )


class DatasetParams(Params):
    """Where one dataset comes from, which of its images are kept and how."""

    source: str = Field(
        description="The raw data: `data/raw/<name>`, a folder, an archive or a link to one. For an embedded set, which is made "
        "from its seed, the file that makes it: `components/prepare/embedded/<format>.py`."
    )
    format: str = Field(
        json_schema_extra={"enum": [*FORMATS]},
        description="Layout of the raw data, as it is downloaded: docs/datasets.md shows each. image_folder: <split>/<class>/*.jpg. "
        "images: any folders, no classes. manifest: a CSV or Parquet file of paths and labels. davis: DAVIS 2017 or 2016. Embedded sets "
        "need no files: shapes (ray-traced scenes read like CLEVR), shapes_video (clips of that world read like DAVIS), digits "
        "(scikit-learn's handwritten digits).",
    )
    licence: str = Field(
        min_length=1,
        max_length=200,
        description="Terms the images come under, for the dataset's card; `unknown` where nobody knows.",
    )
    counts: Literal["published", "any"] = Field(
        description="published: the raw data must have as many classes and images in each split as the dataset was published with, "
        "before `subset` takes some. any: a part of it will do; the card lists what is missing. Data of your own has no published counts."
    )
    subset: Subset
    seed: int = Field(
        ge=0,
        le=2**31 - 1,
        description="Seed of what is drawn here: the scenes of an embedded set, and which images `subset.per_class` keeps.",
    )
    check: Literal["decode", "structure"] = Field(
        description="How each image is checked. decode: every pixel is decoded; decoders fill what is lost within a JPEG with "
        "grey, and do not always say so. structure: its header and its end (JPEG), or its checksums "
        "(PNG), which is about three times as fast and does not find damage in the middle of a JPEG."
    )
    on_error: Literal["fail", "skip"] = Field(
        description="What to do with an image that cannot be decoded. fail: stop and name it. skip: leave it out and "
        "list it in the dataset's card. Videos always fail, since a missing frame would shift all later ones."
    )
    skip_budget: int = Field(
        ge=0,
        le=1_000_000,
        description="Most images that may be skipped before the stage fails after all; 0 with on_error fail. Keep it "
        "small: many broken images mean a broken copy.",
    )
    resize_short_side: int = Field(
        ge=0,
        le=4096,
        description="0 keeps every image's bytes. Else an image whose short side has more pixels is scaled down to so many and "
        "encoded anew as JPEG: less to store and to decode. 256 is usual for training at 224. Not for videos.",
    )
    quality: int = Field(
        ge=0,
        le=100,
        description="JPEG quality of the images that `resize_short_side` encodes anew, such as 90; 0 where it is 0.",
    )
    scenes: int = Field(
        ge=0,
        le=1_000_000,
        description="Scenes to make for format shapes, train and val together, 96x64 pixels each; 0 for every other "
        "format.",
    )
    clips: int = Field(
        ge=0,
        le=10_000,
        description="Clips to make for format shapes_video; 0 for every other format.",
    )
    shard_mib: int = Field(
        ge=1,
        le=1024,
        description="Most mebibytes of images in one file of the prepared dataset. Memory use while preparing is about "
        "twice this; small datasets need no change.",
    )

    @field_validator("format")
    @classmethod
    def _known(cls, format: str) -> str:
        if format not in FORMATS:
            raise ValueError(f"format is {format!r}; it must be one of {', '.join(FORMATS)}")
        return format

    @model_validator(mode="after")
    def _source_fits(self) -> Self:
        if self.format in READ_AS:
            rule = f"components/prepare/embedded/{self.format}.py"
            if self.source != rule:
                raise ValueError(f"source is {self.source!r}; the embedded format {self.format!r} has source {rule!r}")
        elif not re.fullmatch(r"data/raw/[A-Za-z0-9_][A-Za-z0-9_.-]*", self.source):
            raise ValueError(
                f"source is {self.source!r}; format {self.format!r} reads a folder, archive or manifest data/raw/<name>, so link it there: "
                "ln -s FOLDER data/raw/NAME"
            )
        return self

    @model_validator(mode="after")
    def _fields_agree(self) -> Self:
        for name, owner, least in (("scenes", "shapes", 32), ("clips", "shapes_video", 1)):
            value = getattr(self, name)
            if value < least if self.format == owner else value:
                rule = f"at least {least}" if self.format == owner else "0"
                raise ValueError(f"{name} is {value}; with format {self.format!r} it must be {rule}")
        if self.on_error == "skip" and self.format in VIDEO:
            raise ValueError(
                f"on_error is 'skip'; with format {self.format!r} it must be 'fail': frames cannot be left out"
            )
        if self.resize_short_side and self.format in VIDEO:
            raise ValueError(
                f"resize_short_side is {self.resize_short_side}; with format {self.format!r} it must be 0: masks lie on the pixels"
            )
        for name, owner in (("skip_budget", "on_error"), ("quality", "resize_short_side")):
            value, on = getattr(self, name), getattr(self, owner) not in ("fail", 0)
            if on != (value > 0):
                rule = "at least 1" if on else "0"
                raise ValueError(f"{name} is {value}; with {owner} {getattr(self, owner)!r} it must be {rule}")
        return self


class PrepareParams(Params):
    """The datasets of this pipeline, each prepared on its own."""

    datasets: dict[str, DatasetParams] = Field(
        min_length=1,
        description="Datasets by name. The name (a-z, 0-9, _) is that of the folder under data/prepared and of the "
        "metrics; other stages refer to it.",
    )

    @field_validator("datasets")
    @classmethod
    def _names(cls, datasets: dict[str, DatasetParams]) -> dict[str, DatasetParams]:
        for name in datasets:
            if not re.fullmatch(r"[a-z0-9_]+", name):
                raise ValueError(
                    f"dataset name {name!r} must be made of a-z, 0-9 and _ only: it becomes a folder's name"
                )
        return datasets


class PrepareInputs(Inputs):
    """The raw data, or the file that makes an embedded set; and the list of what is kept."""

    source: Path = Field(description="raw data, or the generator of an embedded set")
    subset_list: Path = Field(description="list of the images to keep of split train")

    @model_validator(mode="after")
    def _exist(self) -> Self:
        if not self.source.exists():
            raise ValueError(
                f"source is {str(self.source)!r}, which does not exist; put a folder, an archive or a link to one there, in the "
                f"layout of the dataset's format: docs/datasets.md says which and where to get it"
            )
        if not self.subset_list.is_file():
            raise ValueError(
                f"subset.list is {str(self.subset_list)!r}, which is no file; {LIST!r} stands for every image"
            )
        return self


class PrepareOutputs(Outputs):
    """The prepared dataset and a picture of what is in it."""

    dataset: Path = Field(description="folder of the prepared dataset: card.json and <split>/shard-*.arrow")
    sheet: Path = Field(description="contact sheet of the dataset, a PNG")
    work: Path = Field(description="folder in which an interrupted preparation is continued")
    metrics: Path = Field(description="metrics of the stage, JSON")
    run: Path = Field(description="which MLflow run this was, JSON")


class PrepareMetrics(Metrics):
    """What the prepared dataset holds, all splits together."""

    images: int = Field(description="images (for videos, frames)")
    classes: int = Field(description="classes, 0 where images carry no class")
    mebibytes: float = Field(description="size of the encoded images and masks in MiB")
    skipped: int = Field(description="images left out because they could not be decoded")
    duplicates: int = Field(description="images whose bytes another image has as well")


def layout(format: str) -> str:
    """What raw data of a format looks like, for a person."""
    reader = importlib.import_module(f"components.prepare.readers.{READ_AS.get(format, format)}")
    return str(reader.LAYOUT)
