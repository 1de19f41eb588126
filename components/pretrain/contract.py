"""What is legal for `pretrain`."""

from pathlib import Path
from typing import Literal, Self

from pydantic import Field, model_validator

from components.mim.grid import check_masks, patch_grid
from components.stage import Inputs, Metrics, Outputs, Params


class Encoder(Params):
    """The Vision Transformer that is pretrained. ViT-B is width 768, 12 layers, 12 heads."""

    image_size: int = Field(
        ge=8, le=1024, description="Side of the square training crops, in pixels; a multiple of patch_size."
    )
    patch_size: int = Field(
        ge=2, le=64, description="Side of a patch in pixels. Halving it makes four times as many tokens."
    )
    width: int = Field(ge=16, le=8192, description="Token width D; a multiple of 4 and of heads.")
    layers: int = Field(ge=1, le=64, description="Number of transformer layers.")
    heads: int = Field(ge=1, le=64, description="Attention heads in each layer.")

    @model_validator(mode="after")
    def _widths(self) -> Self:
        _check_width("encoder", self.width, self.heads)
        return self


class Predictor(Params):
    """The narrow transformer that predicts the target's features from context tokens and positions."""

    width: int = Field(ge=8, le=4096, description="Token width P; a multiple of 4 and of heads. 384 in the paper.")
    layers: int = Field(
        ge=1, le=32, description="Number of transformer layers. 6 for ViT-B, 12 for ViT-L and H in the paper."
    )
    heads: int = Field(ge=1, le=64, description="Attention heads in each layer.")

    @model_validator(mode="after")
    def _widths(self) -> Self:
        _check_width("predictor", self.width, self.heads)
        return self


class Stop(Params):
    """Stochastic positional embeddings: the predictor is told roughly where a masked patch is, m = ψ + A·n + m̃."""

    noise_std: float = Field(
        ge=0,
        le=4,
        description="Standard deviation of the noise n on the positions of masked tokens. 0 is plain I-JEPA. The paper's best "
        "σ is 0.25 (0.2 for ViT-H), which its released code uses as a standard deviation; read as the variance that the "
        "text writes, it is 0.5 here.",
    )
    mask_token: bool = Field(
        description="Adds the learned mask token m̃, as the paper and I-JEPA do; the released StoP code has none."
    )
    bias_on_noise: bool = Field(
        description="Sends the noise through A and its bias b, as the released StoP code does, so that b marks masked tokens."
    )

    @model_validator(mode="after")
    def _marked(self) -> Self:
        if not (self.mask_token or self.bias_on_noise):
            raise ValueError(
                "mask_token and bias_on_noise are both false, which leaves masked tokens without anything learned; set one to true"
            )
        return self


class Masks(Params):
    """Which patches are predicted (target blocks) and which are seen (the context)."""

    target_blocks: int = Field(
        ge=1, le=16, description="Target blocks of each image, each predicted on its own. 4 in the paper."
    )
    target_scale_min: float = Field(
        gt=0, lt=1, description="Smallest area of a target block, as a share of the image. 0.15 in the paper."
    )
    target_scale_max: float = Field(gt=0, lt=1, description="Largest area of a target block. 0.2 in the paper.")
    target_aspect_min: float = Field(
        gt=0.1, le=10, description="Smallest height/width of a target block. 0.75 in the paper."
    )
    target_aspect_max: float = Field(
        gt=0.1, le=10, description="Largest height/width of a target block. 1.5 in the paper."
    )
    context_scale_min: float = Field(
        gt=0, le=1, description="Smallest area of the context block, before targets are cut out. 0.85 in the paper."
    )
    context_scale_max: float = Field(gt=0, le=1, description="Largest area of the context block. 1.0 in the paper.")
    min_context: int = Field(
        ge=1, description="Fewest context patches an image may keep; settings that could leave fewer are refused."
    )

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        for name in ("target_scale", "target_aspect", "context_scale"):
            low, high = getattr(self, f"{name}_min"), getattr(self, f"{name}_max")
            if low > high:
                raise ValueError(f"{name}_min is {low} and {name}_max {high}; the first must not exceed the second")
        return self


class Augmentation(Params):
    """What happens to an image before it is cut into patches."""

    crop_scale_min: float = Field(
        gt=0, le=1, description="Smallest area of the random crop, as a share of the image. 0.3 in the paper."
    )
    crop_scale_max: float = Field(gt=0, le=1, description="Largest area of the random crop. 1.0 in the paper.")
    flip: bool = Field(description="Mirrors half of the crops, as the released StoP recipe does; I-JEPA's does not.")

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.crop_scale_min > self.crop_scale_max:
            raise ValueError(
                f"crop_scale_min is {self.crop_scale_min} and crop_scale_max {self.crop_scale_max}; the first must not exceed the second"
            )
        return self


class Optimisation(Params):
    """AdamW and its schedules. Learning rates are absolute: they are not scaled with the batch."""

    epochs: int = Field(ge=1, description="Passes over the training split. 600 in the paper (300 for ViT-H).")
    warmup_epochs: float = Field(ge=0, description="Epochs of linear warm-up of the learning rate. 15 in the paper.")
    global_batch_size: int = Field(ge=2, description="Images in one update, over all workers. 2048 in the paper.")
    start_lr: float = Field(gt=0, description="Learning rate at the start of the warm-up.")
    lr: float = Field(
        gt=0,
        le=1,
        description="Peak learning rate. 8e-4 in the paper for ViT-B and L; StoP likes it lower than I-JEPA.",
    )
    final_lr: float = Field(ge=0, description="Learning rate at the last step, reached along half a cosine.")
    weight_decay: float = Field(ge=0, le=1, description="Weight decay at the first step. 0.04 in the paper.")
    final_weight_decay: float = Field(
        ge=0, le=1, description="Weight decay at the last step, along half a cosine. 0.4 in the paper."
    )
    ema: float = Field(
        gt=0,
        lt=1,
        description="Momentum of the target encoder at the first step; lower follows faster. 0.996 in the paper.",
    )
    final_ema: float = Field(
        gt=0, le=1, description="Momentum at the last step, along a straight line. 1.0 in the paper."
    )

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.warmup_epochs >= self.epochs:
            raise ValueError(
                f"warmup_epochs is {self.warmup_epochs} and epochs {self.epochs}; the warm-up must end before training does"
            )
        return self


class Scale(Params):
    """How many processes and devices train. The result does not depend on it, up to rounding."""

    workers: int = Field(ge=1, le=4096, description="Training processes; global_batch_size is split evenly among them.")
    device: Literal["cpu", "gpu"] = Field(description="What each worker computes on; gpu gives every worker one GPU.")
    cpus_per_worker: int = Field(ge=1, le=256, description="CPU cores (and torch threads) of each worker.")
    precision: Literal["fp32", "bf16"] = Field(
        description="bf16 halves memory and time on recent GPUs; use fp32 on a CPU."
    )


class PretrainParams(Params):
    """Masked image modelling with stochastic positional embeddings on an I-JEPA base."""

    seed: int = Field(
        ge=0, description="Seed of weights, order, crops, masks and noise. The same seed gives the same run."
    )
    weight_init: Literal["fixed", "fan_in"] = Field(
        description="First weights. fixed: std 0.02 everywhere, as the released programs. fan_in: scaled with 1/√inputs, so "
        "that narrow models start in the regime of ViT-B; use it below width 768 or patch size 16."
    )
    dataset: str = Field(
        pattern=r"^[a-z0-9_]+$", description="Name of the prepared dataset to learn from; labels are not used."
    )
    encoder: Encoder
    predictor: Predictor
    stop: Stop
    masks: Masks
    augmentation: Augmentation
    optimisation: Optimisation
    scale: Scale
    log_every: int = Field(ge=1, description="Steps between two points of the curves.")
    checkpoint_every: int = Field(ge=1, description="Steps between two checkpoints; a restart loses at most that many.")

    @model_validator(mode="after")
    def _fits(self) -> Self:
        check_masks(patch_grid(self.encoder.image_size, self.encoder.patch_size), self.masks)
        if self.optimisation.global_batch_size < 2 * self.scale.workers:
            raise ValueError(
                f"optimisation.global_batch_size is {self.optimisation.global_batch_size} and scale.workers {self.scale.workers}; "
                f"every worker needs at least two images"
            )
        if self.optimisation.global_batch_size % self.scale.workers:
            raise ValueError(
                f"optimisation.global_batch_size is {self.optimisation.global_batch_size} and scale.workers {self.scale.workers}; "
                f"the workers must share the batch evenly"
            )
        return self


class PretrainInputs(Inputs):
    """What pretraining reads."""

    dataset: Path = Field(description="prepared dataset with a train split")


class PretrainOutputs(Outputs):
    """What pretraining leaves."""

    encoder: Path = Field(description="target encoder, safetensors that describe themselves")
    predictor: Path = Field(description="predictor, safetensors that describe themselves")
    state: Path = Field(description="final training state (model, target encoder, optimiser, step)")
    history: Path = Field(description="CSV of the curves, a row per logged step")
    masks: Path = Field(description="PNG of the first training crops with context and targets, drawn before training")
    work: Path = Field(description="folder of resume state, one sub-folder per fingerprint; no output of the stage")
    metrics: Path = Field(description="JSON of final values")
    run: Path = Field(description="JSON that links to the MLflow run")


class PretrainMetrics(Metrics):
    """Last values of the curves, and means. The loss does not tell quality: the targets move with the encoder."""

    loss_final: float = Field(description="mean smooth-L1 over the last tenth of the logged steps")
    A_norm: float = Field(description="‖A‖, Frobenius")
    A_norm_l1: float = Field(description="mean |A|, the paper's normalised l1 norm")
    b_norm: float = Field(description="‖b‖")
    mask_token_norm: float = Field(description="‖m̃‖; 0 without a mask token")
    noise_ratio: float = Field(description="rms(A·n) / rms(ψ)")
    feature_std: float = Field(description="mean standard deviation of pooled target features over a batch")
    effective_rank: float = Field(description="RankMe of pooled target features over a batch")
    images_per_second_mean: float = Field(description="over all workers and all steps")
    steps: float = Field(description="updates made")


def _check_width(name: str, width: int, heads: int) -> None:
    if width % 4 or width % heads:
        raise ValueError(
            f"{name} width is {width} with {heads} heads; it must be a multiple of 4 (sin-cos positions) and of heads"
        )
