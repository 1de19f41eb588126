"""Frozen encoders as feature extractors: pooled vectors of images. What keeps them in a file: kept.py."""

import os
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from itertools import chain, islice
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from components.images import decoding
from components.images.loading import threaded
from components.images.store import Store
from components.images.transforms import View, normalise
from components.mim.encoder import VisionEncoder
from components.probe.dataset import Part, Subject
from components.probe.params import Encoding
from components.probe.pieces import Piece, Pieces

DECODERS = max(2, len(os.sched_getaffinity(0)))
CODE = ("components.mim", "components.images", "components.probe.extraction")


class Request(NamedTuple):
    """What features are asked for: of the images of `part` as `view` shows them, the last `layers` layers, and who encodes them."""

    part: Part
    view: View
    layers: int
    encoding: Encoding


class Features(NamedTuple):
    """Pooled features: `matrix` float32 [n, W], in whose columns each feature set has its slice."""

    matrix: NDArray[np.float32]
    columns: dict[str, slice]

    def of(self, name: str) -> NDArray[np.float32]:
        """The feature set `name` [n, D]."""
        return self.matrix[:, self.columns[name]]

    def where(self, keep: NDArray[np.bool_]) -> "Features":
        """The rows for which the mask `keep` [n] is true, in memory."""
        return Features(self.matrix[keep], self.columns)


def columns(encoder: VisionEncoder, layers: int) -> dict[str, slice]:
    """Where the feature sets stand: `last`, `last4` (the last `layers` layers, all in a shallower encoder), `class_token`."""
    width, depth = encoder.config.width, min(layers, encoder.config.layers)
    sets = {"last": slice((depth - 1) * width, depth * width), "last4": slice(0, depth * width)}
    token = {"class_token": slice(depth * width, (depth + 1) * width)}
    return sets | token if encoder.has_class_token else sets


@torch.inference_mode()
def encode(encoder: VisionEncoder, pixels_BHWC: Tensor, layers: int) -> Tensor:
    """Pooled features float32 [B, W] of uint8 pixels, on the encoder's device.

    Each layer counts with the final norm applied, averaged over its patches, as in VISSL's lastPOOL and concatPOOL4; the class
    token is the final-normed one.
    """
    images = normalise(pixels_BHWC.to(next(encoder.parameters()).device))
    outputs = encoder.layer_outputs(images, min(layers, encoder.config.layers))
    vectors = [tokens[:, encoder.prefix :].mean(dim=1) for tokens in outputs]
    if encoder.has_class_token:
        vectors.append(outputs[-1][:, 0])
    return torch.cat(vectors, dim=1).float()


def fill(
    pieces: Pieces, missing: Sequence[Piece], subject: Subject, request: Request, advance: Callable[[int], None]
) -> None:
    """Encodes the `missing` pieces of what is requested and writes them; `advance` is told the images of each batch.

    Raises ValueError naming encoder and image for features that are no numbers, and as `Store` does for a damaged image.
    """
    size = request.encoding.batch_size
    cuts = [
        [slice(row, min(row + size, piece.stop)) for row in range(piece.start, piece.stop, size)] for piece in missing
    ]
    batches = chain.from_iterable(cuts)  # one plan over all pieces: images are decoded ahead across their ends
    with threads(request.encoding.cpus_per_worker), closing(_encoded(subject, request, batches)) as features:
        for piece, own in zip(missing, cuts, strict=True):
            with pieces.writing(piece) as writer:
                for rows in islice(features, len(own)):
                    writer.add(rows)
                    advance(len(rows))


def _encoded(
    subject: Subject, request: Request, batches: Iterable[slice]
) -> Generator[NDArray[np.float32], None, None]:
    """Pooled features [B, W] of each batch of the rows in use."""
    store, view = request.part.store, request.view
    plan = (request.part.rows[batch] for batch in batches)
    for rows, pixels in threaded(plan, lambda rows: lambda i: view(decoding.pixels(store, int(rows[i]))), DECODERS):
        features = encode(subject.encoder, pixels, request.layers)
        check_finite(features, subject, store, rows)
        yield features.cpu().numpy()


@contextmanager
def threads(count: int) -> Iterator[None]:
    """torch computes on `count` threads inside. On small matrices sums are cut by threads, so their number decides the last bits."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def check_finite(features_BW: Tensor, subject: Subject, store: Store, rows: NDArray[np.int64]) -> None:
    """Raises ValueError naming the encoder's file and the first image whose features are no numbers."""
    wrong = ~features_BW.isfinite().all(dim=1)
    if wrong.any():
        paths = store.column("path")[rows[wrong.cpu().numpy()]]
        raise ValueError(
            f"encoder {str(subject.path)!r} ({subject.kind}) gives features that are not finite for {len(paths)} of "
            f"{len(rows)} images, {str(paths[0])!r} first; it has diverged: pretrain with a lower rate, or take an earlier state"
        )
