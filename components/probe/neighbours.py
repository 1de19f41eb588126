"""Nearest neighbours on frozen features: a score without any training."""

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from components.probe.extraction import tensor

TEMPERATURE = 0.07
ROWS_AT_ONCE, BANK_AT_ONCE = 512, 65_536
CPU = torch.device("cpu")


def check_k(k: int, rows: int) -> None:
    """Raises ValueError when there are fewer than `k` training rows to vote."""
    if k > rows:
        raise ValueError(f"knn_k is {k} but there are {rows} training images; lower knn_k or raise train_limit")


def nearest(
    train: np.ndarray, labels: np.ndarray, test: np.ndarray, k: int, classes: int, device: torch.device = CPU
) -> np.ndarray:
    """DINO's k-NN: the k most similar (cosine) rows of `train` [n,D] vote exp(similarity / 0.07) for their label.

    Of rows as similar as the k-th the first ones vote, and the lowest class wins a tie. Returns the winner for each row of
    `test` [m,D] as int64 [m]. Raises ValueError when k exceeds n.
    """
    check_k(k, len(train))
    owners, winners = torch.from_numpy(labels).long().to(device), []
    for start in range(0, len(test), ROWS_AT_ONCE):
        rows = _unit(test[start : start + ROWS_AT_ONCE], device)
        similarity, index = _most_similar(rows, train, k, device)
        votes = torch.zeros(len(rows), classes, device=device)
        votes.scatter_add_(1, owners[index], (similarity / TEMPERATURE).exp())
        winners.append(votes.argmax(1).cpu())
    return torch.cat(winners).numpy() if winners else np.empty(0, np.int64)


def _unit(rows: np.ndarray, device: torch.device) -> Tensor:
    return functional.normalize(tensor(rows).to(device), dim=1)


def _most_similar(rows_BD: Tensor, train: np.ndarray, k: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Similarities and indices [B, k] of the training rows most similar to each row, a part of `train` at a time."""
    best, index = (
        torch.empty(len(rows_BD), 0, device=device),
        torch.empty(len(rows_BD), 0, dtype=torch.long, device=device),
    )
    for start in range(0, len(train), BANK_AT_ONCE):
        similarity = rows_BD @ _unit(train[start : start + BANK_AT_ONCE], device).T
        values, places = _first_top(similarity, min(k, similarity.shape[1]))
        best, index = torch.cat([best, values], dim=1), torch.cat([index, places + start], dim=1)
        best, order = _first_top(
            best, min(k, best.shape[1])
        )  # candidates stand in the order of `train` where they are equal
        index = index.gather(1, order)
    return best, index


def _first_top(values_BN: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """topk that takes the first ones of equal values, in falling order and the first ones first; topk itself takes any."""
    values, places = values_BN.topk(k, dim=1)
    tied = (values_BN >= values[:, -1:]).sum(dim=1) > k
    if tied.any():  # rare: a whole sort is slow
        places[tied] = values_BN[tied].sort(dim=1, descending=True, stable=True).indices[:, :k]
    places = places.sort(dim=1).values
    values, order = values_BN.gather(1, places).sort(dim=1, descending=True, stable=True)
    return values, places.gather(1, order)
