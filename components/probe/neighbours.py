"""Nearest neighbours on frozen features: a score without any training."""

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from components.probe.memory import tensor

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
    blocks = [_unit(test[start : start + ROWS_AT_ONCE], device) for start in range(0, len(test), ROWS_AT_ONCE)]
    for similarity, index in _most_similar(blocks, train, k, device):
        votes = torch.zeros(len(similarity), classes, device=device)
        votes.scatter_add_(1, owners[index], (similarity / TEMPERATURE).exp())
        winners.append(votes.argmax(1).cpu())
    return torch.cat(winners).numpy() if winners else np.empty(0, np.int64)


def _unit(rows: np.ndarray, device: torch.device) -> Tensor:
    return functional.normalize(tensor(rows).to(device), dim=1)


def _most_similar(blocks: list[Tensor], train: np.ndarray, k: int, device: torch.device) -> list[tuple[Tensor, Tensor]]:
    """Similarities and indices [B, k] of the training rows most similar to each row of each block [B, D].

    `train` may be a large file: each part of it is read once, for all blocks.
    """
    found: list[tuple[Tensor, Tensor]] = []
    for start in range(0, len(train), BANK_AT_ONCE):
        bank = _unit(train[start : start + BANK_AT_ONCE], device)
        parts = [_first_top(rows @ bank.T, min(k, len(bank))) for rows in blocks]
        parts = [(values, places + start) for values, places in parts]
        found = [_merged(*pair, k) for pair in zip(found, parts, strict=True)] if found else parts
    return found


def _merged(before: tuple[Tensor, Tensor], after: tuple[Tensor, Tensor], k: int) -> tuple[Tensor, Tensor]:
    values, index = (torch.cat(pair, dim=1) for pair in zip(before, after, strict=True))
    best, order = _first_top(values, min(k, values.shape[1]))  # equal ones stand in the order of `train`
    return best, index.gather(1, order)


def _first_top(values_BN: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """topk that takes the first ones of equal values, in falling order and the first ones first; topk itself takes any."""
    values, places = values_BN.topk(k, dim=1)
    tied = (values_BN >= values[:, -1:]).sum(dim=1) > k
    if tied.any():  # rare: a whole sort is slow
        places[tied] = values_BN[tied].sort(dim=1, descending=True, stable=True).indices[:, :k]
    places = places.sort(dim=1).values
    values, order = values_BN.gather(1, places).sort(dim=1, descending=True, stable=True)
    return values, places.gather(1, order)
