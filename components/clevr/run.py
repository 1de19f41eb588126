"""Counting and distance heads on scenes of CLEVR's format, for the pretrained encoder and the untrained one."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from components import evaluation, figures, progress, tracking
from components.clevr.contract import ClevrInputs, ClevrMetrics, ClevrOutputs, ClevrParams
from components.clevr.labels import COUNT_CLASSES, DISTANCE_CLASSES, count_labels, distance_labels
from components.features import pick
from components.images.transforms import View
from components.probe.choice import Choice, Rows, choose, gain, split
from components.probe.dataset import Part, Subject, open_part, subjects
from components.probe.extraction import Features
from components.probe.heads import Task
from components.probe.kept import home, keeping, pooled
from components.probe.sources import Cached
from components.probe.tables import write_confusion, write_heads

VERSION = 1
"""Raised when the code begins to measure something else: part of the protocol."""


def run(params: ClevrParams, inputs: ClevrInputs, outputs: ClevrOutputs) -> ClevrMetrics:
    """Both tasks on one encoding of the scenes. Raises ValueError for a dataset, labels or limits that cannot work."""
    device = pick(params.device)
    train = open_part(inputs.dataset, params.dataset, "scenes", params.train_split, params.train_limit)
    test = open_part(inputs.dataset, params.dataset, "scenes", params.test_split, params.test_limit)
    learned, judged = labels(train), labels(test)
    tasks = {
        "count": Task("clevr count", COUNT_CLASSES, params.count_epochs),
        "distance": Task("clevr distance", DISTANCE_CLASSES, params.distance_epochs),
    }
    holds = {key: split(params, task, train, learned[key], test, judged[key]) for key, task in tasks.items()}
    choices: dict[str, dict[str, Choice]] = {key: {} for key in tasks}
    for subject in subjects(inputs.encoder, params.height, params.width, device):
        with keeping(outputs.work, subject):
            seen = both_views(params, train, subject, outputs.work)
            judge = _encode(params, test, subject, outputs.work, mirror=False)
            for key, task in tasks.items():
                hold, kept = holds[key], np.flatnonzero(~holds[key])
                source = Cached(seen, kept, learned[key][kept], params.seed, device)
                held = Rows(seen[0].where(hold), learned[key][hold]) if hold.any() else None
                rows = Rows(judge, judged[key])
                work = home(outputs.work, subject)
                choices[key][subject.kind] = choose(params.heads, task, source, rows, held, params.seed, device, work)
                progress.show(f"{task.name}: {subject.kind} {choices[key][subject.kind].sentence()}")
    protocol = _protocol(params, outputs.protocol, train, test)
    _write(choices["count"], tasks["count"], judged["count"], outputs.count_heads, outputs.count_confusion)
    _write(
        choices["distance"], tasks["distance"], judged["distance"], outputs.distance_heads, outputs.distance_confusion
    )
    return _metrics(choices, len(test.rows), protocol)


def _protocol(params: ClevrParams, path: Path, train: Part, test: Part) -> str:
    """Writes the protocol and returns its hash. Values that nothing reads are left out."""
    unread = {"encoding_batch_size", "workers", "cpus_per_worker", "dataset", "heads", "train_limit", "test_limit"} | (
        {"holdout_fraction"} if params.profile == "paper" else set()
    )
    decided_by = evaluation.settings(params, without=unread) | {"heads": params.heads.decisive()}
    used = {params.train_split: len(train.rows), params.test_split: len(test.rows)}
    return evaluation.write_protocol(path, "clevr", VERSION, decided_by, evaluation.data(test.store.card, used))


def labels(part: Part) -> dict[str, np.ndarray]:
    """Count and distance classes [n] of the scenes in use."""
    paths = part.column("path")
    return {
        "count": count_labels(part.column("count"), paths),
        "distance": distance_labels(part.column("distance"), paths),
    }


def both_views(params: ClevrParams, part: Part, subject: Subject, work: Path) -> list[Features]:
    """Each scene as it is, and each mirrored: with fixed features this is all that a random flip can show."""
    return [_encode(params, part, subject, work, mirror) for mirror in (False, True)]


def _encode(params: ClevrParams, part: Part, subject: Subject, work: Path, mirror: bool) -> Features:
    return pooled(
        subject,
        part,
        View(params.height, params.width, 0, mirror),
        layers=params.layers,
        encoding=params.encoding(),
        folder=work,
        label=f"clevr: {subject.kind} features of {part.store.split}{', mirrored' if mirror else ''}",
    )


def _write(choices: Mapping[str, Choice], task: Task, actual: np.ndarray, heads: Path, confusion: Path) -> None:
    chosen = choices["pretrained"]
    write_heads(heads, choices)
    predicted = chosen.predictions[chosen.best()]
    write_confusion(confusion, task.classes, actual, predicted)
    tracking.log_figure(heads)
    tracking.log_figure(confusion)
    tracking.log_plot(f"{confusion.stem}.png", figures.confusion(task.classes, actual, predicted))


def _metrics(choices: Mapping[str, Mapping[str, Choice]], scored: int, protocol: str) -> ClevrMetrics:
    count, count_untrained = (choices["count"][kind].score() for kind in ("pretrained", "untrained"))
    distance, distance_untrained = (choices["distance"][kind].score() for kind in ("pretrained", "untrained"))
    assert all(choice["pretrained"].predictions.shape[1] == scored for choice in choices.values())
    return ClevrMetrics(
        protocol=protocol,
        count_top1=count,
        count_top1_untrained=count_untrained,
        count_top1_gain=gain(count, count_untrained),
        distance_top1=distance,
        distance_top1_untrained=distance_untrained,
        distance_top1_gain=gain(distance, distance_untrained),
        scored=scored,
    )
