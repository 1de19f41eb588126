"""What the recipe `cifar10` learns, with noise and without, over several seeds: `python benchmarks/small_scale.py --seeds 0 1 2`.

Needs CIFAR-10 and DAVIS as `make run PRESET=cifar10 DATA=FOLDER` (or `dvc repro prepare`) leaves them under data/prepared. Each
seed of each variant is pretrained and judged by the stages' own commands, in a folder of its own under work/benchmarks; what is
done is not done again. The tables hold mean and standard deviation over seeds: pretrained, untrained, raw pixels and, for DAVIS,
a copy of the first mask.
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pixels import scores_of_pixels

from components.stage import canonical_yaml, contract, digest
from flows import presets

ROOT = Path(__file__).parents[1]
VARIANTS = {"noise": ["cifar10"], "no noise": ["cifar10", "ijepa"]}
EVALUATIONS = (
    ("linear_probe", "cifar10"),
    ("linear_probe", "cifar10_1percent"),
    ("finetune", "cifar10"),
    ("davis", ""),
)
METRICS = {
    "linear probe, top-1": "linear_probe/cifar10/top1",
    "k-NN, top-1": "linear_probe/cifar10/knn_top1",
    "logistic regression, 1% of the labels, top-1": "linear_probe/cifar10_1percent/logistic_top1",
    "finetuning, 4% of the labels, top-1": "finetune/cifar10/top1",
    "DAVIS, J&F": "davis/jf_mean",
}
Row = dict[str, float]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--out", type=Path, default=ROOT / "work" / "benchmarks" / "small_scale")
    options = parser.parse_args()
    rows: dict[str, list[Row]] = {variant: [] for variant in VARIANTS}
    for seed in options.seeds:
        for variant, names in VARIANTS.items():
            recipe = presets.compose(ROOT, names)
            mark = digest([recipe["pretrain"], *(recipe[word] for word, _ in EVALUATIONS)])
            folder = (
                options.out / f"{'-'.join(names)}-{mark}" / f"seed-{seed}"
            )  # a changed recipe never shows older scores
            rows[variant].append(one_seed(recipe, seed, folder))
            print(f"{variant}, seed {seed}: {shown(rows[variant][-1])}", flush=True)
    print_tables(rows, scores_of_pixels(ROOT, presets.compose(ROOT, ["cifar10"])))


def one_seed(recipe: dict[str, dict[str, Any]], seed: int, folder: Path) -> Row:
    """Metrics of one seed by MLflow's names."""
    folder.mkdir(parents=True, exist_ok=True)
    data = ROOT / "data" / "prepared"
    dataset = data / recipe["pretrain"]["dataset"]
    inputs = {"dataset": dataset, "quality": data / recipe["pretrain"]["quality"]["dataset"]}
    inputs["init"] = ROOT / recipe["pretrain"]["init"]["path"]
    row = run(recipe, seed, folder, "pretrain", "", inputs)
    encoder = folder / "pretrain" / "encoder"
    for word, member in EVALUATIONS:
        section = recipe[word]
        chosen = section[contract(word).members][member] if member else section
        inputs = {"encoder": encoder, "dataset": data / chosen["dataset"]}
        if "train_list" in contract(word).inputs.model_fields:
            inputs["train_list"] = ROOT / chosen["train_list"]
        row |= run(recipe, seed, folder, word, member, inputs)
    return row


def run(recipe: dict[str, Any], seed: int, folder: Path, word: str, member: str, inputs: dict[str, Path]) -> Row:
    """Metrics of one stage, run unless its metrics are there."""
    outputs = {name: folder / word / member / name for name in contract(word).outputs.model_fields}
    if not outputs["metrics"].exists():
        values = recipe[word] | ({"seed": seed} if "seed" in recipe[word] else {})
        (folder / f"{word}.yaml").write_text(canonical_yaml(values))
        flags = [f"--{name.replace('_', '-')}={path}" for name, path in (inputs | outputs).items()]
        member_flag = ["--member", member] if member else []
        command = [sys.executable, "-m", "components", word, "--params", f"{word}.yaml", *member_flag, *flags]
        subprocess.run(command, cwd=folder, check=True, env={**os.environ, "DVC_ROOT": str(folder)})
    values = json.loads(outputs["metrics"].read_text())
    return {
        "/".join(filter(None, (word, member, key))): value
        for key, value in values.items()
        if not isinstance(value, str)
    }


def shown(row: Row) -> str:
    return ", ".join(f"{name} {row[f'{key}_untrained']:.1f} → {row[key]:.1f}" for name, key in METRICS.items())


def print_tables(rows: dict[str, list[Row]], pixels: dict[str, float]) -> None:
    noise, plain = rows["noise"], rows["no noise"]
    print("\n| | untrained | noise (StoP) | no noise (I-JEPA) | raw pixels | noise − no noise, seed by seed |")
    print("|---|---|---|---|---|---|")
    for name, key in METRICS.items():
        cells = [spread([row[f"{key}_untrained"] for row in noise]), spread([row[key] for row in noise])]
        cells += [
            spread([row[key] for row in plain]),
            f"{noise[0][f'{key}_pixels']:.1f}" if key == "davis/jf_mean" else "",
        ]
        cells[3] = cells[3] or (f"{pixels[key]:.1f}" if key in pixels else "–")
        cells.append(spread([a[key] - b[key] for a, b in zip(noise, plain, strict=True)], "+"))
        print(f"| {name} | " + " | ".join(cells) + " |")
    print(f"\nDAVIS, copy of the first mask: {noise[0]['davis/jf_mean_copy']:.1f}")
    print("\n| seed by seed: noise / no noise | " + " | ".join(METRICS) + " | effective rank |")
    print("|---" * (len(METRICS) + 2) + "|")
    for number, (a, b) in enumerate(zip(noise, plain, strict=True)):
        keys = [*METRICS.values(), "pretrain/effective_rank_final"]
        print(f"| {number} | " + " | ".join(f"{a[key]:.1f} / {b[key]:.1f}" for key in keys) + " |")
    print(f"\nmean ± standard deviation over {len(noise)} seeds, on {os.cpu_count()} cores ({processor()})")


def spread(values: Sequence[float], sign: str = "") -> str:
    deviation = statistics.stdev(values) if len(values) > 1 else 0.0
    return f"{statistics.mean(values):{sign}.1f} ± {deviation:.1f}"


def processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


if __name__ == "__main__":
    main()
