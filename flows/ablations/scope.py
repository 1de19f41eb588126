"""Which stages run when some are asked for, and which metrics they leave, known from the contracts before anything runs."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from components.stage import contract
from flows import graph


def needs(root: Path) -> dict[str, set[str]]:
    """The stage words that each one needs directly, as dvc.yaml states them."""
    found: dict[str, set[str]] = {}
    for node in graph.read(root):
        found.setdefault(node.word, set()).update(up.partition("@")[0] for up in node.upstreams)
    return found


def faults(
    stages: Sequence[str], metrics: Sequence[str], params: Mapping[str, Any], needed: Mapping[str, set[str]]
) -> list[str]:
    """One line for each of the `stages` that is none and each of the `metrics` that they won't leave, with the way out.

    `params` by stage word; `needed` from `needs`.
    """
    legal = [name for word in params for name in _names(word, params)]
    unknown = [f"stage {name!r} is no stage; they are: {', '.join(legal)}" for name in stages if name not in legal]
    if unknown:
        return unknown
    running = _running(stages, params, needed)
    return [fault for metric in metrics if (fault := _fault(metric, params, running, stages))]


def _fault(metric: str, params: Mapping[str, Any], running: set[str], stages: Sequence[str]) -> str:
    word, _, rest = metric.partition("/")
    if word not in params:
        return f"metric {metric!r} is of no stage; the stages are: {', '.join(params)}"
    known, entries = _metrics(word), _entries(word, params)
    entry, _, last = rest.partition("/") if contract(word).members else ("", "", rest)
    if contract(word).members and entry not in entries:
        example = f"{word}/{entries[0]}/{known[0]}"
        return f"metric {metric!r} is of no entry of {word}, which has: {', '.join(entries)}; write it as {example}"
    stage = f"{word}@{entry}" if entry else word
    if last not in known:
        return f"metric {metric!r} is none of {stage}, which has: {', '.join(known) or 'none'}"
    if stage not in running:
        return f"metric {metric!r} is of {stage}, which does not run for the stages {', '.join(stages)}; add it to `stages`"
    return ""


def _running(stages: Sequence[str], params: Mapping[str, Any], needed: Mapping[str, set[str]]) -> set[str]:
    """The stages that run, by DVC's names. One that another needs runs for all its entries."""
    whole = {name for name in stages if "@" not in name} or (set() if stages else set(params))
    waiting = {up for name in stages for up in needed[name.partition("@")[0]]} | whole
    reached = set[str]()
    while waiting:
        reached |= waiting
        waiting = {up for word in waiting for up in needed[word]} - reached
    return {name for word in reached for name in _names(word, params)} | set(stages)


def _names(word: str, params: Mapping[str, Any]) -> list[str]:
    """A stage as a target may call it: the word, and DVC's name of each entry."""
    return [word, *(f"{word}@{entry}" for entry in _entries(word, params))]


def _entries(word: str, params: Mapping[str, Any]) -> list[str]:
    key = contract(word).members
    return list(params[word][key]) if key else []


def _metrics(word: str) -> list[str]:
    """The numbers among the metrics of a stage, as they end in MLflow's names."""
    return [name for name, field in contract(word).metrics.model_fields.items() if field.annotation is not str]
