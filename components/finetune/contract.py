"""What is legal for the stage `finetune`: one run per finetuning, a labelled dataset with a recipe."""

from pathlib import Path
from typing import Literal, Self

from pydantic import Field, model_validator

from components.evaluation import EvaluationParams, Scores
from components.finetune.recipe import Augmentation, Optimisation
from components.probe.task import ImageTask
from components.stage import Inputs, Outputs

MEMBERS = "finetunings"


class FinetuningParams(ImageTask):
    """A labelled dataset and the recipe to train the whole encoder on it."""

    train_per_class: int = Field(
        ge=0,
        description="Exactly this many training images of each class, drawn by the seed: a low-label setting where there is "
        "no published list. 0 takes all. Profile 'clean' takes its held-out images from these.",
    )
    pooling: Literal["average", "class_token"] = Field(
        description="What the head reads: the average of the patch tokens, as I-JEPA and StoP, or the class token, for an "
        "encoder that has one."
    )
    norm: Literal["encoder", "new"] = Field(
        description="The norm before the head. 'encoder': the pretrained final norm, on each token before pooling, as I-JEPA. "
        "'new': a fresh one after pooling in its place, as in MAE's finetuning."
    )
    augmentation: Augmentation = Field(description="What happens to a training image")
    optimisation: Optimisation = Field(description="How the encoder and the head learn")

    @model_validator(mode="after")
    def _pairs(self) -> Self:
        mixes = self.augmentation.mixup or self.augmentation.cutmix
        if mixes and self.optimisation.batch_size % 2:
            raise ValueError(
                f"optimisation.batch_size is {self.optimisation.batch_size}, but mixup and cutmix pair the images of a batch; "
                "take an even one"
            )
        return self


class FinetuneParams(EvaluationParams):
    """The whole encoder trained on the labels of each dataset, from the pretrained weights and from the first ones."""

    seed: int = Field(
        ge=0,
        description="Seed of the head, the order, the crops and all augmentation, and of train_per_class. Change it to see "
        "how much a score varies.",
    )
    profile: Literal["paper", "clean"] = Field(
        description="Which epoch counts. 'paper': the best on the scored images themselves, as MAE's script reports, which "
        "flatters every encoder a little. 'clean': the best on training images held out for this, so that the scored images "
        "decide nothing."
    )
    holdout_fraction: float = Field(
        gt=0,
        lt=0.5,
        description="Share of the training images that profile 'clean' holds out to choose the epoch, by the hash of their "
        "paths; 'paper' trains on all and ignores it. 0.1 is usual; raise it when the training set is small.",
    )
    precision: Literal["fp32", "bf16"] = Field(
        description="bf16 halves memory and time on recent GPUs; use fp32 on a CPU. It changes scores by chance alone."
    )
    workers: int = Field(
        ge=0,
        le=256,
        description="Processes that decode and augment images: about the cores per GPU, so that it never waits; 0 does it in "
        "between, best on a CPU. Changes the time taken only.",
    )
    micro_batch_size: int = Field(
        ge=0,
        description="Images in one pass through the encoder; the gradients of a batch add up. It must divide "
        "every larger batch_size; 0 takes a batch at once. Lower it when memory runs out; the result is the same to "
        "rounding, but for drop path.",
    )
    scoring_batch_size: int = Field(
        ge=1, le=16384, description="Images per pass when scoring. Changes speed and memory, never a score."
    )
    finetunings: dict[str, FinetuningParams] = Field(
        min_length=1, description="One finetuning per entry, under a name of your choice."
    )

    @model_validator(mode="after")
    def _divides(self) -> Self:
        for name, finetuning in self.finetunings.items():
            whole = finetuning.optimisation.batch_size
            if 0 < self.micro_batch_size < whole and whole % self.micro_batch_size:
                raise ValueError(
                    f"micro_batch_size is {self.micro_batch_size}, which does not divide the batch_size {whole} of {name!r}; "
                    "take a divisor, or 0 for whole batches"
                )
        return self


class FinetuneInputs(Inputs):
    """What a finetuning reads."""

    encoder: Path = Field(description="the pretrained encoder, a safetensors file of stage pretrain")
    dataset: Path = Field(description="the prepared dataset, a folder of stage prepare")
    train_list: Path = Field(description="the list of training images, a text file")


class FinetuneOutputs(Outputs):
    """What a finetuning writes."""

    model: Path = Field(description="safetensors, the finetuned pretrained encoder and its head at the best epoch")
    history: Path = Field(description="CSV, per epoch: learning rate, and of either encoder training loss and accuracy")
    confusion: Path = Field(description="CSV, actual and predicted class of each scored image by that model")
    protocol: Path = Field(description="JSON, the settings and data that the scores belong to")
    work: Path = Field(description="folder of checkpoints to continue from; emptied when the stage is done")
    metrics: Path = Field(description="JSON, the accuracies in percent")
    run: Path = Field(description="JSON, the MLflow run and fingerprint")


class FinetuneMetrics(Scores):
    """Percent of scored images classified right; `gain` is pretrained minus untrained."""

    top1: float = Field(description="finetuned from the pretrained weights, best epoch")
    top1_untrained: float = Field(description="the same recipe and seed from the encoder before its first step")
    top1_gain: float = Field(description="top1 − top1_untrained")
    top1_final: float = Field(description="percent of the judging images right after the last epoch")
    top1_best: float = Field(
        description="the same after best_epoch; the judging images are the scored ones for profile 'paper'"
    )
    top1_final_untrained: float = Field(description="top1_final of the encoder before its first step")
    top1_best_untrained: float = Field(description="top1_best of the encoder before its first step")
    best_epoch: int = Field(description="epoch of top1, from 1; chosen as `profile` says")
    best_epoch_untrained: int = Field(description="epoch of top1_untrained")
    train_loss_final: float = Field(
        description="mean training loss of the last epoch, with augmentation and smoothed labels"
    )
    train_loss_final_untrained: float = Field(description="the same from the encoder before its first step")
    learned_from: int = Field(description="training images, without those held out")
    scored: int = Field(description="test images scored, each once")
