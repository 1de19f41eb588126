"""What is legal for how an encoder is finetuned: augmentation and optimisation. pydantic only."""

from typing import Self

from pydantic import Field, model_validator

from components.stage import Params


class Augmentation(Params):
    """What happens to a training image, by timm's implementations with draws of our own keys."""

    crop_scale_min: float = Field(
        gt=0, le=1, description="Smallest area of the random crop, as a share of the image. 0.08 in MAE and I-JEPA."
    )
    crop_scale_max: float = Field(gt=0, le=1, description="Largest area of the random crop. 1.0 in MAE and I-JEPA.")
    flip: bool = Field(description="Mirrors half of the crops. Turn it off where left and right matter, as for digits.")
    rand_augment: str = Field(
        pattern=r"^(none|rand(-(m\d+|n\d+|inc[01]|mmax\d+|p\d+(\.\d+)?|mstd\d+(\.\d+)?))+)$",
        description="RandAugment in timm's notation, or 'none'. 'rand-m9-mstd0.5-inc1' in MAE and I-JEPA: two operations, "
        "magnitude 9 ± 0.5. It turns, shears and recolours, so lower m where that changes what an image shows.",
    )
    random_erasing: float = Field(
        ge=0,
        le=1,
        description="Share of the images that lose a rectangle to noise. 0.25 in MAE's full finetuning, 0 in the 1 % recipe.",
    )
    mixup: float = Field(
        ge=0,
        le=10,
        description="α of mixup, which blends two images and their labels: 0.8 in MAE's full finetuning, 0 (off) in the 1 % "
        "recipe.",
    )
    cutmix: float = Field(
        ge=0,
        le=10,
        description="α of CutMix, which pastes a part of another image: 1.0 in MAE's full finetuning, 0 (off) in the 1 % "
        "recipe. With mixup on as well, each batch gets one of the two.",
    )

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.crop_scale_min > self.crop_scale_max:
            raise ValueError(
                f"crop_scale_min is {self.crop_scale_min} and crop_scale_max {self.crop_scale_max}; the first must not exceed "
                "the second"
            )
        return self


class Optimisation(Params):
    """AdamW (β 0.9 and 0.999) with linear warm-up and cosine, a learning rate per layer. The values are I-JEPA's and MAE's."""

    epochs: int = Field(ge=1, le=10000, description="Passes over the training images. 50 in the 1 % recipe.")
    warmup_epochs: float = Field(ge=0, description="Epochs of linear warm-up of the learning rate. 5 in MAE.")
    batch_size: int = Field(ge=1, le=65536, description="Images in one update. 512 in the 1 % recipe, 1024 in MAE.")
    lr: float = Field(
        gt=0,
        le=1,
        description="Peak learning rate of the head, not scaled with the batch. 3e-5 in I-JEPA's 1 % recipe; MAE's base rates "
        "of 5e-4 (B) and 1e-3 (L, H) per 256 images are 2e-3 and 4e-3 at a batch of 1024.",
    )
    final_lr: float = Field(ge=0, description="Learning rate of the head at the last step. 1e-6 in MAE.")
    weight_decay: float = Field(
        ge=0,
        le=1,
        description="Weight decay of matrices; biases, norms, positions and class token have none. 0.05 in MAE and for L/16 "
        "in I-JEPA, 0.4 for H.",
    )
    layer_decay: float = Field(
        gt=0,
        le=1,
        description="Each layer's learning rate is that of the layer above times this; the head's is lr. 0.75 in I-JEPA, 0.65 "
        "for ViT-B in MAE; 1 trains all layers alike. Lower it when few images make the encoder forget.",
    )
    label_smoothing: float = Field(
        ge=0, lt=1, description="Share of each label that is spread over all classes. 0.1 in MAE and I-JEPA."
    )
    drop_path: float = Field(
        ge=0,
        lt=1,
        description="Chance that an image skips half of the last layer, less in earlier ones. MAE: 0.1, 0.2, 0.3 for B, L, H; "
        "0 in the 1 % recipe.",
    )

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.warmup_epochs >= self.epochs:
            raise ValueError(
                f"warmup_epochs is {self.warmup_epochs} and epochs {self.epochs}; the warm-up must end before training does"
            )
        if self.final_lr > self.lr:
            raise ValueError(
                f"final_lr is {self.final_lr} and lr {self.lr}; lr is the peak: raise it or lower final_lr"
            )
        return self
