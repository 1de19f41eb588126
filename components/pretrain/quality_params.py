"""What is legal for the section `quality` of `pretrain`: how good the features are, looked at while they are learned."""

from typing import Self

from pydantic import Field, model_validator

from components.stage import Params


class QualityParams(Params):
    """k-NN and a small linear probe of the target encoder on labelled images, while it is trained. They decide nothing."""

    every_epochs: float = Field(
        ge=0,
        description="Epochs between two measurements; parts of one will do. It is also measured after the first step and after the last. "
        "0 never measures.",
    )
    dataset: str = Field(
        pattern=r"^[a-z0-9_]+$",
        description="Name of a prepared dataset of labelled images; the one that is learned from, if it has labels, or another. Where "
        "every_epochs is 0 nobody looks at it, and the name in pretrain.dataset will do.",
    )
    train_split: str = Field(
        min_length=1, description="Split whose labelled images k-NN and the probe learn from; they train no encoder."
    )
    test_split: str = Field(
        min_length=1,
        description="Split whose images are classified; another one than train_split, and not the one pretrained on.",
    )
    train_images: int = Field(
        ge=2,
        description="Most images of train_split, as many of each class, and the same ones in every run. They are decoded once and stay in "
        "memory, shared among the workers: 0.15 MB each at 224 pixels.",
    )
    test_images: int = Field(
        ge=1,
        description="Most images of test_split, drawn alike; with 1000 the standard error of a score is 1.6 points at most.",
    )
    resize_short_side: int = Field(
        ge=0,
        le=2048,
        description="Length the short side is scaled to before the central square of encoder.image_size is cut, in pixels: 256 for 224. "
        "0 squeezes the whole image into the square, right for images that are small or square.",
    )
    knn_k: int = Field(ge=1, le=1000, description="Neighbours that vote in k-NN; 20 in DINO.")

    @model_validator(mode="after")
    def _agree(self) -> Self:
        if self.train_split == self.test_split:
            raise ValueError(
                f"train_split and test_split are both {self.test_split!r}; images that were learned from prove nothing: name another "
                f"split"
            )
        if self.knn_k > self.train_images:
            raise ValueError(
                f"knn_k is {self.knn_k} and train_images {self.train_images}; no more can vote than there are: lower the first or raise "
                f"the second"
            )
        return self

    def check_view(self, image_size: int) -> None:
        """Raises ValueError when the central square of `image_size` pixels doesn't fit into the scaled image."""
        if 0 < self.resize_short_side < image_size:
            raise ValueError(
                f"quality.resize_short_side is {self.resize_short_side}, below encoder.image_size {image_size}; a crop must fit: raise it "
                f"to {image_size * 8 // 7}, or take 0"
            )
