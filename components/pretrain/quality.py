"""How good the features are while they are learned: k-NN and a small linear probe of the target encoder on labelled images.

Labels come in here and nowhere else in pretraining, and nothing that is measured goes back into it.
"""

import time
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from components.images import decoding
from components.images.loading import threaded
from components.images.transforms import View, normalise
from components.mim.encoder import VisionEncoder
from components.pretrain.batches import Batches
from components.pretrain.contract import PretrainParams
from components.pretrain.held_out import HeldOut, held_out
from components.pretrain.parallel import Alone
from components.probe.neighbours import nearest

Row = dict[str, float]

STRENGTH = 0.001
"""The probe's penalty: this times the number of images, in the units of standardised features."""


class Quality:
    """Measures an encoder now and then. The workers share the images evenly; what comes out is the same on each of them.

    `parallel` gathers what the workers encode, `every` is in steps, of which the run has `total`.
    """

    def __init__(self, params: PretrainParams, held: HeldOut, parallel: Alone, every: int, total: int) -> None:
        self._params, self._held, self._parallel = params, held, parallel
        self._every, self._total = every, total
        self._pixels: Tensor | None = None

    @classmethod
    def of(cls, params: PretrainParams, folder: Path, parallel: Alone, batches: Batches) -> "Quality | None":
        """What the params ask for on the dataset in `folder`; None where that is nothing. Raises ValueError as `held_out` does."""
        if not params.quality.every_epochs or not batches.total:
            return None
        every = max(1, round(params.quality.every_epochs * batches.steps_per_epoch))
        return cls(params, held_out(params.quality, folder), parallel, every, batches.total)

    def due(self, step: int) -> bool:
        """Whether to measure after `step` updates: after the first one for comparison, then at regular steps, and after the last."""
        return step in (1, self._total) or step % self._every == 0

    def measure(self, encoder: VisionEncoder) -> Row:
        """Percent of the test images that k-NN and the probe classify right, what guessing hardly comes above, and the seconds it took.

        Every worker must call it. Raises ValueError when features are no numbers.
        """
        start = time.monotonic()
        features, held = self._features(encoder), self._held
        if not features.isfinite().all():
            raise ValueError(
                f"features of labelled images of {self._params.quality.dataset!r} are no numbers; the encoder has diverged: lower "
                f"optimisation.lr and start again, at step 0 or, with `python -m components.resume`, from this run's newest checkpoint"
            )
        train, test = features[: len(held.labels)], features[len(held.labels) :]
        rows = (train.cpu().numpy(), held.labels, test.cpu().numpy())
        neighbours = nearest(*rows, self._params.quality.knn_k, held.classes, self._parallel.device)
        return {
            "quality_knn_top1": float(100 * np.mean(neighbours == held.judged)),
            "quality_probe_top1": float(100 * np.mean(ridge(train, held.labels, test) == held.judged)),
            "quality_guessing_top1": held.guessing,
            "quality_seconds": time.monotonic() - start,
        }

    @torch.no_grad()  # inference_mode would mark what FSDP keeps between its calls
    def _features(self, encoder: VisionEncoder) -> Tensor:
        """Average-pooled features of the train and the test images [n + m, D], as `linear_probe` calls `last`, of all workers."""
        if self._pixels is None:
            self._pixels = self._decoded()
        # Whole batches of training's own size: a compiled encoder need not be compiled again, and memory was enough for them. Every
        # worker calls the encoder as often, which FSDP needs.
        size, count = self._batch(), self._share()
        places = torch.arange(-(-count // size) * size).reshape(-1, size) % len(self._pixels)
        vectors = [self._encoded(encoder, self._pixels[batch]) for batch in places]
        mine = torch.cat(vectors)[:count].contiguous()
        shared_WBD = self._parallel.gather(mine).reshape(self._parallel.world, count, -1)
        return shared_WBD.transpose(0, 1).reshape(len(shared_WBD) * count, -1)[: self._images()]

    def _encoded(self, encoder: VisionEncoder, pixels_BHWC: Tensor) -> Tensor:
        images = normalise(pixels_BHWC.to(self._parallel.device))
        with self._precision():
            tokens_BND: Tensor = encoder(images)
        return tokens_BND.float().mean(dim=1)

    def _precision(self) -> AbstractContextManager[Any]:
        bf16 = self._params.scale.precision == "bf16"
        return torch.autocast(self._parallel.device.type, torch.bfloat16) if bf16 else nullcontext()

    def _share(self) -> int:
        """Images that each worker encodes; some encode one of them twice."""
        return -(-self._images() // self._parallel.world)

    def _images(self) -> int:
        return len(self._held.labels) + len(self._held.judged)

    def _batch(self) -> int:
        scale = self._params.scale
        share = self._params.optimisation.global_batch_size // self._parallel.world
        return min(share, scale.images_at_once or share)

    def _decoded(self) -> Tensor:
        """uint8 [B, H, W, 3] of this worker's images, every `world`-th; of the first one where there are fewer than workers."""
        parts = [(part.store, int(row)) for part in (self._held.train, self._held.test) for row in part.rows]
        mine = parts[self._parallel.rank :: self._parallel.world] or parts[:1]
        size = self._params.encoder.image_size
        view = View(size, size, self._params.quality.resize_short_side, mirror=False)
        plan = np.array_split(np.arange(len(mine)), -(-len(mine) // 64))
        read = threaded(
            plan,
            lambda places: lambda i: view(decoding.pixels(*mine[places[i]])),
            self._params.scale.cpus_per_worker,
        )
        return torch.cat([pixels for _, pixels in read])


def ridge(train_ND: Tensor, labels: np.ndarray, test_MD: Tensor) -> np.ndarray:
    """Classes [m] by ridge regression of one-hot labels on standardised features, solved in closed form in float64.

    No step size, no order and no draw: two encoders differ by their features alone.
    """
    train, test = train_ND.double(), test_MD.double()
    mean, std = train.mean(dim=0), train.std(dim=0, correction=0)
    std = torch.where(std > 0, std, 1.0)  # a feature without spread says nothing, and divides by nothing
    train, test = (train - mean) / std, (test - mean) / std
    targets = functional.one_hot(torch.from_numpy(labels).to(train.device)).double()
    gram = train.T @ train + STRENGTH * len(train) * torch.eye(train.shape[1], dtype=train.dtype, device=train.device)
    weights = torch.linalg.solve(gram, train.T @ (targets - targets.mean(dim=0)))
    return np.asarray((test @ weights + targets.mean(dim=0)).argmax(dim=1).cpu())
