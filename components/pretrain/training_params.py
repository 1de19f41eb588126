"""What is legal for how `pretrain` trains: augmentation, optimisation, the collapse rule, scale."""

from typing import Literal, Self

from pydantic import Field, model_validator

from components.stage import Params


class Augmentation(Params):
    """What happens to an image before it is cut into patches."""

    crop_scale_min: float = Field(
        gt=0, le=1, description="Smallest area of the random crop, as a share of the image. 0.3 in the paper."
    )
    crop_scale_max: float = Field(gt=0, le=1, description="Largest area of the random crop. 1.0 in the paper.")
    flip: bool = Field(description="Mirrors half of the crops, as the released StoP recipe does; I-JEPA's does not.")
    grayscale: float = Field(
        ge=0, le=1, description="Share of the crops that lose their colour. 0.2 in the released StoP recipe."
    )
    blur: float = Field(
        ge=0,
        le=1,
        description="Share of the crops that are blurred, Gaussian radius 0.1 to 2 pixels. 0.5 in the released StoP recipe.",
    )

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.crop_scale_min > self.crop_scale_max:
            raise ValueError(
                f"crop_scale_min is {self.crop_scale_min} and crop_scale_max {self.crop_scale_max}; the first must not exceed the second"
            )
        return self


class Optimisation(Params):
    """AdamW and its schedules. Learning rates are absolute: they are not scaled with the batch."""

    epochs: int = Field(
        ge=0,
        description="Passes over the training split. 600 in the paper (300 for ViT-H). 0 passes an imported encoder on as it is.",
    )
    warmup_epochs: float = Field(ge=0, description="Epochs of linear warm-up of the learning rate. 15 in the paper.")
    global_batch_size: int = Field(ge=2, description="Images in one update, over all workers. 2048 in the paper.")
    start_lr: float = Field(ge=0, description="Learning rate at the start of the warm-up.")
    lr: float = Field(
        gt=0,
        le=1,
        description="Peak learning rate. 8e-4 in the paper for ViT-B and L; StoP likes it lower than I-JEPA.",
    )
    final_lr: float = Field(ge=0, description="Learning rate at the last step, reached along half a cosine.")
    hold_after: float = Field(
        ge=0,
        description="Epoch from which learning rate and weight decay stay where they are; 250 in the released ViT-H recipe. 0 never "
        "holds.",
    )
    weight_decay: float = Field(ge=0, le=1, description="Weight decay at the first step. 0.04 in the paper.")
    final_weight_decay: float = Field(
        ge=0, le=1, description="Weight decay at the last step, along half a cosine. 0.4 in the paper."
    )
    decay_A: bool = Field(description="Whether weight decay shrinks A, too, as the released code has it.")
    beta2: float = Field(gt=0, lt=1, description="AdamW's second β. 0.999 in I-JEPA and StoP, 0.95 in MAE.")
    clip_norm: float = Field(
        ge=0, description="Gradients of a larger norm are scaled down to it; 0 never clips, as in the paper."
    )
    ema: float = Field(
        gt=0,
        lt=1,
        description="Momentum of the target encoder at the first step; lower follows faster. 0.996 in the paper.",
    )
    final_ema: float = Field(
        gt=0, le=1, description="Momentum at the last step, along a straight line. 1.0 in the paper."
    )
    skip_budget: int = Field(
        ge=0,
        description="Steps of the whole run whose loss or gradient is no number that may be left out, each with a warning; the next one "
        "stops the stage. 0 stops at the first.",
    )

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.epochs and self.warmup_epochs >= self.epochs:
            raise ValueError(
                f"warmup_epochs is {self.warmup_epochs} and epochs {self.epochs}; the warm-up must end before training does"
            )
        if self.hold_after and not self.warmup_epochs <= self.hold_after < self.epochs:
            raise ValueError(
                f"hold_after is {self.hold_after}, with warmup_epochs {self.warmup_epochs} and epochs {self.epochs}; rates can be held "
                f"from a time after the warm-up and before the end, or never with 0"
            )
        for name in ("start_lr", "final_lr"):
            if getattr(self, name) > self.lr:
                raise ValueError(
                    f"{name} is {getattr(self, name)} and lr {self.lr}; lr is the peak: raise it or lower {name}"
                )
        if self.final_ema < self.ema:
            raise ValueError(
                f"ema is {self.ema} and final_ema {self.final_ema}; the target encoder follows ever more slowly: raise final_ema"
            )
        return self


class Collapse(Params):
    """When features count as collapsed, which no loss shows: it falls fastest then."""

    action: Literal["warn", "fail"] = Field(
        description="warn goes on, with a line in the log and the tag collapsed in MLflow; fail stops the stage after a checkpoint."
    )
    effective_rank_floor: float = Field(
        ge=0, description="Collapsed below this effective rank of pooled features; 0 never."
    )
    feature_std_floor: float = Field(
        ge=0, description="Collapsed below this standard deviation of pooled features; 0 never."
    )
    patience: int = Field(ge=1, description="Logged points on end that must be below.")

    @model_validator(mode="after")
    def _can_fail(self) -> Self:
        if self.action == "fail" and not (self.effective_rank_floor or self.feature_std_floor):
            raise ValueError(
                "action is 'fail' and both floors are 0, so that nothing ever counts as collapsed; give a floor, or action warn"
            )
        return self


class Scale(Params):
    """How many processes and devices train. The result does not depend on it, up to rounding."""

    backend: Literal["ray", "none"] = Field(
        description="ray trains in worker processes and starts them again when one is lost; none trains one worker in the stage's own "
        "process, without Ray's start of some seconds."
    )
    workers: int = Field(ge=1, le=4096, description="Training processes; global_batch_size is split evenly among them.")
    device: Literal["cpu", "gpu"] = Field(description="What each worker computes on; gpu gives every worker one GPU.")
    cpus_per_worker: int = Field(ge=1, le=256, description="CPU cores (and torch threads) of each worker.")
    images_at_once: int = Field(
        ge=0,
        description="Most images of a worker in one forward pass; a larger share of the batch accumulates gradients over several. 0 takes "
        "the share at once.",
    )
    sharding: Literal["ddp", "fsdp"] = Field(
        description="ddp keeps the whole model in each worker; fsdp splits weights, gradients, moments and the target encoder among them, "
        "for ViT-H and ViT-g."
    )
    loaders: int = Field(
        ge=0,
        le=256,
        description="Processes of each worker that decode and augment images ahead of it, of its cpus_per_worker: as many on a GPU, which "
        "only waits for them. Each keeps two of the worker's batches in shared memory (/dev/shm). 0 decodes in the worker itself, best "
        "on a CPU.",
    )
    precision: Literal["fp32", "bf16"] = Field(
        description="bf16 halves memory and time on recent GPUs; use fp32 on a CPU."
    )
    activation_checkpointing: bool = Field(
        description="Keeps no activations inside layers but computes them again: much less memory, a third more time."
    )

    compile: bool = Field(
        description="torch.compile on encoder and predictor: faster steps on a GPU after a minute or more of compiling."
    )

    @model_validator(mode="after")
    def _fits_backend(self) -> Self:
        if self.backend == "none" and self.workers > 1:
            raise ValueError(
                f"backend is 'none' and workers {self.workers}; several workers need backend ray: set it, or workers to 1"
            )
        if self.sharding == "fsdp" and self.workers == 1:
            raise ValueError("sharding is 'fsdp' and workers 1; there is nobody to share with: set sharding to ddp")
        return self

    @model_validator(mode="after")
    def _have_cores(self) -> Self:
        if self.loaders > self.cpus_per_worker:
            raise ValueError(
                f"loaders is {self.loaders} and cpus_per_worker {self.cpus_per_worker}; each loader needs a core of its own: lower it to "
                f"at most {self.cpus_per_worker}, or raise cpus_per_worker"
            )
        return self
