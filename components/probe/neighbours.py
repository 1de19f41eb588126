"""Nearest neighbours on frozen features: a score without any training."""

import numpy as np
import torch
from torch.nn import functional

TEMPERATURE = 0.07
ROWS_AT_ONCE = 512


def check_k(k: int, rows: int) -> None:
    """Raises ValueError when there are fewer than `k` training rows to vote."""
    if k > rows:
        raise ValueError(f"knn_k is {k} but there are {rows} training images; lower knn_k or raise train_limit")


def nearest(train: np.ndarray, labels: np.ndarray, test: np.ndarray, k: int, classes: int) -> np.ndarray:
    """DINO's k-NN: the k most similar (cosine) rows of `train` [n,D] vote exp(similarity / 0.07) for their label.

    Returns the winner for each row of `test` [m,D] as int64 [m]. Raises ValueError when k exceeds n.
    """
    check_k(k, len(train))
    bank, owners = functional.normalize(torch.from_numpy(train), dim=1), torch.from_numpy(labels).long()
    winners = []
    for rows in torch.split(torch.from_numpy(test), ROWS_AT_ONCE):
        similarity, index = (functional.normalize(rows, dim=1) @ bank.T).topk(k, dim=1)
        votes = torch.zeros(len(rows), classes).scatter_add_(1, owners[index], (similarity / TEMPERATURE).exp())
        winners.append(votes.argmax(1))
    return torch.cat(winners).numpy()
