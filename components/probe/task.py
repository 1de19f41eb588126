"""The fields of every task on labelled images: which ones, and how each becomes the square that the encoder sees.

pydantic only, so that contracts can import it.
"""

from typing import Literal, Self

from pydantic import Field, model_validator

from components.stage import Params


class ImageTask(Params):
    """A labelled dataset to classify."""

    dataset: str = Field(
        min_length=1, description="Name of a prepared image dataset: an entry of `datasets` in params/prepare.yaml."
    )
    train_split: str = Field(min_length=1, description="Split whose images are learned from.")
    test_split: str = Field(min_length=1, description="Split whose images are scored. It must differ from train_split.")
    train_list: str = Field(
        min_length=1,
        description="File that names the training images, one a line: params/subsets/all.txt is every image, "
        "imagenet_1percent.txt beside it SimCLR's 1 % of ImageNet.",
    )
    train_list_sha256: str = Field(
        pattern="^[0-9a-f]{64}$",
        description="sha256 of the file train_list, checked before anything else: which list it is belongs to the protocol. "
        "params/subsets/README.md has those of the lists here; `sha256sum FILE` prints another's.",
    )
    train_limit: int = Field(
        ge=0,
        description="At most this many training images, spread evenly over the list; 0 takes all. Lower it for a "
        "quick look.",
    )
    test_limit: int = Field(
        ge=0, description="At most this many scored images, spread evenly over the split; 0 takes all."
    )
    image_size: int = Field(
        ge=8,
        le=1024,
        description="Side of the square image the encoder sees, in pixels; a multiple of its patch size. The size it "
        "was pretrained at is best.",
    )
    resize: Literal["direct", "short_side_center_crop"] = Field(
        description="How an image becomes square, unless it is cropped at random. 'direct' "
        "scales both sides to image_size and may squash; right for "
        "images that are square or small. 'short_side_center_crop' scales the short side to "
        "resize_short_side and cuts the centre, the paper's protocol for photographs."
    )
    resize_short_side: int = Field(
        ge=8,
        le=2048,
        description="Length the short side is scaled to before the centre is cut, in pixels: 256 for an image_size of"
        " 224. Only resize 'short_side_center_crop' reads it.",
    )

    @model_validator(mode="after")
    def _splits_and_sizes(self) -> Self:
        if self.train_split == self.test_split:
            raise ValueError(
                f"train_split and test_split are both {self.test_split!r}; images that were learned from prove nothing: "
                f"name another split"
            )
        if self.resize == "short_side_center_crop" and self.resize_short_side < self.image_size:
            raise ValueError(
                f"resize_short_side is {self.resize_short_side}, below image_size {self.image_size}; a crop must fit: "
                f"raise it to {self.image_size * 8 // 7}"
            )
        return self
