"""Finetunes the pretrained encoder and the untrained one on one labelled dataset, by the same recipe and seed."""

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from components import progress, tracking
from components.evaluation import data, settings, write_protocol
from components.features import pick
from components.figures import by_epoch, confusion
from components.finetune import curves
from components.finetune.classifier import Classifier, save, set_drop_path
from components.finetune.contract import (
    FinetuneInputs,
    FinetuneMetrics,
    FinetuneOutputs,
    FinetuneParams,
    FinetuningParams,
)
from components.finetune.examples import Batches, Data, read, views
from components.finetune.loop import Row, Trainer
from components.finetune.resume import Best, Checkpoints
from components.mim.encoder import VisionEncoder
from components.probe.choice import accuracy, gain
from components.probe.dataset import subjects
from components.probe.tables import write_confusion
from components.stage import atomic, fingerprint
from components.work import alone, finish, forget_finished

VERSION = 2
"""Raised when this stage begins to measure something else."""


class Outcome(NamedTuple):
    """What one encoder came to: its classifier at the best epoch, the classes of the scored images [n], every epoch."""

    model: Classifier
    predictions: NDArray[np.int64]
    top1: float
    best: Best
    history: list[Row]


def run(params: FinetuneParams, inputs: FinetuneInputs, outputs: FinetuneOutputs) -> FinetuneMetrics:
    """Finetunes for the one entry in `params`, or continues this very work. Raises ValueError for what cannot work."""
    ((name, finetuning),) = params.finetunings.items()
    device = pick(params.device)
    found = read(name, params, finetuning, inputs)
    # Who runs out of memory lowers the one or the other, and must go on where it was.
    mark = fingerprint("finetune", params.model_copy(update={"workers": 0, "scoring_batch_size": 0}), inputs)
    folder, outcomes = outputs.work / mark, dict[str, Outcome]()
    size = finetuning.image_size
    with alone(
        folder, f"finetune {name}: another process does this very work in {folder}; waiting to use what it comes to"
    ):
        forget_finished(outputs.work)
        progress.show(f"finetune {name}: {len(found.train.rows)} training images; resume state in {folder}")
        for kind, encoder, *_ in subjects(inputs.encoder, size, size, device):
            outcomes[kind] = _finetune(name, kind, params, encoder, found, folder / kind)
        protocol = _protocol(params, finetuning, found, outputs.protocol)
        metrics = _metrics(outcomes, protocol, len(found.train.rows))
        _write(params, finetuning, outcomes, found, outputs, {"fingerprint": mark, "seed": params.seed})
        finish(folder)
    return metrics


def _finetune(
    name: str, kind: str, params: FinetuneParams, encoder: VisionEncoder, found: Data, folder: Path
) -> Outcome:
    """One encoder from its weights, or from the newest checkpoint in `folder`, to its best epoch."""
    label, finetuning = f"finetune {name}, {kind}", params.finetunings[name]
    model = Classifier(encoder.requires_grad_(True), finetuning.pooling, finetuning.norm, len(found.classes))
    model.initialise(params.seed)
    set_drop_path(encoder, finetuning.optimisation.drop_path)
    device = pick(params.device)
    trainer = Trainer(label, params, finetuning, model, Batches(params, finetuning, found.train), device)
    checkpoints, best = Checkpoints(folder), Best(0, -1.0)
    if (saved := checkpoints.load()) is not None:
        best = saved[1]
        trainer.restore(saved[0])
        progress.show(f"{label}: goes on after epoch {trainer.epoch}")
        for row in trainer.history:
            _log(name, kind, row)
    judging, labels = views(found.judge, params, finetuning), found.judge.column("label")

    def after_epoch(row: Row) -> None:
        nonlocal best
        row["top1"] = float(accuracy(trainer.predict(judging), labels))
        if row["top1"] > best.top1:
            best = Best(trainer.epoch, row["top1"])
        checkpoints.save(trainer.state(), best, model.state_dict())
        _log(name, kind, row)
        progress.show(f"{label}: epoch {trainer.epoch}, loss {row['train_loss']:.4f}, top-1 {row['top1']:.2f} %")

    trainer.train(after_epoch)
    model.load_state_dict(checkpoints.best(best), strict=True)
    predictions = trainer.predict(views(found.test, params, finetuning))
    top1 = float(accuracy(predictions, found.test.column("label")))
    progress.show(f"{label}: top-1 {top1:.2f} %, epoch {best.epoch} of {trainer.epoch}, best on {_judge(params)}")
    return Outcome(model.to("cpu"), predictions, top1, best, trainer.history)


def _log(name: str, kind: str, row: Row) -> None:
    points = {f"finetune/{name}/{kind}/{quantity}": value for quantity, value in row.items() if quantity != "epoch"}
    tracking.log_metrics(points, int(row["epoch"]))


def _judge(params: FinetuneParams) -> str:
    return "the scored images themselves" if params.profile == "paper" else "held-out training images"


def _protocol(params: FinetuneParams, finetuning: FinetuningParams, found: Data, path: Path) -> str:
    """What a score means does not depend on names, and not on how the work is cut up."""
    ignored = {"precision", "workers", "micro_batch_size", "scoring_batch_size", "finetunings"}
    unread = {"dataset", "train_list", "train_limit", "test_limit"} | (
        {"resize_short_side"} if finetuning.resize == "direct" else set()
    )
    recipe = settings(finetuning, unread)
    unused = {"holdout_fraction"} if params.profile == "paper" else set()
    used = {finetuning.train_split: len(found.train.rows), finetuning.test_split: len(found.test.rows)}
    card = found.test.store.card
    return write_protocol(path, "finetune", VERSION, {**settings(params, ignored | unused), **recipe}, data(card, used))


def _metrics(outcomes: dict[str, Outcome], protocol: str, learned_from: int) -> FinetuneMetrics:
    pretrained, untrained = outcomes["pretrained"], outcomes["untrained"]
    return FinetuneMetrics(
        protocol=protocol,
        top1=pretrained.top1,
        top1_untrained=untrained.top1,
        top1_gain=gain(pretrained.top1, untrained.top1),
        best_epoch=pretrained.best.epoch,
        best_epoch_untrained=untrained.best.epoch,
        top1_final=pretrained.history[-1]["top1"],
        top1_best=pretrained.best.top1,
        top1_final_untrained=untrained.history[-1]["top1"],
        top1_best_untrained=untrained.best.top1,
        train_loss_final=pretrained.history[-1]["train_loss"],
        train_loss_final_untrained=untrained.history[-1]["train_loss"],
        learned_from=learned_from,
        scored=len(pretrained.predictions),
    )


def _write(
    params: FinetuneParams,
    finetuning: FinetuningParams,
    outcomes: dict[str, Outcome],
    found: Data,
    outputs: FinetuneOutputs,
    about: dict[str, Any],
) -> None:
    chosen, actual = outcomes["pretrained"], found.test.column("label")
    histories = {kind: outcome.history for kind, outcome in outcomes.items()}
    curves.write(outputs.history, histories)
    write_confusion(outputs.confusion, found.classes, actual, chosen.predictions)
    view = finetuning.model_dump(include={"image_size", "resize", "resize_short_side"})
    with atomic(outputs.model) as path:
        save(path, chosen.model, {**about, "class_names": found.classes, "view": view, "epoch": chosen.best.epoch})
    tracking.log_figure(outputs.history)
    tracking.log_figure(outputs.confusion)
    tracking.log_plot("curves.png", by_epoch(curves.columns(histories)))
    tracking.log_plot("confusion.png", confusion(found.classes, actual, chosen.predictions))
