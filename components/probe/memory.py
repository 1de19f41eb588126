"""Arrays as tensors, without a copy; by itself, so that nearest neighbours need not load what encodes."""

import warnings

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


def tensor(values: NDArray[np.float32]) -> Tensor:
    """A tensor on the array's own memory, kept features among them: nobody here writes to it, which torch warns of."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The given NumPy array is not writable")
        return torch.from_numpy(values)
