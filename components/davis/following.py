"""What can follow objects through a video: features of an encoder, of bare pixels, and the first mask just copied."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from components import features
from components.davis.contract import DavisParams
from components.davis.labels import harden, soften
from components.davis.palette import Ids
from components.davis.propagation import propagate
from components.davis.sequence import Sequence
from components.davis.view import grid_size, patches, pixels
from components.mim.encoder import Encoder, VisionEncoder
from components.mim.positions import sincos
from components.mim.weights import load_encoder, untrained_encoder

Follower = Callable[[Sequence], Iterator[Ids]]
"""Object ids [H,W] of every frame of a video in order; the first frame's are given."""
FOLLOWERS = ("pretrained", "untrained", "pixels", "copy")
"""The encoder, and what it is measured by: itself before its first step, no encoder, no features."""


def followers(path: Path, params: DavisParams, device: torch.device, videos: list[Sequence]) -> dict[str, Follower]:
    """One of each of `FOLLOWERS`, in that order, for the encoder in `path`.

    Raises ValueError naming the file and the first of `videos` that the encoder does not fit.
    """
    encoders = [made(path).to(device) for made in (load_encoder, untrained_encoder)]
    if params.positions == "stretched":
        encoders = [stretched(encoder) for encoder in encoders]
    patch: int = encoders[0].config.patch_size
    describers: list[Callable[[Tensor], Tensor]] = [*map(_tokens, encoders), partial(patches, patch=patch)]
    trained, untrained, bare = (Propagation(describe, patch, params, device, path) for describe in describers)
    trained.check(videos)
    return dict(zip(FOLLOWERS, (trained, untrained, bare, copies), strict=True))


def _tokens(encoder: VisionEncoder) -> Callable[[Tensor], Tensor]:
    return lambda image_1CHW: features.token_grid(encoder, image_1CHW)[0]


def copies(video: Sequence) -> Iterator[Ids]:
    """The first mask for every frame."""
    first_HW = video.truth(0)
    for _ in range(len(video)):
        yield first_HW


def stretched(encoder: VisionEncoder) -> VisionEncoder:
    """An encoder whose fixed sin-cos positions for its own grid are resampled for others, as learned ones are."""
    if not isinstance(encoder, Encoder) or encoder.config.positions != "sincos":
        return encoder
    side = encoder.config.image_size // encoder.config.patch_size
    twin = Encoder(replace(encoder.config, positions="learned"))
    table = sincos(side, side, encoder.config.width)[None]
    twin.load_state_dict({**encoder.state_dict(), "positions": table}, strict=True)
    return twin.to(next(encoder.parameters()).device).eval().requires_grad_(False)


@dataclass(frozen=True)
class Propagation:
    """Follows by the likeness of features: `describe` turns pixels [1,3,H,W] into a token grid [h,w,D]."""

    describe: Callable[[Tensor], Tensor]
    patch: int
    params: DavisParams
    device: torch.device
    encoder: Path
    """Named in errors."""

    def __call__(self, video: Sequence) -> Iterator[Ids]:
        """Holds the first frame and `context_frames` others at a time."""
        params, first_HW = self.params, video.truth(0)
        yield first_HW
        soft_labels = propagate(
            self.features(video),
            soften(first_HW, video.objects, self.grid(video), params.profile).to(self.device),
            radius=params.radius,
            top_k=params.top_k,
            temperature=params.temperature,
            context_frames=params.context_frames,
        )
        for labels_Khw in soft_labels:
            yield harden(labels_Khw, video.size, self.patch, params.profile)

    def features(self, video: Sequence) -> Iterator[Tensor]:
        """The token grid [h,w,D] of every frame in order. Raises ValueError where one is no number."""
        for frame in range(len(video)):
            grid_hwD = self.describe(self.view(video, frame))
            if not grid_hwD.isfinite().all():
                raise ValueError(
                    f"encoder {str(self.encoder)!r}: its features of {video.paths[frame]} are not all finite numbers; training "
                    f"diverged or the file is damaged: use an encoder from before"
                )
            yield grid_hwD

    def view(self, video: Sequence, frame: int) -> Tensor:
        """The frame's pixels [1,3,h·patch,w·patch] on the device."""
        height, width = (side * self.patch for side in self.grid(video))
        return pixels(video.image(frame), height, width, self.params.profile).to(self.device)

    def grid(self, video: Sequence) -> tuple[int, int]:
        """The token grid of its frames."""
        return grid_size(*video.size, self.params.short_side, self.patch, self.params.profile)

    def check(self, videos: list[Sequence]) -> None:
        """Describes one frame of each size. Raises ValueError naming encoder and sequence when it does not fit."""
        for video in {video.size: video for video in reversed(videos)}.values():
            h, w = self.grid(video)
            where = f"encoder {str(self.encoder)!r} does not fit sequence {video.name!r} of {video.size[1]}×{video.size[0]} pixels"
            way_out = "change short_side in params/davis.yaml or take another encoder"
            if min(h, w) < 2:
                raise ValueError(
                    f"{where}: with short_side {self.params.short_side} its patches of {self.patch} pixels make a grid of {w}×{h} "
                    f"tokens, and following objects takes 2 in each direction; {way_out}"
                )
            view_1CHW = self.view(video, 0)
            try:
                found = self.describe(view_1CHW).shape[:2]
            except (RuntimeError, ValueError, AssertionError) as error:  # whatever torch and timm say of a size
                raise ValueError(f"{where}, a grid of {w}×{h} tokens: {error}; {way_out}") from error
            assert found == (h, w), f"{where}: its grid is {found}"
