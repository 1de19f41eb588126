"""What is legal for the stage `linear_probe`: one run per task, a labelled dataset with its image size."""

from pathlib import Path
from typing import Literal, Self

from pydantic import Field, model_validator

from components.probe.params import HeadParams
from components.stage import Inputs, Metrics, Outputs, Params

MEMBERS = "tasks"


class TaskParams(Params):
    """A labelled dataset to classify."""

    dataset: str = Field(
        min_length=1, description="Name of a prepared image dataset: an entry of `datasets` in params/prepare.yaml."
    )
    train_split: str = Field(min_length=1, description="Split whose images train the heads and are the neighbours.")
    test_split: str = Field(min_length=1, description="Split whose images are scored. It must differ from train_split.")
    train_limit: int = Field(
        ge=0,
        description="At most this many training images, spread evenly over the split; 0 takes all. Lower it for a "
        "quick look: encoding them takes most of the time.",
    )
    test_limit: int = Field(
        ge=0, description="At most this many scored images, spread evenly over the split; 0 takes all."
    )
    image_size: int = Field(
        ge=8,
        le=1024,
        description="Side of the square image the encoder sees, in pixels; a multiple of its patch size. The size it "
        "was pretrained at is best.",
    )
    resize: Literal["direct", "short_side_center_crop"] = Field(
        description="How an image becomes square. 'direct' scales both sides to image_size and may squash; right for "
        "images that are square or small. 'short_side_center_crop' scales the short side to "
        "resize_short_side and cuts the centre, the paper's protocol for photographs."
    )
    resize_short_side: int = Field(
        ge=8,
        le=2048,
        description="Length the short side is scaled to before the centre is cut, in pixels: 256 for an image_size of"
        " 224. Only resize 'short_side_center_crop' reads it.",
    )

    @model_validator(mode="after")
    def _splits_and_sizes(self) -> Self:
        if self.train_split == self.test_split:
            raise ValueError(
                f"train_split and test_split are both {self.test_split!r}; images that trained a head prove nothing: "
                f"name another split"
            )
        if self.resize == "short_side_center_crop" and self.resize_short_side < self.image_size:
            raise ValueError(
                f"resize_short_side is {self.resize_short_side}, below image_size {self.image_size}; a crop must fit: "
                f"raise it to {self.image_size * 8 // 7}"
            )
        return self


class LinearProbeParams(HeadParams):
    """Linear heads and nearest neighbours on frozen features of each task."""

    epochs: int = Field(
        ge=1,
        le=1000,
        description="Passes of the heads over the training images' features. The paper takes 28 for CIFAR-100.",
    )
    knn_k: int = Field(
        ge=1, le=1000, description="Neighbours that vote in k-NN; 20 in DINO. At most the number of training images."
    )
    tasks: dict[str, TaskParams] = Field(min_length=1, description="One probe per entry, under a name of your choice.")


class LinearProbeInputs(Inputs):
    """What a probe reads."""

    encoder: Path = Field(description="the pretrained encoder, a safetensors file of stage pretrain")
    dataset: Path = Field(description="the prepared dataset, a folder of stage prepare")


class LinearProbeOutputs(Outputs):
    """What a probe writes."""

    confusion: Path = Field(
        description="CSV, actual and predicted class of each test image by the chosen pretrained head"
    )
    heads: Path = Field(description="CSV, the accuracy of every head on either encoder")
    metrics: Path = Field(description="JSON, the accuracies in percent")
    run: Path = Field(description="JSON, the MLflow run and fingerprint")


class LinearProbeMetrics(Metrics):
    """Percent of test images classified right; `gain` is pretrained minus untrained."""

    top1: float = Field(description="best head")
    top1_untrained: float = Field(description="best head on the encoder before its first step")
    top1_gain: float = Field(description="top1 − top1_untrained")
    last_top1: float = Field(description="best head that reads the last layer")
    last4_top1: float = Field(description="best head that reads the last layers joined")
    knn_top1: float = Field(description="nearest neighbours on the last layer")
    knn_top1_untrained: float = Field(description="nearest neighbours on the encoder before its first step")
    knn_top1_gain: float = Field(description="knn_top1 − knn_top1_untrained")
    scored: int = Field(description="test images scored, each once")
