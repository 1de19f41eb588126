"""What noise does to positions and predictions: `python benchmarks/analysis.py --noise FOLDER … --plain FOLDER … --dataset FOLDER`.

Each FOLDER is one run as stage `pretrain` left it under the names of its outputs (encoder, predictor, state), such as
work/benchmarks/small_scale/cifar10-*/seed-0/pretrain after `python benchmarks/small_scale.py`. The table holds the metrics of stage
`analysis`, mean and standard deviation over runs, once more with the trained encoder's context in place of the exported target
encoder's, and how much of ‖A‖² lies in the directions in which positions differ, beside a random A's.
"""

import argparse
import statistics
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor, nn

from components.analysis.contract import AnalysisParams
from components.analysis.positions import positions
from components.analysis.predictions import predictions
from components.analysis.run import pictures
from components.analysis.trained import Trained, load
from components.mim.weights import load_encoder
from components.stage import read_yaml

ROOT = Path(__file__).parents[1]


class TwoEncoders(nn.Module):
    """The trained encoder where only a context is visible, as in training; the target encoder elsewhere."""

    def __init__(self, trained: nn.Module, target: nn.Module) -> None:
        super().__init__()
        self.trained, self.target, self.config = trained, target, target.config

    def tokens(self, images_BCHW: Tensor, indices_BK: Tensor | None = None) -> Tensor:
        return (self.target if indices_BK is None else self.trained).tokens(images_BCHW, indices_BK)

    def forward(self, images_BCHW: Tensor) -> Tensor:
        return self.target(images_BCHW)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--noise", type=Path, nargs="+", required=True)
    parser.add_argument("--plain", type=Path, nargs="+", required=True)
    parser.add_argument("--dataset", type=Path, required=True)
    options = parser.parse_args()
    params = AnalysisParams(**read_yaml(ROOT / "params/presets/cifar10.yaml")["analysis"])
    columns = {
        name: [measure(params, path, options.dataset) for path in getattr(options, name)] for name in ("noise", "plain")
    }
    print(f"\n| {len(options.noise)} runs each | noise | no noise |\n|---|---:|---:|")
    for metric in columns["noise"][0]:
        print(f"| {metric} | " + " | ".join(spread([row[metric] for row in rows]) for rows in columns.values()) + " |")


def measure(params: AnalysisParams, folder: Path, dataset: Path) -> dict[str, float]:
    run = load(folder / "encoder", folder / "predictor", torch.device("cpu"))
    pixels = pictures(params, dataset, run.encoder.config.image_size)
    state, context = torch.load(folder / "state", weights_only=True)["model"], load_encoder(folder / "encoder")
    context.load_state_dict(
        {key.removeprefix("encoder."): value for key, value in state.items() if key.startswith("encoder.")}
    )
    found, places = {}, positions(run, params.seed, params.draws)
    for label, subject in (
        ("", run),
        (", trained encoder's context", replace(run, encoder=TwoEncoders(context, run.encoder))),
    ):
        seen = predictions(subject, pixels, [0], params.seed, params.draws, params.temperature)
        found |= {
            f"prediction_locality{label}": seen.locality,
            f"prediction_locality_noiseless{label}": seen.locality_still,
            f"prediction_cosine{label}": seen.cosine,
        }
    found["target_locality"] = seen.locality_target
    found |= {"position_similarity": places.own, "position_blur": places.blur}
    found |= {
        "A_norm_l1": run.predictor.embed.weight.abs().mean().item(),
        "mask_token_norm_l1": run.mark().abs().mean().item(),
    }
    return found | positional_share(run)


def positional_share(run: Trained) -> dict[str, float]:
    """Percent of ‖A‖² in the directions in which positions differ, and what it would be if A knew nothing of them."""
    table = run.predictor.position_table(run.grid)
    _, singular, directions = torch.linalg.svd(table - table.mean(dim=0), full_matrices=False)
    directions = directions[singular > 1e-4 * singular[0]]
    weight = run.predictor.embed.weight
    share = (directions @ weight).square().sum() / weight.square().sum()
    return {"‖A‖² along positions, percent": 100 * share.item(), "of a random A": 100 * len(directions) / len(weight)}


def spread(values: Sequence[float]) -> str:
    deviation = statistics.stdev(values) if len(values) > 1 else 0.0
    return f"{statistics.mean(values):.3g} ± {deviation:.2g}"


if __name__ == "__main__":
    main()
