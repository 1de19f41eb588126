"""Which patches of an image a predicted one looks like: the paper's Figure 6, and the numbers behind it."""

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from components import progress
from components.analysis.positions import cosine
from components.analysis.trained import Trained
from components.images.transforms import normalise
from components.mim import masks, objectives
from components.mim.blocks import Masks
from components.mim.encoder import gather
from components.mim.grid import Size
from components.mim.model import MaskedImageModel
from components.mim.positions import draw_noise

BATCH = 16


class HeatMaps(NamedTuple):
    """One predicted patch of an image: softmax over all N patches of the cosine similarity with their true targets."""

    context_K: Tensor
    """the patches that the encoder was given"""
    block_T: Tensor
    """the target block of the patch"""
    patch: int
    target_N: Tensor
    """of the true target at that patch, in place of a prediction"""
    still_N: Tensor
    """of the prediction without noise"""
    drawn_N: Tensor | None
    """of the prediction with the first draw of noise; None where the run has none"""
    mean_N: Tensor | None
    """mean of the heat maps of all draws"""


class Predictions(NamedTuple):
    """The shown images' heat maps, and means over all patches of all target blocks of all images."""

    shown: list[HeatMaps]
    locality: float
    locality_still: float
    locality_target: float
    cosine: float


class _Batch(NamedTuple):
    """What one batch adds: heat maps [B, T, N] of every target block, and sums over all of its patches."""

    chosen: Masks
    heats: dict[str, list[Tensor]]
    cosine: Tensor


@torch.inference_mode()
def predictions(
    trained: Trained, pixels_BHWC: Tensor, shown: list[int], seed: int, draws: int, temperature: float
) -> Predictions:
    """Predicts the target blocks that the run's own sampler draws for uint8 images [B, S, S, 3]; `shown` are places among them.

    The context comes from the exported encoder, as do the targets: the target encoder, whose weights follow the trained one's.
    Raises ValueError when predictions or targets are no numbers.
    """
    chosen = masks.sample(seed, 0, torch.arange(len(pixels_BHWC)), trained.grid, trained.masks)
    maps: dict[int, HeatMaps] = {}
    sums: dict[str, float] = {"cosine": 0.0}
    patches = sum(block.numel() for block in chosen.targets)
    meter = progress.Meter("analysis: predictions", len(pixels_BHWC), "images")
    for start in range(0, len(pixels_BHWC), BATCH):
        places = torch.arange(start, min(start + BATCH, len(pixels_BHWC)))
        batch = _predict(trained, pixels_BHWC[places], _rows(chosen, places), places, seed, draws, temperature)
        for name, heats in batch.heats.items():
            pairs = zip(heats, batch.chosen.targets, strict=True)
            sums[name] = sums.get(name, 0.0) + sum(locality(*pair, trained.grid).sum().item() for pair in pairs)
        sums["cosine"] += batch.cosine.item()
        maps |= {place: _shown(batch, place - start, trained.grid) for place in shown if place in places}
        meter.advance(len(places))
    means = {name: total / patches for name, total in sums.items()}
    return Predictions(
        [maps[place] for place in shown],
        100 * means.get("mean", means["still"]),
        100 * means["still"],
        100 * means["target"],
        means["cosine"],
    )


def _predict(
    trained: Trained, pixels_BHWC: Tensor, chosen: Masks, places: Tensor, seed: int, draws: int, temperature: float
) -> _Batch:
    images, chosen = normalise(pixels_BHWC.to(trained.device)), chosen.to(trained.device)
    encoder, predictor = trained.encoder, trained.predictor
    teacher = None if trained.objective.name == "mae" else encoder
    truth_BND = objectives.targets(trained.objective, teacher, images, encoder.config.patch_size).full_BND
    encoded, model = encoder.tokens(images, chosen.context_BK), MaskedImageModel(encoder, predictor)

    def predicted(draw: int | None) -> list[Tensor]:
        widths = predictor.config.encoder_width, predictor.config.width
        noise = None if draw is None else draw_noise(trained.stop, seed, draw, places, chosen, *widths)
        return [predictor.head(states) for states in model.states_from(encoded, trained.grid, chosen, noise)]

    def heats(guesses: list[Tensor]) -> list[Tensor]:
        return [heat(guess, truth_BND, temperature) for guess in guesses]

    still, wanted = predicted(None), [gather(truth_BND, block) for block in chosen.targets]
    for what, values in (("targets", [truth_BND]), ("predictions", still)):
        if not all(value.isfinite().all() for value in values):
            raise ValueError(
                f"{what} hold values that are no finite numbers, so the weights do: look at the curves of stage pretrain"
            )
    found = {"target": heats(wanted), "still": heats(still)}
    if trained.noisy:
        found["drawn"] = found["mean"] = heats(predicted(0))
        for draw in range(1, draws):
            found["mean"] = [total + more for total, more in zip(found["mean"], heats(predicted(draw)), strict=True)]
        found["mean"] = [total / draws for total in found["mean"]]
    alike = [functional.cosine_similarity(guess, true, dim=-1).sum() for guess, true in zip(still, wanted, strict=True)]
    return _Batch(chosen, found, torch.stack(alike).sum())


def heat(predicted_BTD: Tensor, truth_BND: Tensor, temperature: float) -> Tensor:
    """Softmax over the N patches of an image of their cosine similarity with each predicted one: [B, T, N]."""
    return (cosine(predicted_BTD.float(), truth_BND.float()) / temperature).softmax(dim=-1)


def locality(heat_BTN: Tensor, patches_BT: Tensor, grid: Size) -> Tensor:
    """The share of each heat map that lies within one patch of the predicted one, in any direction: [B, T]."""
    every_N, patches_BT1 = torch.arange(grid.h * grid.w, device=heat_BTN.device), patches_BT.unsqueeze(-1)
    down, right = every_N // grid.w - patches_BT1 // grid.w, every_N % grid.w - patches_BT1 % grid.w
    near_BTN = (down.abs() <= 1) & (right.abs() <= 1)
    return (heat_BTN * near_BTN).sum(dim=-1)


def middle(block_T: Tensor, grid: Size) -> int:
    """The place in `block_T` of the patch nearest to the block's centre, the first of equals."""
    places = torch.stack([block_T // grid.w, block_T % grid.w], dim=1).double()
    return int((places - places.mean(dim=0)).norm(dim=1).argmin())


def _rows(chosen: Masks, places: Tensor) -> Masks:
    return Masks(chosen.context_BK[places], [block[places] for block in chosen.targets])


def _shown(batch: _Batch, image: int, grid: Size) -> HeatMaps:
    """The heat maps of the middle of the image's first target block."""
    block_T = batch.chosen.targets[0][image].cpu()
    place = middle(block_T, grid)
    maps = {name: heats[0][image, place].cpu() for name, heats in batch.heats.items()}
    return HeatMaps(
        batch.chosen.context_BK[image].cpu(),
        block_T,
        int(block_T[place]),
        maps["target"],
        maps["still"],
        maps.get("drawn"),
        maps.get("mean"),
    )
