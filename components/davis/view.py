"""How a frame enters an encoder: its token grid and its pixels."""

from typing import Literal

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.nn import functional

from components.images.decoding import of_picture
from components.images.transforms import STD, direct_resize, normalise

PAPER_RED_STD = 0.228  # DINO's slip; part of the published protocol
PAPER_TOKENS = 4  # DINO floors the long side to 64 pixels at patch 16

Profile = Literal["paper", "clean"]


def grid_size(height: int, width: int, short_side: int, patch: int, profile: Profile) -> tuple[int, int]:
    """Token grid (h, w) of a frame whose short side becomes `short_side` pixels, rounded to whole patches.

    h·patch × w·patch is the box that image, labels and prediction share.
    """
    short = max(round(short_side / patch), 1)
    long = short_side * max(height, width) / min(height, width) / patch
    whole = round(long) if profile == "clean" else int(long) // PAPER_TOKENS * PAPER_TOKENS
    return (short, max(whole, short)) if height <= width else (max(whole, short), short)


def pixels(image: Image.Image, height: int, width: int, profile: Profile) -> Tensor:
    """The frame as the encoder takes it: [1,3,height,width], normalised."""
    if profile == "clean":
        return normalise(np.stack([direct_resize(of_picture(image), height, width)]))
    image_1CHW = torch.from_numpy(np.array(image)).permute(2, 0, 1)[None].float()
    resized = functional.interpolate(image_1CHW, (height, width), mode="bilinear", antialias=False)
    red = torch.tensor([STD[0] / PAPER_RED_STD, 1.0, 1.0])[:, None, None]
    return normalise(resized.round().byte().permute(0, 2, 3, 1)) * red


def patches(image_1CHW: Tensor, patch: int) -> Tensor:
    """The pixels of each patch as its features: [h,w,C·patch·patch]."""
    tokens_CPhw = functional.pixel_unshuffle(image_1CHW[0], patch)
    return tokens_CPhw.permute(1, 2, 0)
