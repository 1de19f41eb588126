"""What quality costs while it trains: `python benchmarks/quality.py [--history plots/pretrain.csv …]`.

For each whole recipe the FLOPs that k-NN and the probe ask of the target encoder, as a share of those of training itself, by preflight's
cost model. k-NN and the probe on the features, and decoding, which is done once, are not in it. For each history of a run what it took:
the seconds of all measurements, of those after the first, which decodes the images as well, and of the run.
"""

import argparse
import csv
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))  # where the project is not installed

from components.preflight.dataset import expected
from components.preflight.flops import flops
from components.preflight.lengths import lengths
from components.pretrain.contract import PretrainParams
from flows import presets

ROOT = Path(__file__).parents[1]


def asked(name: str) -> str:
    """The row of one recipe."""
    recipe = presets.recipe(ROOT, name)
    params = PretrainParams(**recipe["pretrain"])
    chosen, images = params.quality, expected(params.dataset, recipe["prepare"]).images
    cost, epochs = flops(params, lengths(params)), params.optimisation.epochs
    if not (images and epochs and chosen.every_epochs):
        return f"| {name} | – | – | – |"
    steps = epochs * images // params.optimisation.global_batch_size
    every = max(1, round(chosen.every_epochs * images / params.optimisation.global_batch_size))
    times = len({1, steps, *range(every, steps + 1, every)})
    forward = flops(_with_target(params), lengths(params)).target
    looked_at = chosen.train_images + chosen.test_images
    share = times * looked_at * forward / (steps * params.optimisation.global_batch_size * cost.model)
    return f"| {name} | {looked_at:,} | {times:,} | {100 * share:.2f} % |"


def _with_target(params: PretrainParams) -> PretrainParams:
    """MAE has no target encoder, but what it is asked to do here is what one does: a forward pass on all patches."""
    return params.model_copy(update={"objective": params.objective.model_copy(update={"name": "ijepa"})})


def took(path: Path) -> str:
    """The row of one run."""
    with path.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    measured = [float(row["quality_seconds"]) for row in rows if row.get("quality_seconds")]
    if not measured:
        raise ValueError(f"{path} has no measurement; give the history of a run with quality.every_epochs above 0")
    # A row's seconds hold the measurement of the one before, and the last one's are in none.
    whole = sum(float(row["seconds"]) for row in rows) + float(rows[-1].get("quality_seconds") or 0)
    later = sum(measured[1:])
    return f"| {path} | {len(measured)} | {measured[0]:.2f} | {later:.2f} | {whole:.1f} | {100 * sum(measured) / whole:.1f} % |"


def main() -> None:
    """Prints both tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--history", type=Path, nargs="*", default=[], help="plots/pretrain.csv of runs")
    options = parser.parse_args()
    print("| recipe | images | measurements | FLOPs beside training's |\n|---|---|---|---|")
    for name in presets.recipes(ROOT):
        print(asked(name))
    if options.history:
        print("\n| run | measurements | first, s | later ones, s | run, s | share |\n|---|---|---|---|---|---|")
    for path in options.history:
        print(took(path))


if __name__ == "__main__":
    main()
