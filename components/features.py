"""Frozen encoders as feature extractors: where they run, and a token grid for tracking. Pooled vectors: probe/extraction.py."""

from typing import Literal

import torch
from torch import Tensor

from components.mim.encoder import VisionEncoder


def pick(device: Literal["cpu", "gpu"]) -> torch.device:
    """The torch device an evaluation runs on. Raises ValueError when it asks for a GPU and there is none."""
    if device == "gpu" and not torch.cuda.is_available():
        raise ValueError("device is 'gpu', but torch sees no CUDA device here; set device: cpu, or free or mount a GPU")
    return torch.device("cuda" if device == "gpu" else "cpu")


@torch.inference_mode()
def token_grid(encoder: VisionEncoder, images_BCHW: Tensor) -> Tensor:
    """Normed last-layer tokens as a map: [B, h, w, D]."""
    h, w = encoder.grid(*images_BCHW.shape[-2:])
    tokens: Tensor = encoder(images_BCHW)
    return tokens.reshape(len(tokens), h, w, -1)
