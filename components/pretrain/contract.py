"""What is legal for `pretrain`."""

from pathlib import Path
from typing import Literal, Self

from pydantic import Field, model_validator

from components.mim.grid import check_masks, patch_grid
from components.pretrain.model_params import Encoder, Init, Masks, Objective, Predictor, Stop
from components.pretrain.quality_params import QualityParams
from components.pretrain.training_params import Augmentation, Collapse, Optimisation, Scale
from components.stage import Inputs, Metrics, Outputs, Params


class PretrainParams(Params):
    """Masked image modelling with stochastic positional embeddings on an I-JEPA, data2vec or MAE base."""

    seed: int = Field(
        ge=0, description="Seed of weights, order, crops, masks and noise. The same seed gives the same run."
    )
    weight_init: Literal["fixed", "fan_in", "xavier"] = Field(
        description="First weights. fixed: std 0.02 everywhere, as the released programs. fan_in: scaled with 1/√inputs, so "
        "that narrow models start in the regime of ViT-B; use it below width 768 or patch size 16. xavier: as MAE."
    )
    dataset: str = Field(
        pattern=r"^[a-z0-9_]+$", description="Name of the prepared dataset to learn from; labels are not used."
    )
    init: Init
    encoder: Encoder
    predictor: Predictor
    stop: Stop
    masks: Masks
    objective: Objective
    augmentation: Augmentation
    optimisation: Optimisation
    collapse: Collapse
    quality: QualityParams
    scale: Scale
    log_every: int = Field(ge=1, description="Steps between two points of the curves.")
    checkpoint_every: int = Field(ge=1, description="Steps between two checkpoints; a restart loses at most that many.")
    keep_last: int = Field(
        ge=1,
        description="Newest checkpoints that stay; with 2 a damaged one costs no more than the way back to the one before.",
    )
    keep_every: int = Field(
        ge=0,
        description="Checkpoints at multiples of so many steps stay as well, to look at later: a multiple of `checkpoint_every`; 0 "
        "keeps none of them.",
    )

    @model_validator(mode="after")
    def _fits(self) -> Self:
        grid = patch_grid(self.encoder.image_size, self.encoder.patch_size)
        check_masks(grid, self.masks)
        self.quality.check_view(self.encoder.image_size)
        if self.objective.low_resolution != "none" and grid.h % 2:
            raise ValueError(
                f"objective.low_resolution is {self.objective.low_resolution!r} on a {grid.h}×{grid.w} patch grid; the grid must have "
                f"even sides to be halved: change encoder.image_size or encoder.patch_size"
            )
        if self.objective.target_layers > self.encoder.layers:
            raise ValueError(
                f"objective.target_layers is {self.objective.target_layers} and encoder.layers {self.encoder.layers}; there are no "
                f"more layers to average than the encoder has"
            )
        highest = min(self.encoder.width, self.optimisation.global_batch_size)
        if self.collapse.effective_rank_floor >= highest:
            raise ValueError(
                f"collapse.effective_rank_floor is {self.collapse.effective_rank_floor}, but the effective rank of "
                f"{self.optimisation.global_batch_size} images' features of width {self.encoder.width} is at most {highest}; every run "
                f"would count as collapsed: lower it, or raise optimisation.global_batch_size"
            )
        if self.keep_every % self.checkpoint_every:
            raise ValueError(
                f"keep_every is {self.keep_every} and checkpoint_every {self.checkpoint_every}; of the steps that should stay only those "
                f"with a checkpoint can: make keep_every a multiple of checkpoint_every, or 0"
            )
        if self.optimisation.epochs == 0 and self.init.source == "scratch":
            raise ValueError(
                "optimisation.epochs is 0 and init.source 'scratch', which leaves nothing but noise; give epochs, or the file of a "
                "trained encoder in init"
            )
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
    quality: Path = Field(
        description="prepared labelled dataset to measure quality on; not looked at where that is off"
    )
    init: Path = Field(description="what the encoder starts from: a file of weights, or the code that draws them")


class PretrainOutputs(Outputs):
    """What pretraining leaves."""

    encoder: Path = Field(description="target encoder, safetensors that describe themselves")
    predictor: Path = Field(description="predictor, safetensors that describe themselves")
    state: Path = Field(
        description="final training state (model, target encoder, optimiser, step, curves), safetensors"
    )
    history: Path = Field(description="CSV of the curves, a row per logged step")
    spectrum: Path = Field(description="CSV of the eigenvalues of AAᵀ at the end and at the start")
    masks: Path = Field(description="PNG of the first training crops with context and targets, drawn before training")
    work: Path = Field(description="folder of resume state, one sub-folder per fingerprint; no output of the stage")
    metrics: Path = Field(description="JSON of final values")
    run: Path = Field(description="JSON that links to the MLflow run")


class PretrainMetrics(Metrics):
    """`<curve>_final` is the last value of a curve, `<curve>_best` its best. The loss does not tell quality: the targets move."""

    loss_final: float = Field(description="mean loss over the last tenth of the logged steps")
    loss_best: float = Field(description="lowest loss of a logged step")
    A_norm_final: float = Field(description="‖A‖, Frobenius")
    A_norm_l1_final: float = Field(description="mean |A|, the paper's normalised l1 norm")
    b_norm_final: float = Field(description="‖b‖")
    mask_token_norm_final: float = Field(description="‖m̃‖; 0 without a mask token")
    noise_ratio_final: float = Field(description="rms(A·n) / rms(ψ)")
    feature_std_final: float = Field(description="mean standard deviation of pooled target features over a batch")
    effective_rank_final: float = Field(description="RankMe of pooled target features over a batch")
    target_std_final: float = Field(description="mean standard deviation of the targets over images and patches")
    context_length_final: float = Field(description="context patches of each image in the last logged step")
    mask_coverage_final: float = Field(
        description="share of the grid that was context or target in the last logged step"
    )
    quality_knn_top1_final: float | None = Field(
        description="k-NN on the labelled images of quality, percent right, the last time it was measured"
    )
    quality_knn_top1_best: float | None = Field(description="its highest value; below it the encoder got worse")
    quality_probe_top1_final: float | None = Field(description="the linear probe on the same images, percent right")
    quality_probe_top1_best: float | None = Field(description="its highest value")
    collapsed: float = Field(description="1 if the collapse rule applied at any logged step, else 0")
    images_per_second_mean: float = Field(description="over all workers and all steps")
    steps: float = Field(description="updates made")
