"""Does the cifar10 recipe learn? Pretrains and probes it with several seeds: `python benchmarks/small_scale.py --seeds 0 1 2`.

Needs the prepared CIFAR-10 of a `make run PRESET=cifar10 DATA=FOLDER` (or `dvc repro prepare@cifar10`). Each seed is a
`pretrain` and a `linear_probe` run by the very commands of dvc.yaml, in a folder of its own; done seeds are not run again.
`--preset stop_paper` lays further presets over the recipe.
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

from components.stage import canonical_yaml, digest
from flows import presets

ROOT = Path(__file__).parents[1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--preset", default="cifar10", help="names with commas; the first is the recipe")
    parser.add_argument(
        "--weight-init", default="fan_in", help="fixed shows what the references' start does to a narrow model"
    )
    parser.add_argument("--out", type=Path, default=ROOT / "work" / "benchmarks")
    options = parser.parse_args()
    recipe = presets.compose(ROOT, options.preset.split(","))
    recipe["pretrain"]["weight_init"] = options.weight_init
    mark = digest([recipe["pretrain"], recipe["linear_probe"]])  # a changed recipe never shows an older one's scores
    rows = []
    for seed in options.seeds:
        folder = options.out / "small_scale" / f"{options.preset.replace(',', '-')}-{mark}" / f"seed-{seed}"
        rows.append(one_seed(recipe, seed, folder))
        print_row(f"seed {seed}", rows[-1])
    print_summary(rows)


def one_seed(recipe: dict[str, dict[str, Any]], seed: int, folder: Path) -> dict[str, float]:
    """Metrics of one seed by name."""
    done = folder / "row.json"
    if done.exists():
        row: dict[str, float] = json.loads(done.read_text())
        return row
    folder.mkdir(parents=True, exist_ok=True)
    for word in ("pretrain", "linear_probe"):
        (folder / f"{word}.yaml").write_text(canonical_yaml({**recipe[word], "seed": seed}))
    data = ROOT / "data" / "prepared"
    encoder = ["--encoder", "encoder.safetensors"]
    stage(
        folder, "pretrain", "--dataset", str(data / recipe["pretrain"]["dataset"]), *encoder, "--predictor",
        "predictor.safetensors", "--state", "state.pt", "--history", "pretrain.csv",
        "--spectrum", "spectrum.csv", "--masks", "masks.png", "--init", str(ROOT / recipe["pretrain"]["init"]["path"]),
        "--work", "work",
    )  # fmt: skip
    stage(
        folder, "linear_probe", "--member", "cifar10", "--dataset", str(data / "cifar10"), *encoder, "--confusion",
        "confusion.csv", "--heads", "heads.csv", "--protocol", "protocol.json", "--work", "work", "--train-list",
        str(ROOT / recipe["linear_probe"]["tasks"]["cifar10"]["train_list"]),
    )  # fmt: skip
    metrics = {word: json.loads((folder / f"{word}-metrics.json").read_text()) for word in ("pretrain", "linear_probe")}
    row = metrics["linear_probe"]
    row |= {name: metrics["pretrain"][name] for name in ("effective_rank", "feature_std", "images_per_second_mean")}
    row["seed"] = seed
    images = metrics["pretrain"]["steps"] * recipe["pretrain"]["optimisation"]["global_batch_size"]
    row["pretrain_minutes"] = images / row["images_per_second_mean"] / 60  # of the training itself, restarts included
    done.write_text(json.dumps(row, indent=2))
    return row


def stage(folder: Path, word: str, *flags: str) -> None:
    """Runs one stage in `folder`."""
    command = [sys.executable, "-m", "components", word, "--params", f"{word}.yaml", *flags]
    command += ["--metrics", f"{word}-metrics.json", "--run", f"{word}-run.json"]
    subprocess.run(command, cwd=folder, check=True, env={**os.environ, "DVC_ROOT": str(folder)})


def print_row(label: str, row: dict[str, float]) -> None:
    line = [f"| {label}"]
    for name in ("top1", "knn_top1"):
        line.append(f"{row[f'{name}_untrained']:.1f} → {row[name]:.1f} ({row[f'{name}_gain']:+.1f})")
    line += [f"{row['effective_rank']:.1f}", f"{row['pretrain_minutes']:.1f}"]
    print(" | ".join(line) + " |", flush=True)


def print_summary(rows: list[dict[str, float]]) -> None:
    print("\n| seed | probe top-1 | k-NN | effective rank | minutes of pretraining |\n|---|---|---|---|---|")
    for row in rows:
        print_row(f"{row['seed']:.0f}", row)
    for name in ("top1_gain", "knn_top1_gain"):
        values = [row[name] for row in rows]
        spread = statistics.stdev(values) if len(values) > 1 else 0.0
        print(f"{name}: mean {statistics.mean(values):+.2f}, standard deviation {spread:.2f}, over {len(values)} seeds")
    print(f"on {os.cpu_count()} cores ({platform.processor() or platform.machine()})")


if __name__ == "__main__":
    main()
