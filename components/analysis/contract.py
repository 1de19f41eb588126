"""What is legal for the stage `analysis`: figures of what the noise does to positions, predictions and features."""

from pathlib import Path
from typing import Self

from pydantic import Field, model_validator

from components.evaluation import EvaluationParams
from components.stage import Inputs, Metrics, Outputs


class AnalysisParams(EvaluationParams):
    """Which images are looked at, and how often the noise is drawn. Masks, noise and targets are those of the run itself."""

    seed: int = Field(
        ge=0, description="Seed of the masks and the noise that are drawn here. The weights do not change with it."
    )
    dataset: str = Field(
        min_length=1,
        description="Name of a prepared dataset of any kind, an entry of `datasets` in params/prepare.yaml. Each picture's central "
        "square is scaled to the size that the encoder was pretrained at.",
    )
    split: str = Field(
        min_length=1, description="Split whose pictures are looked at; one that did not train the encoder tells most."
    )
    images: int = Field(
        ge=1,
        le=10_000,
        description="Pictures that the numbers and the principal components are measured on, spread evenly over the split; all of "
        "a smaller one. More make the numbers steadier and cost time in proportion.",
    )
    shown_images: int = Field(
        ge=1,
        le=12,
        description="How many of these the figures show, a row each, spread evenly as well; at most images.",
    )
    draws: int = Field(
        ge=2,
        le=1000,
        description="Draws of the noise that means are taken over, for positions and for predictions. The time of the predictions is "
        "proportional to it. Nothing is drawn for a run whose noise_std is 0.",
    )
    temperature: float = Field(
        gt=0,
        le=10,
        description="What cosine similarities are divided by before the softmax over all patches: small lets the best match stand "
        "out, 1 is a nearly flat map. The paper does not tell its own. Localities of different values do not compare.",
    )

    @model_validator(mode="after")
    def _shown_are_measured(self) -> Self:
        if self.shown_images > self.images:
            raise ValueError(
                f"shown_images is {self.shown_images} and images {self.images}; the pictures shown are among those measured: lower "
                f"shown_images or raise images"
            )
        return self


class AnalysisInputs(Inputs):
    """What one run of pretraining left, and pictures."""

    encoder: Path = Field(description="the pretrained encoder, a safetensors file of stage pretrain")
    predictor: Path = Field(description="the predictor of the same run, a safetensors file of stage pretrain")
    dataset: Path = Field(description="prepared dataset of any kind, a folder of stage prepare")
    history: Path = Field(description="CSV of the same run's curves, a row per logged step")
    eigenvalues: Path = Field(description="CSV of the eigenvalues of AAᵀ at the end and at the start of the same run")


class AnalysisOutputs(Outputs):
    """Figures, and the numbers behind them."""

    position_similarity: Path = Field(
        description="PNG: similarity of noisy position embeddings with the deterministic ones (Fig. 5)"
    )
    prediction_heatmaps: Path = Field(
        description="PNG: similarity of a predicted patch with all patches of its image (Fig. 6)"
    )
    norms: Path = Field(description="PNG: norms of A and of the mask token over training (Fig. 4)")
    spectrum: Path = Field(description="PNG: spectrum of AAᵀ at the end and at the start of training")
    patch_pca: Path = Field(
        description="PNG: principal components of patch features as colours, pretrained and untrained"
    )
    metrics: Path = Field(description="JSON of the numbers behind the figures")
    run: Path = Field(description="JSON that links to the MLflow run")


class AnalysisMetrics(Metrics):
    """Numbers behind the figures; they describe a run and are no scores. Without noise, noisy ones equal their twins."""

    position_similarity: float = Field(
        description="cosine similarity of a noisy position embedding with its own deterministic one, mean; 1 without noise"
    )
    position_blur: float = Field(
        description="patches that noise moves a position towards a neighbouring one, standard deviation; 0 without noise"
    )
    prediction_locality: float = Field(
        description="percent of a prediction's heat map within one patch of the predicted one, noise drawn as in training, mean"
    )
    prediction_locality_noiseless: float = Field(description="the same, predicted without noise")
    target_locality: float = Field(description="the same for the true target in place of the prediction")
    prediction_cosine: float = Field(
        description="cosine similarity of a noiseless prediction with its true target, mean"
    )
    A_norm_l1: float = Field(description="mean |A|, the paper's normalised l1 norm (Fig. 4)")
    mask_token_norm_l1: float = Field(
        description="mean entry, in size, of what every masked token is given: m̃, b or both"
    )
    pca_explained: float = Field(description="percent of the patch features' variance in three principal components")
    pca_explained_untrained: float = Field(description="the same for the encoder before its first step")
