"""Frozen encoders as feature extractors: pooled vectors for probes, a token grid for tracking."""

from collections.abc import Callable, Sequence
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from components import progress
from components.images.store import Store
from components.images.transforms import Pixels, normalise
from components.mim.encoder import VisionEncoder

Features = dict[str, NDArray[np.float32]]


def pick(device: Literal["cpu", "gpu"]) -> torch.device:
    """The torch device an evaluation runs on. Raises ValueError when it asks for a GPU and there is none."""
    if device == "gpu" and not torch.cuda.is_available():
        raise ValueError("device is 'gpu', but torch sees no CUDA device here; set device: cpu, or free or mount a GPU")
    return torch.device("cuda" if device == "gpu" else "cpu")


@torch.inference_mode()
def pooled(
    encoder: VisionEncoder,
    store: Store,
    rows: Sequence[int] | NDArray[np.int64],
    transform: Callable[[Image.Image], Pixels],
    *,
    layers: int,
    batch_size: int,
    label: str,
) -> Features:
    """Average-pooled features of `rows`: `last` float32 [n, D] and `last4` [n, layers·D].

    `last4` concatenates the pooled last `layers` layers (all of them in a shallower encoder), the final norm applied to each, as
    VISSL's concatPOOL4 does with four. `label` names the work in the progress lines.
    """
    device = next(encoder.parameters()).device
    depth = min(layers, encoder.config.layers)
    chunks, meter = [], progress.Meter(label, len(rows), "images")
    for start in range(0, len(rows), batch_size):
        pixels = np.stack([transform(store.image(int(row))) for row in rows[start : start + batch_size]])
        images = normalise(torch.from_numpy(pixels).to(device))
        outputs = encoder.layer_tokens(images, depth)
        chunks.append(torch.cat([tokens.mean(dim=1) for tokens in outputs], dim=1).float().cpu())
        meter.advance(len(pixels))
    features = torch.cat(chunks).numpy()
    return {"last": np.ascontiguousarray(features[:, -encoder.config.width :]), "last4": features}


@torch.inference_mode()
def token_grid(encoder: VisionEncoder, images_BCHW: Tensor) -> Tensor:
    """Normed last-layer tokens as a map: [B, h, w, D]."""
    h, w = encoder.grid(*images_BCHW.shape[-2:])
    tokens: Tensor = encoder(images_BCHW)
    return tokens.reshape(len(tokens), h, w, -1)
