"""What is legal for the stage `prepare`."""

import re
from pathlib import Path
from typing import Literal, Self

from pydantic import Field, field_validator, model_validator

from components.stage import Inputs, Metrics, Outputs, Params

MEMBERS = "datasets"

LAYOUTS = {
    "image_folder": "<split>/<class>/*.jpg (or .jpeg, .png), or <split>/*.jpg without classes; "
    "one split is train, val or test",
    "clevr": "images/{train,val}/*.png and scenes/CLEVR_{train,val}_scenes.json, or a folder CLEVR_v1.0 with these",
    "davis": "JPEGImages/480p/<sequence>/*.jpg, Annotations/480p/<sequence>/*.png and ImageSets/2017/val.txt (or "
    "2016), or a folder DAVIS with these",
}
READ_AS = {"shapes": "clevr", "shapes_video": "davis", "digits": "image_folder"}  # embedded format -> its layout


class DatasetParams(Params):
    """Where one dataset comes from and what happens to its damaged images."""

    source: str = Field(
        description="The raw data: `data/raw/<name>`, a folder or a link to one. For an embedded set, which is made "
        "from its seed, the file that makes it: `components/prepare/embedded/<format>.py`."
    )
    format: Literal["image_folder", "clevr", "davis", "shapes", "shapes_video", "digits"] = Field(
        description="Layout of the raw data. image_folder: <split>/<class>/*.jpg. clevr: CLEVR v1.0. davis: DAVIS 2017 "
        "or 2016. Embedded sets need no files: shapes (ray-traced scenes read like CLEVR), shapes_video (clips of that "
        "world read like DAVIS), digits (scikit-learn's handwritten digits)."
    )
    seed: int = Field(
        ge=0,
        le=2**31 - 1,
        description="Seed of what is drawn here: the scenes of an embedded set, and which images `limit` keeps.",
    )
    limit: int = Field(
        ge=0,
        le=10_000_000,
        description="Most images kept of each class in each split (of each split where there are no classes; for "
        "videos, whole sequences), drawn by `seed`. 0 keeps all. Set it for a quick run on a large dataset.",
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

    @model_validator(mode="after")
    def _fields_agree(self) -> Self:
        if self.format in READ_AS:
            rule = f"components/prepare/embedded/{self.format}.py"
            if self.source != rule:
                raise ValueError(f"source is {self.source!r}; the embedded format {self.format!r} has source {rule!r}")
        elif not re.fullmatch(r"data/raw/[A-Za-z0-9_][A-Za-z0-9_.-]*", self.source):
            raise ValueError(
                f"source is {self.source!r}; format {self.format!r} reads a folder data/raw/<name>, so link it there: "
                "ln -s FOLDER data/raw/NAME"
            )
        for name, owner, least in (("scenes", "shapes", 32), ("clips", "shapes_video", 1)):
            value = getattr(self, name)
            if value < least if self.format == owner else value:
                rule = f"at least {least}" if self.format == owner else "0"
                raise ValueError(f"{name} is {value}; with format {self.format!r} it must be {rule}")
        if self.on_error == "skip" and READ_AS.get(self.format, self.format) == "davis":
            raise ValueError(
                f"on_error is 'skip'; with format {self.format!r} it must be 'fail': frames cannot be left out"
            )
        if (self.on_error == "skip") != (self.skip_budget > 0):
            rule = "at least 1" if self.on_error == "skip" else "0"
            raise ValueError(f"skip_budget is {self.skip_budget}; with on_error {self.on_error!r} it must be {rule}")
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
    """The raw data, or the file that makes an embedded set."""

    source: Path = Field(description="folder of raw data, or the generator of an embedded set")

    @model_validator(mode="after")
    def _exist(self) -> Self:
        if not self.source.exists():
            layouts = "".join(f"\n  {name}: {layout}" for name, layout in LAYOUTS.items())
            raise ValueError(
                f"source is {str(self.source)!r}, which does not exist; put a folder or a link to one there, in the "
                f"layout of the dataset's format:{layouts}"
            )
        return self


class PrepareOutputs(Outputs):
    """The prepared dataset and a picture of what is in it."""

    dataset: Path = Field(description="folder of the prepared dataset: card.json and <split>/shard-*.arrow")
    sheet: Path = Field(description="contact sheet of the dataset, a PNG")
    metrics: Path = Field(description="metrics of the stage, JSON")
    run: Path = Field(description="which MLflow run this was, JSON")


class PrepareMetrics(Metrics):
    """What the prepared dataset holds, all splits together."""

    images: int = Field(description="images (for videos, frames)")
    classes: int = Field(description="classes, 0 where images carry no class")
    mebibytes: float = Field(description="size of the encoded images and masks in MiB")
    skipped: int = Field(description="images left out because they could not be decoded")
