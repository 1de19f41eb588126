"""Linear heads and nearest neighbours on one labelled dataset, for the pretrained encoder and the untrained one."""

from functools import partial
from typing import Any

from components import evaluation, progress, tracking
from components.features import pick
from components.figures import confusion
from components.images.subset import read_list
from components.linear_probe.contract import (
    LinearProbeInputs,
    LinearProbeMetrics,
    LinearProbeOutputs,
    LinearProbeParams,
    TaskParams,
)
from components.linear_probe.probing import Outcome, Parts, probe
from components.probe.choice import gain, split
from components.probe.dataset import open_part, subjects
from components.probe.heads import Task
from components.probe.kept import keeping
from components.probe.neighbours import check_k
from components.probe.tables import write_confusion, write_heads

VERSION = 2
"""Raised when the code begins to measure something else: part of the protocol."""


def run(params: LinearProbeParams, inputs: LinearProbeInputs, outputs: LinearProbeOutputs) -> LinearProbeMetrics:
    """Probes the one task in `params`. Raises ValueError for a dataset, a list, a grid or limits that cannot work."""
    ((name, settings),) = params.tasks.items()
    device, names = pick(params.device), read_list(inputs.train_list, settings.train_list_sha256)
    opened = partial(open_part, inputs.dataset, settings.dataset, "images")
    train = opened(settings.train_split, settings.train_limit, names)
    test = opened(settings.test_split, settings.test_limit)
    task = Task(f"linear_probe {name}", train.store.card["classes"], settings.epochs)
    check_k(params.knn_k, len(train.rows))
    labels, judged = train.labels(), test.labels()
    parts = Parts(train, labels, split(params, task, train, labels, test, judged), test, judged)
    if names is not None:
        progress.show(f"{task.name}: all {len(names)} images of {inputs.train_list.name} found")
    outcomes = {}
    for subject in subjects(inputs.encoder, settings.image_size, settings.image_size, device):
        with keeping(outputs.work, subject):
            outcomes[subject.kind] = probe(params, settings, task, parts, subject, outputs.work)
        progress.show(f"{task.name}: {subject.kind} {outcomes[subject.kind].sentence(params.profile)}")
    used = {settings.train_split: len(train.rows), settings.test_split: len(test.rows)}
    measured_on = evaluation.data(test.store.card, used)
    protocol = evaluation.write_protocol(
        outputs.protocol, "linear_probe", VERSION, decided_by(params, settings), measured_on
    )
    choices = {kind: outcome.choice for kind, outcome in outcomes.items()}
    write_heads(outputs.heads, choices)
    chosen = choices["pretrained"]
    predicted = chosen.predictions[chosen.best()]
    write_confusion(outputs.confusion, task.classes, judged, predicted)
    tracking.log_figure(outputs.heads)
    tracking.log_figure(outputs.confusion)
    tracking.log_plot("confusion.png", confusion(task.classes, judged, predicted))
    return _metrics(outcomes["pretrained"], outcomes["untrained"], protocol, parts)


def decided_by(params: LinearProbeParams, settings: TaskParams) -> dict[str, Any]:
    """The values that decide what the scores mean; those that nothing reads are left out."""
    unread = {"dataset", "train_list", "heads", "train_limit", "test_limit"}  # the data say which rows were used
    unread |= {"crop_scale_min", "crop_scale_max"} if settings.training == "cached" else set()
    unread |= {"resize_short_side"} if settings.resize == "direct" else set()
    own = {"encoding_batch_size", "workers", "cpus_per_worker", "tasks"} | (
        {"holdout_fraction"} if params.profile == "paper" else set()
    )
    task = evaluation.settings(settings, without=unread)
    return evaluation.settings(params, without=own) | task | {"heads": settings.heads.decisive()}


def _metrics(pretrained: Outcome, untrained: Outcome, protocol: str, parts: Parts) -> LinearProbeMetrics:
    logistic = [None if outcome.logistic is None else outcome.logistic.top1 for outcome in (pretrained, untrained)]
    choice, before, scored = pretrained.choice, untrained.choice, pretrained.choice.predictions.shape[1]
    assert scored == len(parts.test.rows), "every image of the split, or of the limit, is scored once"
    return LinearProbeMetrics(
        protocol=protocol,
        top1=choice.score(),
        top1_untrained=untrained.choice.score(),
        top1_gain=gain(choice.score(), untrained.choice.score()),
        last_top1=choice.score("last"),
        last_top1_untrained=before.score("last"),
        last4_top1=choice.score("last4"),
        last4_top1_untrained=before.score("last4"),
        class_token_top1=choice.score("class_token") if choice.has("class_token") else None,
        class_token_top1_untrained=before.score("class_token") if before.has("class_token") else None,
        knn_top1=pretrained.neighbours,
        knn_top1_untrained=untrained.neighbours,
        knn_top1_gain=gain(pretrained.neighbours, untrained.neighbours),
        logistic_top1=logistic[0],
        logistic_top1_untrained=logistic[1],
        logistic_top1_gain=None if logistic[0] is None or logistic[1] is None else gain(logistic[0], logistic[1]),
        logistic_lambda=None if pretrained.logistic is None else pretrained.logistic.chosen.strength,
        train_images=len(parts.train.rows),
        scored=scored,
    )
