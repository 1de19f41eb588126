"""The labelled images that quality is measured on: as many of each class, the same ones in every run."""

from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from components.pretrain.quality_params import QualityParams
from components.probe.dataset import Part, open_part


class HeldOut(NamedTuple):
    """Images to learn from with their classes [n], and images to classify with theirs [m]."""

    train: Part
    labels: NDArray[np.int64]
    test: Part
    judged: NDArray[np.int64]

    @property
    def classes(self) -> int:
        """Classes of the dataset."""
        return len(self.train.store.card["classes"])

    @property
    def guessing(self) -> float:
        """Percent right that guessing hardly comes above: the share of the commonest class and three standard errors of it."""
        share = np.bincount(self.judged).max() / len(self.judged)
        return float(100 * min(share + 3 * np.sqrt(share * (1 - share) / len(self.judged)), 1))


def held_out(params: QualityParams, folder: Path) -> HeldOut:
    """The images of the dataset in `folder` that `params` ask for, none of them decoded yet.

    Raises ValueError when it is another dataset, none of images, without labels or one of the splits, or has too few images.
    """
    train = _drawn(params, folder, "train")
    test = _drawn(params, folder, "test")
    labels, judged = train.labels(), test.labels()
    if len(labels) < params.knn_k:
        raise ValueError(
            f"quality.knn_k is {params.knn_k}, but split {params.train_split!r} of {params.dataset!r} has {len(labels)} images; lower it "
            f"to at most {len(labels)}"
        )
    if missing := sorted({*judged.tolist()} - {*labels.tolist()}):
        names = [train.store.card["classes"][label] for label in missing]
        raise ValueError(
            f"quality: {len(missing)} classes of the {len(judged)} images of split {params.test_split!r} of {params.dataset!r} are not "
            f"among the {len(labels)} of {params.train_split!r}, {names[0]!r} first; nothing can learn them: raise "
            f"quality.train_images or name other splits"
        )
    return HeldOut(train, labels, test, judged)


def _drawn(params: QualityParams, folder: Path, which: str) -> Part:
    """The images to use of one split; `which` is train or test, as the fields are called."""
    split, count = getattr(params, f"{which}_split"), getattr(params, f"{which}_images")
    part = open_part(folder, params.dataset, "images", split, 0)
    labels = part.labels()
    if (labels < 0).any() or not len(labels):
        raise ValueError(
            f"quality.dataset is {params.dataset!r}, of which {int((labels < 0).sum())} of {len(labels)} images in split {split!r} have "
            f"no label; quality is measured on labelled images: name another dataset or split, or set quality.every_epochs to 0"
        )
    return Part(part.store, balanced(labels, part.column("holdout"), count))


def balanced(labels: NDArray[np.int64], places: NDArray[np.float64], count: int) -> NDArray[np.int64]:
    """Rows of at most `count` images, ascending: of each class as many, but for one, as of any other that has them.

    Within a class those with the lowest `places` [n] come first, numbers drawn once for each image.
    """
    order = np.lexsort((places, labels))
    _, starts, sizes = np.unique(labels[order], return_index=True, return_counts=True)
    turn = np.arange(len(labels)) - np.repeat(starts, sizes)  # an image's place among its class
    return np.sort(order[np.lexsort((places[order], turn))[:count]])
