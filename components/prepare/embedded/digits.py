"""*digits*: scikit-learn's 1,797 scans of handwritten digits (UCI's test set, 8×8 pixels) as an image folder."""

from pathlib import Path
from typing import Final

import numpy as np
from PIL import Image
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from components.prepare.embedded import vacant

SIDE: Final = 32
_TEST: Final = 500


def generate(folder: Path, *, seed: int) -> None:
    """Writes `train/<digit>/` (1,297 images) and `test/<digit>/` (500) into the new or empty `folder`.

    Both splits keep the classes' shares; `seed` decides which image falls where, and a file's number is its place in
    scikit-learn's array. RGB PNGs of 32×32 pixels, enlarged bicubically, so that a patch can show part of a stroke.
    Raises ValueError for a folder in use.
    """
    vacant(folder)
    scans, labels = load_digits(return_X_y=True)
    grey = np.round(scans.reshape(-1, 8, 8) * (255 / 16)).astype(np.uint8)
    train, test = train_test_split(np.arange(len(labels)), test_size=_TEST, stratify=labels, random_state=seed)
    for split, members in (("train", train), ("test", test)):
        for index in np.sort(members):
            path = folder / split / str(labels[index]) / f"{index:04d}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(grey[index]).resize((SIDE, SIDE), Image.Resampling.BICUBIC).convert("RGB").save(path)
