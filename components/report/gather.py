"""Reads what the stages left: metrics and protocols of the evaluations that the params name, and pairs the scores."""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from components.report.contract import ReportInputs
from components.report.published import Row, Verdict, beside, judge
from components.stage import current_names, flatten, read_yaml

BASELINES = ("untrained", "pixels", "copy")
"""What stands beside a score `x` as `x_untrained` and so on: the encoder before its first step, raw pixels, a copy of the first mask."""
NO_SCORES = ("best_epoch", "top1_final", "top1_best", "train_loss_final", "pca_explained")
"""Metrics with an untrained twin that describe and do not score; they stand among all metrics only."""
SIZES = {(192, 12, 3): "Ti", (384, 12, 6): "S", (768, 12, 12): "B", (1024, 24, 16): "L", (1280, 32, 16): "H"}


class Evaluation(NamedTuple):
    """One stage or member, such as `linear_probe/digits`; `record` is its protocol file, {} where there is none."""

    name: str
    metrics: dict[str, Any]
    record: dict[str, Any]
    verdict: Verdict
    published: list[Row]


class Encoder(NamedTuple):
    """What was pretrained, as the params say; `values` are those of pretrain, flat."""

    arch: str
    epochs: str
    values: dict[str, Any]


def encoder(values: Path) -> Encoder:
    """The encoder that `params/pretrain.yaml` describes."""
    flat = flatten(read_yaml(values / "pretrain.yaml"), ".")
    width, layers, heads, patch = (flat.get(f"encoder.{name}") for name in ("width", "layers", "heads", "patch_size"))
    size = SIZES.get((width, layers, heads))  # type: ignore[arg-type]
    arch = f"ViT-{size}/{patch}" if size else f"ViT, {layers} layers of width {width}, patch {patch}"
    return Encoder(arch, f"{flat.get('optimisation.epochs', 0):g}", flat)


def evaluations(inputs: ReportInputs) -> list[Evaluation]:
    """Every stage and member but the report, in the order of their names."""
    found = []
    for name in sorted(current_names(inputs.values) - {"report"}):
        metrics = read(inputs.metrics / f"{name}.json")
        path = inputs.protocols / f"{name}.json"
        record = read(path) if path.is_file() else {}
        if record and record.get("protocol") != metrics.get("protocol"):
            raise ValueError(
                f"{path} is of protocol {record.get('protocol')}, {inputs.metrics / name}.json of {metrics.get('protocol')}; one of them "
                f"is left over from another run: `dvc repro {name.partition('/')[0]}` makes both again"
            )
        verdict = judge(record) if record else Verdict(None, "no protocol file")
        measured = {name for name, value in metrics.items() if value is not None}
        rows = beside(verdict.protocol, measured) if verdict.protocol else []
        found.append(Evaluation(name, metrics, record, verdict, rows))
    return found


def read(path: Path) -> dict[str, Any]:
    """The mapping in a JSON file. Raises ValueError, naming the file, when it is missing or broken."""
    if not path.is_file():
        raise ValueError(f"{path} does not exist, but the params name its stage; `dvc repro` makes it")
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:  # also of bytes that are no text
        raise ValueError(f"{path} is no JSON: {error}; remove it, and `dvc repro` makes it again") from None
    if not isinstance(values, dict):
        raise ValueError(f"{path} holds a {type(values).__name__}; it must hold a mapping of names to values")
    return values


def twins(metrics: Mapping[str, Any]) -> set[str]:
    """The scores that have an untrained twin. None is what was not measured."""
    return {
        name
        for name, value in metrics.items()
        if name not in NO_SCORES and value is not None and metrics.get(f"{name}_untrained") is not None
    }


def comparisons(found: list[Evaluation]) -> list[dict[str, Any]]:
    """A row for each metric that has an untrained twin or a published counterpart, by MLflow's name."""
    rows = []
    for stage in found:
        shown = twins(stage.metrics) | {row.metric for row in stage.published}
        for name, value in stage.metrics.items():
            if name not in shown:
                continue
            rows.append(
                {
                    "metric": f"{stage.name}/{name}",
                    "pretrained": value,
                    **{kind: stage.metrics.get(f"{name}_{kind}") for kind in BASELINES},
                    "difference": _difference(stage.metrics, name),
                    "protocol": stage.record.get("protocol"),
                    "published": [
                        {
                            "method": row.method,
                            "arch": row.arch,
                            "epochs": row.epochs,
                            "value": row.value,
                            "source": row.source,
                        }
                        for row in stage.published
                        if row.metric == name
                    ],
                    "not_comparable": stage.verdict.reason,
                }
            )
    return rows


def _difference(metrics: Mapping[str, Any], name: str) -> float | None:
    """Pretrained minus untrained, as the stage itself says where it does."""
    gain, twin = metrics.get(f"{name}_gain"), metrics.get(f"{name}_untrained")
    if twin is None:
        return None
    return float(round(metrics[name] - twin, 9) if gain is None else gain)


def better(metric: str, difference: float) -> bool:
    """Whether a difference is a gain: a decay, of J or F along a video, should be small."""
    return difference < 0 if metric.endswith("_decay") else difference > 0


def is_number(value: Any) -> bool:
    """Whether a metric can be compared; texts and NaN cannot."""
    return isinstance(value, int | float) and math.isfinite(value)
