"""The fields that every stage with a grid of linear heads has; pydantic only, so that contracts can import it."""

from typing import Annotated, Any, Literal, NamedTuple, Self

from pydantic import Field, model_validator

from components.evaluation import EvaluationParams
from components.stage import Params


class Encoding(NamedTuple):
    """How images are encoded: so many in a pass, by so many workers with so many cores each. It decides no feature but its last bits."""

    batch_size: int
    workers: int
    cpus_per_worker: int


class HeadParams(Params):
    """The grid of heads and how they learn.

    Each combination of feature set (last, last4, class_token), batch norm, learning rate and weight decay is one head. All are
    trained at once; the best one is reported, and so for the untrained encoder.
    """

    batch_size: int = Field(
        ge=16,
        le=65536,
        description="Images per update of the heads. The learning rates are scaled by batch_size / 256.",
    )
    optimiser: Literal["sgd", "lars"] = Field(
        description="'sgd' with Nesterov momentum 0.9, the paper's for B and L models and for all transfers. 'lars' scales each "
        "update of a weight matrix to 0.001 of its norm, for batches of many thousand images, the paper's for H on ImageNet."
    )
    learning_rates: list[Annotated[float, Field(gt=0, le=1000)]] = Field(
        min_length=1,
        description="Learning rates to try, per 256 images; one head each. Widen the list when the best head of "
        "plots/…/heads.csv stands at its end. The paper's recipe for B and L models is 0.01.",
    )
    weight_decays: list[Annotated[float, Field(ge=0, le=1)]] = Field(
        min_length=1,
        description="Weight decays to try; one head each. Batch norm's own scale and shift are never decayed. The "
        "paper's recipe is 0.0005.",
    )
    batch_norm: Literal["both", "no", "yes"] = Field(
        description="Whether heads normalise each feature over the batch before the linear layer: 'yes', 'no', or "
        "heads of 'both' kinds as in the paper. It makes the heads indifferent to the features' scale."
    )
    schedule: Literal["cosine", "step"] = Field(
        description="How the learning rate falls: 'cosine' to 1 % of it, as in VISSL's CLEVR recipe, or 'step', to a tenth at "
        "each of the milestones, as in its other recipes."
    )
    milestones: list[Annotated[int, Field(ge=1, le=1000)]] = Field(
        description="Epochs after which the learning rate falls to a tenth, such as 8, 16 and 24 of 28. Only schedule 'step' "
        "reads them."
    )

    @model_validator(mode="after")
    def _no_head_twice(self) -> Self:
        for name, values in (("learning_rates", self.learning_rates), ("weight_decays", self.weight_decays)):
            if len(set(values)) != len(values):
                raise ValueError(
                    f"{name} is {values}; each value may stand once, as two equal heads tell nothing; remove one"
                )
        if self.schedule == "step" and (not self.milestones or sorted(set(self.milestones)) != self.milestones):
            raise ValueError(
                f"milestones is {self.milestones}; schedule 'step' needs one or more, in order and each once: such as 8, 16, 24"
            )
        return self

    def fit_into(self, epochs: int) -> None:
        """Raises ValueError when the rate falls after the last of `epochs` passes."""
        if self.schedule == "step" and self.milestones[-1] >= epochs:
            raise ValueError(
                f"heads.milestones is {self.milestones}, but there are {epochs} epochs; the last milestone must come before "
                f"the end: lower it or train longer"
            )

    def decisive(self) -> dict[str, Any]:
        """The values that decide what a score means: the milestones only where they are read."""
        return {
            key: value for key, value in self.model_dump().items() if (key, self.schedule) != ("milestones", "cosine")
        }


class ProbeParams(EvaluationParams):
    """What every stage with linear heads on frozen features may be told."""

    seed: int = Field(
        ge=0,
        description="Seed of the order in which the heads see the images, and of random crops. Change it to see how much a "
        "score varies.",
    )
    profile: Literal["paper", "clean"] = Field(
        description="How the best head is chosen. 'paper': on the evaluation images themselves, as VISSL and the "
        "paper do, which flatters every encoder a little. 'clean': on a part of the training images held "
        "out for this, so that the evaluation images decide nothing. Compare scores of one profile only."
    )
    holdout_fraction: float = Field(
        gt=0,
        lt=0.5,
        description="Share of the training images that profile 'clean' holds out to choose the head; 'paper' trains "
        "on all and ignores it. An image is held out by the hash of its path, so the choice never moves. "
        "0.1 is usual; raise it when the training set is small.",
    )
    layers: int = Field(
        ge=2,
        le=8,
        description="How many of the encoder's last layers the wide feature set 'last4' joins; 4 in the paper. An "
        "encoder with fewer layers gives all it has.",
    )
    encoding_batch_size: int = Field(
        ge=1, le=4096, description="Images per pass of the frozen encoder. Changes speed and memory, never a score."
    )
    workers: int = Field(
        ge=1,
        le=4096,
        description="Processes that share the encoding of features that are kept, each with a device of its own. 1: the stage itself, "
        "without Ray. More: Ray workers on this machine, or on the cluster at RAY_ADDRESS, with `work` and the dataset on a path "
        "that all nodes share. The features are the same to the bit on a CPU. Random crops ('augmented') are encoded by the stage.",
    )
    cpus_per_worker: int = Field(
        ge=1,
        le=256,
        description="CPU cores of each worker, and threads of torch while it encodes, in the stage itself as well: few workers with "
        "many or many with few, together the machine's. With another number a feature can differ by rounding.",
    )

    def encoding(self) -> Encoding:
        """How images are encoded."""
        return Encoding(self.encoding_batch_size, self.workers, self.cpus_per_worker)
