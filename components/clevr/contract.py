"""What is legal for the stage `clevr`: heads that count a scene's objects and tell the closest one's distance."""

from pathlib import Path
from typing import Self

from pydantic import Field, model_validator

from components.evaluation import Scores
from components.probe.params import HeadParams, ProbeParams
from components.stage import Inputs, Outputs


class ClevrParams(ProbeParams):
    """Count (3 to 10 objects) and distance of the closest object (6 bins) in scenes of CLEVR's format."""

    dataset: str = Field(
        min_length=1, description="Name of a prepared dataset of scenes: an entry of `datasets` in params/prepare.yaml."
    )
    train_split: str = Field(min_length=1, description="Split whose scenes train the heads.")
    test_split: str = Field(
        min_length=1, description="Split whose scenes are scored: 'val' in CLEVR, whose test has no scene files."
    )
    train_limit: int = Field(
        ge=0,
        description="At most this many training scenes, spread evenly over the split; 0 takes all. Each is encoded "
        "as it is and mirrored, and every epoch takes one of the two at random.",
    )
    test_limit: int = Field(
        ge=0, description="At most this many scored scenes, spread evenly over the split; 0 takes all."
    )
    height: int = Field(
        ge=8,
        le=1024,
        description="Height of the image the encoder sees, in pixels; a multiple of its patch size. The image is "
        "scaled without a crop, which would cut objects off. The paper's protocol squashes CLEVR to 224 ×"
        " 224.",
    )
    width: int = Field(
        ge=8, le=1024, description="Width of the image the encoder sees, in pixels; a multiple of its patch size."
    )
    count_epochs: int = Field(
        ge=1, le=1000, description="Passes of the counting heads over the training scenes; 50 in VISSL."
    )
    distance_epochs: int = Field(
        ge=1, le=1000, description="Passes of the distance heads over the training scenes; 100 in VISSL."
    )

    heads: HeadParams = Field(description="The grid of heads and how they learn, for both tasks")

    @model_validator(mode="after")
    def _agree(self) -> Self:
        if self.train_split == self.test_split:
            raise ValueError(
                f"train_split and test_split are both {self.test_split!r}; scenes that trained a head prove nothing: "
                f"name another split"
            )
        self.heads.fit_into(min(self.count_epochs, self.distance_epochs))
        return self


class ClevrInputs(Inputs):
    """What the heads read."""

    encoder: Path = Field(description="the pretrained encoder, a safetensors file of stage pretrain")
    dataset: Path = Field(description="the prepared scenes, a folder of stage prepare")


class ClevrOutputs(Outputs):
    """What the stage writes."""

    count_confusion: Path = Field(
        description="CSV, actual and predicted number of objects by the chosen pretrained head"
    )
    distance_confusion: Path = Field(description="CSV, actual and predicted distance bin by the chosen pretrained head")
    count_heads: Path = Field(description="CSV, the accuracy of every counting head on either encoder")
    distance_heads: Path = Field(description="CSV, the accuracy of every distance head on either encoder")
    protocol: Path = Field(description="JSON, the settings and data that the scores belong to")
    work: Path = Field(description="features to use again, kept between runs")
    metrics: Path = Field(description="JSON, the accuracies in percent")
    run: Path = Field(description="JSON, the MLflow run and fingerprint")


class ClevrMetrics(Scores):
    """Percent of test scenes classified right; `gain` is pretrained minus untrained."""

    count_top1: float = Field(description="number of objects, best head")
    count_top1_untrained: float = Field(description="number of objects, best head on the encoder before its first step")
    count_top1_gain: float = Field(description="count_top1 − count_top1_untrained")
    distance_top1: float = Field(description="bin of the closest object's distance, best head")
    distance_top1_untrained: float = Field(
        description="bin of the distance, best head on the encoder before its first step"
    )
    distance_top1_gain: float = Field(description="distance_top1 − distance_top1_untrained")
    scored: int = Field(description="test scenes scored, each once")
