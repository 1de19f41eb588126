"""The figures of one run, and the numbers behind them."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from matplotlib.figure import Figure
from torch import Tensor

from components import progress, tracking
from components.analysis import curves, maps
from components.analysis.contract import AnalysisInputs, AnalysisMetrics, AnalysisOutputs, AnalysisParams
from components.analysis.patches import components, features
from components.analysis.positions import positions
from components.analysis.predictions import predictions
from components.analysis.trained import load, read_eigenvalues, read_history
from components.features import pick
from components.images import decoding
from components.images.store import Store
from components.images.transforms import resize_center_crop
from components.mim.weights import untrained_encoder
from components.probe.dataset import spread
from components.stage import atomic


def run(params: AnalysisParams, inputs: AnalysisInputs, outputs: AnalysisOutputs) -> AnalysisMetrics:
    """Measures and draws. Raises ValueError for files that do not belong together and for a dataset without pictures."""
    trained = load(inputs.encoder, inputs.predictor, pick(params.device))
    history, eigenvalues = read_history(trained, inputs.history), read_eigenvalues(inputs.eigenvalues)
    pixels = pictures(params, inputs.dataset, trained.encoder.config.image_size)
    shown = spread(len(pixels), params.shown_images).tolist()

    places = positions(trained, params.seed, params.draws)
    progress.show(f"analysis: noise moves a position by {places.blur:.2f} patches, standard deviation")
    found = predictions(trained, pixels, shown, params.seed, params.draws, params.temperature)
    learned = components(features(trained.encoder, pixels))
    first = components(features(untrained_encoder(inputs.encoder).to(trained.device), pixels))
    views = list(pixels[shown].numpy())
    drawn = {
        outputs.position_similarity: maps.position_similarity(trained, places, params.draws),
        outputs.prediction_heatmaps: maps.prediction_heatmaps(trained, views, found, params.draws),
        outputs.norms: curves.norms(trained, history),
        outputs.spectrum: curves.spectrum(trained, eigenvalues),
        outputs.patch_pca: maps.patch_pca(trained, views, shown, learned, first),
    }
    _write(drawn)
    return AnalysisMetrics(
        position_similarity=places.own,
        position_blur=places.blur,
        prediction_locality=found.locality,
        prediction_locality_noiseless=found.locality_still,
        target_locality=found.locality_target,
        prediction_cosine=found.cosine,
        A_norm_l1=trained.predictor.embed.weight.float().abs().mean().item(),
        mask_token_norm_l1=trained.mark().float().abs().mean().item(),
        pca_explained=learned.explained,
        pca_explained_untrained=first.explained,
    )


def pictures(params: AnalysisParams, folder: Path, size: int) -> Tensor:
    """The central squares of pictures spread over the split, uint8 [B, size, size, 3].

    Raises ValueError for another dataset than the params name, a split that it lacks or one without pictures.
    """
    store = Store(folder, params.split)
    if store.card["name"] != params.dataset:
        raise ValueError(
            f"{str(folder)!r} holds dataset {store.card['name']!r} but dataset is {params.dataset!r}; make the two agree"
        )
    if not len(store):
        raise ValueError(
            f"split {params.split!r} of dataset {params.dataset!r} has no pictures; name another one in params/analysis.yaml: "
            f"{', '.join(name for name, split in store.card['splits'].items() if split['count']) or 'no split has any'}"
        )
    rows = spread(len(store), params.images)
    return torch.from_numpy(
        np.stack([resize_center_crop(decoding.pixels(store, int(row)), size, size) for row in rows])
    )


def _write(drawn: Mapping[Path, Figure]) -> None:
    for path, figure in drawn.items():
        with atomic(path) as temporary:
            figure.savefig(temporary, format="png")
        tracking.log_figure(path)
