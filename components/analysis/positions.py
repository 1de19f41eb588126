"""How much a noisy position still looks like itself: the paper's Figure 5, and the numbers behind it."""

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from components.analysis.trained import Trained
from components.mim import keys
from components.mim.grid import Size
from components.mim.predictor import Predictor

SHOWN_DRAWS = 2


class Positions(NamedTuple):
    """Cosine similarity of a query's position embedding (row) with every deterministic one (column), on an h×w grid.

    The embedding is ψ, or ψ + A·n with noise; what marks masked tokens (m̃ or b) is the same at every position and left out.
    """

    still_NN: Tensor
    """without noise"""
    mean_NN: Tensor
    """mean over the draws; `still_NN` where there is no noise"""
    spread_NN: Tensor
    """standard deviation over the draws"""
    drawn_SNN: Tensor
    """the first `SHOWN_DRAWS` draws; none where there is no noise"""
    blur: float
    """see `blur`"""

    @property
    def own(self) -> float:
        """Mean similarity of a position with itself; 1 without noise."""
        return self.mean_NN.diagonal().mean().item()


@torch.inference_mode()
def positions(trained: Trained, seed: int, draws: int) -> Positions:
    """Every position of the run's grid as a query, each with `draws` draws of the noise of its own."""
    predictor, std = trained.predictor, trained.stop.noise_std
    table_NP = predictor.position_table(trained.grid).float()
    still = cosine(table_NP, table_NP)
    if not trained.noisy:
        return Positions(still, still, torch.zeros_like(still), still.new_empty(0, *still.shape), 0.0)
    means, spreads, drawn = [], [], []
    for query, position_P in enumerate(table_NP):
        similarity_RN = cosine(position_P + stray(predictor, std, seed, query, draws), table_NP)
        means.append(similarity_RN.mean(dim=0))
        spreads.append(similarity_RN.std(dim=0))
        drawn.append(similarity_RN[:SHOWN_DRAWS])
    blurred = std * blur(predictor, table_NP, trained.grid)
    return Positions(still, torch.stack(means), torch.stack(spreads), torch.stack(drawn, dim=1), blurred)


def blur(predictor: Predictor, table_NP: Tensor, grid: Size) -> float:
    """How many patches noise of standard deviation 1 moves a position towards a neighbour, standard deviation, mean over all steps.

    A step to the right or down is d = ψ' − ψ, noise moves along it by A·n·d/|d|² steps: its standard deviation is ‖Aᵀd‖/|d|².
    """
    table_hwP = table_NP.view(grid.h, grid.w, -1)
    steps_EP = torch.cat([table_hwP.diff(dim=axis).flatten(0, 1) for axis in (0, 1)])
    transposed = predictor.stray(torch.eye(noise_width(predictor), device=table_NP.device))
    moved_E = (steps_EP @ transposed.float().T).norm(dim=1) / steps_EP.square().sum(dim=1)
    return float(moved_E.mean())


def noise_width(predictor: Predictor) -> int:
    """The width of n: D, which A projects to P, or P where the covariance is fixed."""
    return predictor.config.width if predictor.config.covariance == "fixed" else predictor.config.encoder_width


def stray(predictor: Predictor, noise_std: float, seed: int, query: int, draws: int) -> Tensor:
    """How far `draws` draws of the noise move the token at `query`: [R, P]."""
    device = predictor.embed.weight.device
    noise = keys.normal(keys.key(seed, "analysis position", query), torch.arange(draws), noise_width(predictor), device)
    return predictor.stray(noise.mul_(noise_std))


def cosine(one_MP: Tensor, other_NP: Tensor) -> Tensor:
    """Cosine similarity of every row of one with every row of the other: [..., M, N]."""
    return functional.normalize(one_MP, dim=-1) @ functional.normalize(other_NP, dim=-1).transpose(-1, -2)


def distances(grid: Size, query: int) -> Tensor:
    """Euclidean distance of every patch of the grid from one of them, in patches: [N]."""
    rows, columns = torch.meshgrid(torch.arange(grid.h), torch.arange(grid.w), indexing="ij")
    down, right = divmod(query, grid.w)
    return torch.hypot((rows - down).float(), (columns - right).float()).flatten()


def by_distance(grid: Size, similarity_NN: Tensor) -> tuple[list[int], Tensor]:
    """Mean similarity of all pairs of positions a whole number of patches apart (rounded): those numbers, and the means."""
    apart_NN = torch.stack([distances(grid, query) for query in range(grid.h * grid.w)]).round().long()
    counts = torch.bincount(apart_NN.flatten())
    sums = torch.bincount(apart_NN.flatten(), similarity_NN.cpu().double().flatten())
    return list(range(len(counts))), sums / counts
