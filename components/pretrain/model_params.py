"""What is legal for the model that `pretrain` trains: where it starts, its parts, its positions, masks and targets."""

from typing import Literal, Self

from pydantic import Field, model_validator

from components.stage import Params

SCRATCH = "components/mim/initialise.py"
"""The source of first weights when there is no file of them: `path` always names what a run starts from, for DVC."""


class Init(Params):
    """Where the encoder's first weights come from. With 0 epochs an imported encoder is passed on as it is."""

    source: Literal["scratch", "file", "timm"] = Field(
        description="scratch draws them; file reads an encoder of I-JEPA, StoP, MAE, DINO, iBOT, MoCo v3, BEiT, data2vec or of this "
        "project; timm reads a weights file of the timm model named in model."
    )
    path: str = Field(
        min_length=1,
        description=f"File with the weights, such as data/raw/ijepa_vith14.pth.tar; {SCRATCH} with source scratch.",
    )
    part: Literal["target_encoder", "encoder"] = Field(
        description="Which encoder of the file, where it holds both: the target encoder (teacher, momentum encoder), which the "
        "papers evaluate, or the trained one."
    )
    model: str = Field(
        pattern=r"^[a-z0-9_.]*$",
        description="timm's name of the model, such as vit_small_patch14_dinov2; empty unless source is timm.",
    )

    @model_validator(mode="after")
    def _agree(self) -> Self:
        if (self.source == "scratch") != (self.path == SCRATCH):
            raise ValueError(
                f"source is {self.source!r} and path {self.path!r}; scratch goes with path {SCRATCH}, which draws the weights, file "
                f"and timm with the path of a weights file"
            )
        if (self.source == "timm") != bool(self.model):
            raise ValueError(
                f"source is {self.source!r} and model {self.model!r}; model is timm's name of the model with source timm, and "
                f"empty otherwise"
            )
        return self


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
    class_token: bool = Field(
        description="A learned token beside the patches, as in MAE and DINO; I-JEPA and StoP have none."
    )
    positions: Literal["sincos", "learned"] = Field(
        description="sincos: fixed 2-D sines and cosines, in closed form for any grid. learned: a table, resampled for other grids."
    )

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
    positions: Literal["sincos", "learned"] = Field(
        description="ψ, the positions that noise is added to: fixed sines and cosines, or a learned table."
    )
    passes: Literal["block", "joint"] = Field(
        description="block: a pass for each target block, so that blocks never see each other, as the reference. joint: one pass for all."
    )

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
    covariance: Literal["learned", "untied", "fixed"] = Field(
        description="Σ of the noise on a position. learned: noise_std²·AAᵀ with the A that projects the context. untied: the same with "
        "a matrix of its own, which can shrink to nothing. fixed: noise_std²·I."
    )
    apply_to: Literal["masked", "context", "both"] = Field(
        description="Whose positions are noisy; the paper finds masked tokens alone best (Table 7)."
    )
    mask_token: bool = Field(
        description="Adds the learned mask token m̃, as the paper and I-JEPA do; the released StoP code has none."
    )
    bias_on_noise: bool = Field(
        description="Sends the noise through A and its bias b, as the released StoP code does, so that b marks masked tokens."
    )
    penalty: Literal["none", "l1", "l2"] = Field(
        description="Regularises A in the loss, as the paper does in place of noise (§4.3): the mean of |A| or of A²."
    )
    penalty_weight: float = Field(ge=0, le=1e4, description="What the penalty is multiplied with; 0 with penalty none.")

    @model_validator(mode="after")
    def _agree(self) -> Self:
        if self.bias_on_noise and self.covariance != "learned":
            raise ValueError(
                f"bias_on_noise is true and covariance {self.covariance!r}; only noise that passes through A meets its bias: set "
                f"bias_on_noise to false and mask_token to true, or covariance to learned"
            )
        if self.covariance == "untied" and self.noise_std == 0:
            raise ValueError(
                "covariance is 'untied' and noise_std 0, so that nothing would train the noise's own matrix; set covariance to "
                "learned, which is the same without noise"
            )
        if (self.penalty == "none") != (self.penalty_weight == 0):
            raise ValueError(
                f"penalty is {self.penalty!r} and penalty_weight {self.penalty_weight}; give both, or none and 0"
            )
        return self

    @model_validator(mode="after")
    def _marked(self) -> Self:
        if not (self.mask_token or self.bias_on_noise):
            raise ValueError(
                "mask_token and bias_on_noise are both false, which leaves masked tokens without anything learned; set one to true"
            )
        return self


class Masks(Params):
    """Which patches are predicted (target blocks) and which are seen (the context)."""

    sampler: Literal["multiblock", "legacy", "random"] = Field(
        description="multiblock: I-JEPA's blocks, every patch reached and every image with as many. legacy: the released code's, which "
        "never reaches the last row and column and cuts contexts at the bottom. random: MAE's, hidden_ratio alone counts."
    )
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
        ge=1,
        description="Fewest context patches an image may keep; settings that could leave fewer are refused. For legacy, "
        "what a block must exceed; 10 in the released code.",
    )
    hidden_ratio: float = Field(
        gt=0, lt=1, description="Share of the patches that the random sampler hides and has predicted. 0.75 in MAE."
    )

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        for name in ("target_scale", "target_aspect", "context_scale"):
            low, high = getattr(self, f"{name}_min"), getattr(self, f"{name}_max")
            if low > high:
                raise ValueError(f"{name}_min is {low} and {name}_max {high}; the first must not exceed the second")
        return self


class Objective(Params):
    """What the predictor must predict."""

    name: Literal["ijepa", "data2vec", "mae"] = Field(
        description="ijepa: layer-normed features of the target encoder. data2vec: the mean over its last target_layers layers. mae: "
        "pixels, without a target encoder."
    )
    loss: Literal["smooth_l1", "l2"] = Field(description="smooth_l1 (β = 1) in I-JEPA and StoP, l2 in MAE.")
    target_layers: int = Field(
        ge=1, le=64, description="Layers that data2vec's features are averaged over; 1 otherwise."
    )
    low_resolution: Literal["none", "bilinear", "max_pool"] = Field(
        description="Has features predicted at half the resolution as well (Table 8), which the paper finds worse than noise."
    )
    normalise_pixels: bool = Field(description="MAE's norm_pix_loss: each patch of pixels with mean 0 and deviation 1.")

    @model_validator(mode="after")
    def _agree(self) -> Self:
        if self.name != "data2vec" and self.target_layers != 1:
            raise ValueError(
                f"name is {self.name!r} and target_layers {self.target_layers}; only data2vec averages layers: set target_layers to 1"
            )
        if self.name == "mae" and self.low_resolution != "none":
            raise ValueError(
                f"name is 'mae' and low_resolution {self.low_resolution!r}; only features are halved: set low_resolution to none"
            )
        return self


def _check_width(name: str, width: int, heads: int) -> None:
    if width % 4 or width % heads:
        raise ValueError(
            f"{name} width is {width} with {heads} heads; it must be a multiple of 4 (sin-cos positions) and of heads"
        )
