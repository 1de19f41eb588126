"""What the report says, from its head to its small print."""

from collections.abc import Mapping, Sequence
from typing import Any

from components.report.content import NONE, Section, Table, number, text
from components.report.gather import BASELINES, Encoder, Evaluation, is_number, twins
from components.report.published import Row
from components.stage import flatten

FACTS = {
    "dataset": "dataset",
    "objective": "objective.name",
    "noise_std": "stop.noise_std",
    "noise's covariance": "stop.covariance",
    "noise on": "stop.apply_to",
    "mask token": "stop.mask_token",
    "bias on noise": "stop.bias_on_noise",
    "penalty on A": "stop.penalty",
    "masks": "masks.sampler",
    "image size": "encoder.image_size",
    "epochs": "optimisation.epochs",
    "batch": "optimisation.global_batch_size",
    "learning rate": "optimisation.lr",
    "weight decay": "optimisation.weight_decay",
    "final weight decay": "optimisation.final_weight_decay",
    "precision": "scale.precision",
    "first weights": "init.source",
    "from": "init.path",
    "seed": "seed",
}
"""Names for a person, and where the values stand in params/pretrain.yaml."""


def write(
    made: Encoder, found: Sequence[Evaluation], rows: Sequence[Mapping[str, Any]], decimals: int
) -> list[Section]:
    """The report from its head to its small print; the figures stand between the two in the page."""
    return [
        Section("What was run", tables=(("", facts(made, found)),)),
        Section("Results", _explained(rows), tables=(("", results(rows, decimals)),)),
        beside_the_paper(made, found, decimals),
        *_training(found),
        *(protocol(stage) for stage in found if stage.record),
        Section("All metrics", tables=(("", everything(found)),), folded=True),
    ]


def headline(made: Encoder) -> str:
    """One line that tells this run from others."""
    values, noise = made.values, made.values.get("stop.noise_std", 0)
    how = (
        f"noise_std {noise:g}, {made.epochs} epoch{'s' * (made.epochs != '1')}"
        if made.epochs != "0"
        else f"from {values.get('init.path')}"
    )
    return f"{made.arch} on {values.get('dataset')}, {how}"


def facts(made: Encoder, found: Sequence[Evaluation]) -> Table:
    """The recipe, as far as it tells runs apart."""
    skipped = {"from"} if made.values.get("init.source") == "scratch" else set()
    lines = [("encoder", made.arch)]
    lines += [
        (name, text(made.values[key])) for name, key in FACTS.items() if key in made.values and name not in skipped
    ]
    lines += [("updates", f"{stage.metrics['steps']:g}") for stage in found if "steps" in stage.metrics]
    half = -(-len(lines) // 2)
    right = [*lines[half:], *[("", "")] * (2 * half - len(lines))]
    pairs = [(*line, *other) for line, other in zip(lines[:half], right, strict=True)]
    return Table(("", "value", "", "value"), pairs, words=4)


def results(rows: Sequence[Mapping[str, Any]], decimals: int) -> Table:
    """Every score beside its baselines; a column that no score has is left out."""
    kinds = [kind for kind in BASELINES if any(row[kind] is not None for row in rows)]
    titles = {"untrained": "untrained", "pixels": "raw pixels", "copy": "first mask"}
    head = ("metric", "pretrained", *(titles[kind] for kind in kinds[:1]), "difference")
    lines = []
    for row in rows:
        numbers = [number(row[key], decimals) for key in ("pretrained", *kinds[:1])]
        difference = number(row["difference"], decimals, "+")
        lines.append((row["metric"], *numbers, difference, *(number(row[kind], decimals) for kind in kinds[1:])))
    return Table((*head, *(titles[kind] for kind in kinds[1:])), lines)


def _explained(rows: Sequence[Mapping[str, Any]]) -> str:
    words = (
        "Percent. Untrained: the same encoder before its first step, with the same heads, grid, selection and seeds."
    )
    if any(row["pixels"] is not None for row in rows):
        words += " Raw pixels: labels carried along by colours instead of features."
    if any(row["copy"] is not None for row in rows):
        words += " First mask: a copy of it in every frame."
    return words


def beside_the_paper(made: Encoder, found: Sequence[Evaluation], decimals: int) -> Section:
    """A table for each evaluation that compares with the paper, and one sentence for each that does not."""
    tables, lines = [], []
    for stage in found:
        if stage.published and stage.verdict.protocol:
            caption = f"{stage.name}: {stage.verdict.protocol.title}. {stage.verdict.protocol.note}".strip()
            tables.append((caption, _published(made, stage, decimals)))
        elif stage.verdict.protocol:
            lines.append(f"{stage.name}: the paper has no number of these metrics by this protocol.")
        elif stage.record or twins(stage.metrics):
            lines.append(f"{stage.name}: no comparison with the paper: {stage.verdict.reason}.")
    words = (
        "Published scores, in brackets this run minus each. Rows of this run's architecture stand first."
        if tables
        else ""
    )
    return Section("Beside the paper", words, tuple(lines), tuple(tables))


def _published(made: Encoder, stage: Evaluation, decimals: int) -> Table:
    metrics = [name for name in stage.metrics if any(row.metric == name for row in stage.published)]
    lines: dict[tuple[str, str, str], dict[str, Row]] = {}
    sources: dict[tuple[str, str, str], dict[str, None]] = {}
    for row in stage.published:
        key = (row.method, row.arch, row.epochs)
        lines.setdefault(key, {}).setdefault(row.metric, row)
        sources.setdefault(key, {})[row.source] = None
    ordered = sorted(lines, key=lambda key: key[1] != made.arch)  # stable: the order of the tables within
    own = ("this run", made.arch, made.epochs, "", *(number(stage.metrics[name], decimals) for name in metrics))
    table = [own]
    for key in ordered:
        cells = []
        for name in metrics:
            there = lines[key].get(name)
            cells.append(f"{there.value:.1f} ({stage.metrics[name] - there.value:+.{decimals}f})" if there else NONE)
        table.append((*key[:2], key[2] or NONE, _joined(list(sources[key])), *cells))
    marked = frozenset(i for i, line in enumerate(table) if line[1] == made.arch)
    return Table(("method", "encoder", "epochs", "source", *metrics), table, words=4, marked=marked)


def _joined(sources: Sequence[str]) -> str:
    """`table 1 and table 2, submission` rather than the version twice."""
    by_version: dict[str, list[str]] = {}
    for source in sources:
        table, _, version = source.partition(", ")
        by_version.setdefault(version, []).append(table.removeprefix("table "))
    return "; ".join(
        f"table{'s' if len(tables) > 1 else ''} {' and '.join(tables)}, {version}"
        for version, tables in by_version.items()
    )


def _training(found: Sequence[Evaluation]) -> list[Section]:
    lines = [
        (f"pretrain/{name}", f"{value:.4g}")
        for stage in found
        if stage.name == "pretrain"
        for name, value in stage.metrics.items()
        if is_number(value)
    ]
    words = (
        "The loss says nothing about quality, since its targets move; effective rank and feature std warn of collapse."
    )
    return [Section("Pretraining at its end", words, (), (("", Table(("value", ""), lines)),))] if lines else []


def protocol(stage: Evaluation) -> Section:
    """Small print of one evaluation: hash, settings, data and versions, so that a reader can tell what the score is a score of."""
    record, data = stage.record, stage.record.get("data", {})
    splits = data.get("splits", {})
    counts = [(f"split {name}", f"{split['rows']} rows, {split['used']} in use") for name, split in splits.items()]
    identity = [(name, text(value)) for name, value in data.items() if name != "splits"]
    settings = [(name, text(value)) for name, value in flatten(record.get("settings", {}), ".").items()]
    versions = [(name, text(value)) for name, value in record.get("environment", {}).items()]
    blocks = {"Data:": identity + counts, "Settings:": settings, "Library versions:": versions}
    profile = next((value for name, value in settings if name.rpartition(".")[2] == "profile"), "")
    words = f"Protocol {record['protocol']}, version {record.get('version')}" + (
        f", profile {profile}." if profile else "."
    )
    tables = tuple((caption, Table(("", "value"), lines, words=2)) for caption, lines in blocks.items() if lines)
    return Section(f"Protocol of {stage.name}", words, tables=tables, folded=True)


def everything(found: Sequence[Evaluation]) -> Table:
    """Every metric of every stage, unrounded."""
    lines = [
        (f"{stage.name}/{name}", text(value)) for stage in found for name, value in flatten(stage.metrics, "/").items()
    ]
    return Table(("metric", "value"), lines)
