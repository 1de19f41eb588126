"""What is legal for the stage `linear_probe`: one run per task, a labelled dataset with its image size."""

from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from components.evaluation import Scores
from components.probe.params import HeadParams, ProbeParams
from components.probe.task import ImageTask
from components.stage import Inputs, Outputs

MEMBERS = "tasks"


class TaskParams(ImageTask):
    """A labelled dataset to classify, and how."""

    training: Literal["cached", "augmented"] = Field(
        description="What the heads learn from. 'augmented': a new random crop of each image in each epoch, the paper's protocol, "
        "which encodes every image once per epoch. 'cached': the same view of an image always, encoded once and kept; a few "
        "points lower on photographs and many times faster."
    )
    crop_scale_min: float = Field(
        gt=0,
        le=1,
        description="Smallest share of an image's area that a random crop covers; 0.08 in VISSL. Only training 'augmented' reads it.",
    )
    crop_scale_max: float = Field(
        gt=0,
        le=1,
        description="Largest share of an image's area that a random crop covers; 1 in VISSL. Only training 'augmented' reads it.",
    )
    flip: bool = Field(
        description="Whether training images are mirrored half of the time, as in VISSL. Off for digits and letters. With training "
        "'cached' both views are encoded, which takes twice as long."
    )
    epochs: int = Field(
        ge=1,
        le=1000,
        description="Passes of the heads over the training images: in the paper 28 for ImageNet and CIFAR-100, 14 for Places205, "
        "84 for iNaturalist 2018; 50 for H models on ImageNet.",
    )
    heads: HeadParams = Field(description="The grid of heads and how they learn")
    logistic_lambdas: list[Annotated[float, Field(gt=0, le=1e6)]] = Field(
        description="Strengths of the l2 penalty to try in a multinomial logistic regression, the classifier for few labels such as "
        "1 % of ImageNet; none leaves it out. λ stands for the sum of the losses + λ/2·|W|², as in the released code, which "
        "has 0.0025; 0.075 and 0.1 do better there."
    )

    @model_validator(mode="after")
    def _agree(self) -> Self:
        if self.crop_scale_min > self.crop_scale_max:
            raise ValueError(
                f"crop_scale_min is {self.crop_scale_min}, above crop_scale_max {self.crop_scale_max}; exchange them"
            )
        if len(set(self.logistic_lambdas)) < len(self.logistic_lambdas):
            raise ValueError(f"logistic_lambdas is {self.logistic_lambdas}; each value may stand once: remove one")
        self.heads.fit_into(self.epochs)
        return self


class LinearProbeParams(ProbeParams):
    """Linear heads and nearest neighbours on frozen features of each task."""

    knn_k: int = Field(
        ge=1, le=1000, description="Neighbours that vote in k-NN; 20 in DINO. At most the number of training images."
    )
    tasks: dict[str, TaskParams] = Field(min_length=1, description="One probe per entry, under a name of your choice.")


class LinearProbeInputs(Inputs):
    """What a probe reads."""

    encoder: Path = Field(description="the pretrained encoder, a safetensors file of stage pretrain")
    dataset: Path = Field(description="the prepared dataset, a folder of stage prepare")
    train_list: Path = Field(description="the names of the training images, one a line")


class LinearProbeOutputs(Outputs):
    """What a probe writes."""

    confusion: Path = Field(
        description="CSV, actual and predicted class of each test image by the chosen pretrained head"
    )
    heads: Path = Field(description="CSV, the accuracy of every head on either encoder")
    protocol: Path = Field(description="JSON, the settings and data that the scores belong to")
    work: Path = Field(description="features to use again and heads to go on with, kept between runs")
    metrics: Path = Field(description="JSON, the accuracies in percent")
    run: Path = Field(description="JSON, the MLflow run and fingerprint")


class LinearProbeMetrics(Scores):
    """Percent of test images classified right; `gain` is pretrained minus untrained. What was not measured is None."""

    top1: float = Field(description="best head")
    top1_untrained: float = Field(description="best head on the encoder before its first step")
    top1_gain: float = Field(description="top1 − top1_untrained")
    last_top1: float = Field(description="best head that reads the last layer")
    last_top1_untrained: float = Field(description="the same, encoder before its first step")
    last4_top1: float = Field(description="best head that reads the last layers joined")
    last4_top1_untrained: float = Field(description="the same, encoder before its first step")
    class_token_top1: float | None = Field(description="best head that reads the class token, where there is one")
    class_token_top1_untrained: float | None = Field(description="the same, encoder before its first step")
    knn_top1: float = Field(description="nearest neighbours on the last layer")
    knn_top1_untrained: float = Field(description="nearest neighbours on the encoder before its first step")
    knn_top1_gain: float = Field(description="knn_top1 − knn_top1_untrained")
    logistic_top1: float | None = Field(description="logistic regression, where logistic_lambdas has any")
    logistic_top1_untrained: float | None = Field(description="logistic regression, encoder before its first step")
    logistic_top1_gain: float | None = Field(description="logistic_top1 − logistic_top1_untrained")
    logistic_lambda: float | None = Field(description="λ that was chosen for the pretrained encoder")
    train_images: int = Field(description="training images, of the list and within the limit")
    scored: int = Field(description="test images scored, each once")
