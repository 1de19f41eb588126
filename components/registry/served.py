"""What MLflow serves of a promoted encoder: images in, embeddings out.

`packaging` puts this file and the few that it imports beside the weights, so that they need torch, timm and safetensors, not this
project; nothing is pickled.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from components.features import pick
from components.images.transforms import View, normalise, square
from components.mim.weights import load_encoder

BATCH: Final = 64
"""Images that are encoded at a time."""
DEFAULTS: Final = {"image_size": 0, "resize": "short_side_center_crop", "resize_short_side": 0}
"""The parameters of a prediction; the words are those of a task in params/linear_probe.yaml."""


class ServedEncoder:
    """A frozen encoder on a device, with the interface of MLflow's models."""

    def __init__(self, path: Path, device: Literal["cpu", "gpu"]) -> None:
        self._device = pick(device)
        self._encoder = load_encoder(path).to(self._device)

    def predict(self, images_BHWC: NDArray[np.uint8], params: Mapping[str, Any] | None = None) -> NDArray[np.float32]:
        """Embeddings float32 [B, D] of images uint8 [B, H, W, 3], RGB: the mean of the last layer's normed patch tokens.

        Each image is first brought to `image_size` (pixels; 0 is the size of pretraining): `direct` squeezes it, and
        `short_side_center_crop` scales its short side to `resize_short_side` (0 is `image_size`) and cuts the centre.
        Raises ValueError for images or parameters that the encoder cannot take.
        """
        images, view = np.asarray(images_BHWC), self._view(DEFAULTS | dict(params or {}))
        if images.dtype != np.uint8 or images.ndim != 4 or images.shape[-1] != 3:
            raise ValueError(
                f"images are {images.dtype} of shape {list(images.shape)}; they must be uint8 [B, H, W, 3], RGB, such as "
                "np.asarray(PIL.Image.open(path).convert('RGB'))[None]"
            )
        parts = [self._embed(images[start : start + BATCH], view) for start in range(0, len(images), BATCH)]
        return np.concatenate(parts) if parts else np.empty((0, self._encoder.config.width), np.float32)

    def _view(self, params: Mapping[str, Any]) -> View:
        size = int(params["image_size"]) or self._encoder.config.image_size
        short, resize = int(params["resize_short_side"]) or size, params["resize"]
        if resize not in ("direct", "short_side_center_crop"):
            raise ValueError(f"resize is {resize!r}; it must be direct or short_side_center_crop")
        if size < 0 or short < size:
            raise ValueError(
                f"image_size is {size}, resize_short_side {short}; a positive size must fit into the short side"
            )
        self._encoder.grid(size, size)  # says so if the patch size does not divide it
        return square(size, resize, short)

    @torch.inference_mode()
    def _embed(self, images_BHWC: NDArray[np.uint8], view: View) -> NDArray[np.float32]:
        pixels = np.stack([view(image_CHW) for image_CHW in torch.from_numpy(images_BHWC.copy()).permute(0, 3, 1, 2)])
        tokens = self._encoder(normalise(torch.from_numpy(pixels).to(self._device)))
        embeddings: NDArray[np.float32] = tokens.mean(dim=1).float().cpu().numpy()
        return embeddings


def _load_pyfunc(path: str, model_config: Mapping[str, Any]) -> ServedEncoder:
    """What MLflow calls; `mlflow.pyfunc.load_model(…, model_config={"device": "gpu"})` chooses the device."""
    return ServedEncoder(Path(path), model_config["device"])
