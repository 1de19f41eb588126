"""Label propagation (Caron et al. 2021, DINO; after Jabri et al. 2020): pure tensor functions, no files, no randomness."""

from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

# Context tokens are compared in tiles of neighbours in all frames at once, each tile with the targets that any of it can reach:
# of the dense product at 30×52 tokens and radius 12 a third is left. Much smaller tiles make slow matrix products.
ROWS, COLUMNS = 3, 4


def propagate(
    features_hwD: Iterable[Tensor],
    first_labels_Khw: Tensor,
    *,
    radius: int,
    top_k: int,
    temperature: float,
    context_frames: int,
) -> Iterator[Tensor]:
    """Soft labels [K,h,w] of the second frame, the third, …, each made when asked for.

    Takes one token grid [h,w,D] per frame and holds the first and the last `context_frames`, whatever the video's length.
    Labels stay soft: what one frame predicts is what the next ones inherit.
    """
    frames = (functional.normalize(grid_hwD, dim=-1) for grid_hwD in features_hwD)
    context = Context(next(frames), first_labels_Khw.permute(1, 2, 0), context_frames, radius)
    for target_hwD in frames:
        labels_hwK = context.vote(target_hwD, top_k, temperature)
        context.add(target_hwD, labels_hwK)
        yield labels_hwK.permute(2, 0, 1)


class Context:
    """The first frame and the last few: their features, of unit length, and their soft labels."""

    def __init__(self, first_hwD: Tensor, labels_hwK: Tensor, recent: int, radius: int) -> None:
        """Holds the first frame and up to `recent` others. `radius` counts tokens in any direction (Chebyshev)."""
        self._h, self._w, _ = first_hwD.shape
        self._recent, self._added = recent, 0
        self._tiles = tiles(self._h, self._w, radius, first_hwD.device)
        self._keys = [
            part.unsqueeze(2).contiguous() for part in torch.split(first_hwD, COLUMNS, dim=1)
        ]  # each [h,c,F,D]
        self._labels_FNK = labels_hwK.flatten(0, 1)[None]
        self._affinity = first_hwD.new_empty(0)
        # Best affinity over the frames, of a context token [h,w] to a target [h,w]; what is beyond the radius stays −inf.
        self._best_hwhw = first_hwD.new_full((self._h, self._w, self._h, self._w), -torch.inf)

    def add(self, grid_hwD: Tensor, labels_hwK: Tensor) -> None:
        """Takes a frame in, in place of the oldest but the first once there are `recent`."""
        if not self._recent:
            return
        slot, parts = 1 + self._added % self._recent, torch.split(grid_hwD, COLUMNS, dim=1)
        self._added += 1
        if slot == len(self._labels_FNK):
            self._keys = [torch.cat([keys, part[:, :, None]], 2) for keys, part in zip(self._keys, parts, strict=True)]
            self._labels_FNK = torch.cat([self._labels_FNK, labels_hwK.flatten(0, 1)[None]])
            return
        for keys_hcFD, part in zip(self._keys, parts, strict=True):
            keys_hcFD[:, :, slot] = part
        self._labels_FNK[slot] = labels_hwK.flatten(0, 1)

    def vote(self, target_hwD: Tensor, top_k: int, temperature: float) -> Tensor:
        """Labels [h,w,K] that the tokens of a frame take from the context.

        Each averages the labels of its `top_k` most similar tokens within the radius in all frames together, weighted by
        softmax(similarity / temperature). All that equal the last of them vote, too.
        """
        self._compare(target_hwD)
        frames, targets = len(self._labels_FNK), self._h * self._w
        best_kN, token_kN = strongest(
            self._best_hwhw.flatten(2), top_k + 1
        )  # one more tells whether the last has an equal
        places_kFN = self._tiles.places(token_kN, frames, slice(None))
        near_kFN = self._affinity.take(places_kFN).masked_fill_(best_kN.isinf()[:, None], -torch.inf)
        value_kN, place_kN = near_kFN.flatten(0, 1).topk(min(top_k + 1, len(token_kN) * frames), dim=0)
        weight_kN = torch.softmax(value_kN[:top_k] / temperature, dim=0)
        frame, token = place_kN[:top_k] % frames, token_kN.gather(0, place_kN[:top_k] // frames)
        voted_kNK = self._labels_FNK.flatten(0, 1)[frame * targets + token]
        labels_NK = (weight_kN[..., None] * voted_kNK).sum(0)
        if len(value_kN) > top_k:
            least_N = value_kN[top_k]
            tied_N = (least_N == value_kN[top_k - 1]) & least_N.isfinite()
            # A still scene ties the frames of few tokens, which are at hand; a flat one many tokens, which all must be searched.
            beyond_N = tied_N & (best_kN[top_k] == least_N) if len(best_kN) > top_k else torch.zeros_like(tied_N)
            every_N1 = torch.arange(targets, device=tied_N.device)[:, None]
            within = (tied_N & ~beyond_N).nonzero()[:, 0]
            parts = [(some, every_N1.expand(-1, len(some))) for some in torch.split(beyond_N.nonzero()[:, 0], 64)]
            for some, token_kS in [*parts, (within, token_kN[:, within])]:
                labels_NK[some] = self._all_equals(some, token_kS, least_N[some], temperature)
        return labels_NK.view(self._h, self._w, -1)

    def _all_equals(self, some_S: Tensor, token_kS: Tensor, least_S: Tensor, temperature: float) -> Tensor:
        """Labels [S,K] of the targets `some_S` from all of the given context tokens that are at least as similar as `least_S`."""
        frames, targets = len(self._labels_FNK), self._h * self._w
        affinity_kFS = self._affinity.take(self._tiles.places(token_kS, frames, some_S))
        far_kS = self._best_hwhw.view(targets, targets)[token_kS, some_S].isinf()
        affinity_kFS.masked_fill_(far_kS[:, None] | (affinity_kFS < least_S), -torch.inf)
        weight_MS = torch.softmax(affinity_kFS.flatten(0, 1) / temperature, dim=0)
        place_kFS = torch.arange(frames, device=some_S.device)[:, None] * targets + token_kS[:, None]
        return (weight_MS[..., None] * self._labels_FNK.flatten(0, 1)[place_kFS.flatten(0, 1)]).sum(0)

    def _compare(self, target_hwD: Tensor) -> None:
        """Fills `_affinity` tile after tile, and `_best_hwhw`."""
        tiles_, frames = self._tiles, len(self._labels_FNK)
        size = frames * tiles_.elements
        if len(self._affinity) != size:
            self._affinity = target_hwD.new_empty(size)
        start = 0
        for part, (columns, reached) in zip(self._keys, tiles_.columns, strict=True):
            queries_hcD = target_hwD[:, reached].contiguous()
            for rows, within in tiles_.rows:
                keys, queries = part[rows].flatten(0, 2), queries_hcD[within].flatten(0, 1)
                end = start + len(keys) * len(queries)
                affinity = torch.mm(keys, queries.T, out=self._affinity[start:end].view(len(keys), len(queries)))
                shape = rows.stop - rows.start, columns.stop - columns.start, frames, -1, reached.stop - reached.start
                best = affinity.view(shape).amax(2)
                best += tiles_.far_hh[rows, None, within, None]
                best += tiles_.far_ww[None, columns, None, reached]
                self._best_hwhw[rows, columns, within, reached] = best
                start = end


def strongest(values_GEN: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The `count` largest of the G·E values in each of N columns (all, when there are fewer) and their places in G·E: [k,N] each.

    They lie in the `count` groups with the largest maxima: one quick pass over everything, and a sort of little.
    """
    groups, size, _ = values_GEN.shape
    group_kN = values_GEN.amax(1).topk(min(count, groups), dim=0).indices
    inside_kEN = values_GEN.gather(0, group_kN[:, None].expand(-1, size, -1))
    value_kN, place_kN = inside_kEN.flatten(0, 1).topk(min(count, len(group_kN) * size), dim=0)
    return value_kN, group_kN.gather(0, place_kN // size) * size + place_kN % size


class Tiles(NamedTuple):
    """How context tokens are cut into tiles, which targets each may reach, and where an affinity lies in the flat buffer."""

    rows: list[tuple[slice, slice]]
    columns: list[tuple[slice, slice]]
    far_hh: Tensor
    far_ww: Tensor
    elements: int
    """Affinities of one frame."""
    table_N5: Tensor
    """Of a context token: its first affinity, the number of its targets, their first row, first column and columns."""
    targets_N2: Tensor
    """Row and column of a token."""

    def places(self, token_kN: Tensor, frames: int, targets: Tensor | slice) -> Tensor:
        """Where the affinities of context tokens to N targets (of all tokens) lie: [k,F,N]."""
        first, count, top, left, width = self.table_N5[token_kN].unbind(-1)
        row, column = self.targets_N2[targets].unbind(-1)
        start_kN = first * frames + (row - top) * width + column - left
        frame_F1 = torch.arange(frames, device=token_kN.device)[:, None]
        # Candidates beyond the radius may lie beyond their tile's targets, too; they are masked afterwards.
        return (start_kN[:, None] + frame_F1 * count[:, None]).clamp_(0, frames * self.elements - 1)


@lru_cache(maxsize=16)
@torch.inference_mode(False)
def tiles(h: int, w: int, radius: int, device: torch.device) -> Tiles:
    """The tiles of an h×w grid, made once."""
    rows, columns = _cut(h, ROWS, radius), _cut(w, COLUMNS, radius)
    table, elements = torch.zeros(h, w, 5, dtype=torch.int64), 0
    for own_columns, reached in columns:
        for own_rows, within in rows:
            width = reached.stop - reached.start
            count = (within.stop - within.start) * width
            tile = table[own_rows, own_columns]
            tokens = tile.shape[0] * tile.shape[1]
            tile[..., 0] = (elements + count * torch.arange(tokens)).view(tile.shape[:2])
            tile[..., 1:] = torch.tensor([count, within.start, reached.start, width])
            elements += tokens * count
    place = torch.cartesian_prod(torch.arange(h), torch.arange(w))
    far_hh, far_ww = (_far(size, radius).to(device) for size in (h, w))
    return Tiles(rows, columns, far_hh, far_ww, elements, table.flatten(0, 1).to(device), place.to(device))


def _cut(size: int, step: int, radius: int) -> list[tuple[slice, slice]]:
    """Runs of `step` places, each with the places that one of them can reach."""
    runs = [slice(start, min(start + step, size)) for start in range(0, size, step)]
    return [(run, slice(max(run.start - radius, 0), min(run.stop + radius, size))) for run in runs]


def _far(size: int, radius: int) -> Tensor:
    """[size,size]: 0 within the radius, −inf beyond; added before the top k, a far token can never be chosen."""
    place = torch.arange(size)
    return torch.zeros(size, size).masked_fill_((place[:, None] - place).abs() > radius, -torch.inf)
