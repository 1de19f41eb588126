"""Pretraining in Ray Train: checks, the cluster, one `fit`, and the files that go on."""

from collections.abc import Sequence
from pathlib import Path

import torch
from ray.train import CheckpointConfig, Result, RunConfig, WorkerGroupError
from ray.train.torch import TorchTrainer

from components import progress, tracking
from components.cluster import code
from components.figures import curves, spectrum
from components.images.store import Store
from components.mim import diagnostics, weights
from components.mim.encoder import Encoder
from components.pretrain import preview, unfinished
from components.pretrain.adopt import latest
from components.pretrain.batches import Batches
from components.pretrain.building import Start, build
from components.pretrain.cluster import cluster, scaling
from components.pretrain.contract import (
    PretrainInputs,
    PretrainMetrics,
    PretrainOutputs,
    PretrainParams,
)
from components.pretrain.history import HistoryWriter, Row, continued, following, write_csv
from components.pretrain.loop import State
from components.pretrain.worker import STATE, train_worker
from components.stage import atomic, fingerprint
from components.work import alone, finish

HISTORY = "history.jsonl"


def run(params: PretrainParams, inputs: PretrainInputs, outputs: PretrainOutputs) -> PretrainMetrics:
    """Trains, or continues this very work where it stopped, and exports the target encoder and the predictor."""
    store = Store(inputs.dataset, "train")
    batches = Batches(params, store, rank=0, world=params.scale.workers)
    steps = batches.total
    start = build(params, inputs.init)  # an encoder that doesn't fit is told before any work
    if start.report:
        progress.show("\n".join(start.report.lines()))
        if isinstance(start.model.encoder, Encoder):
            progress.show(heads_taken(params.encoder.width, params.encoder.heads))
        tracking.log_tags(start.report.tags())
    mark = fingerprint("pretrain", params, inputs)
    folder = outputs.work / mark
    progress.show(f"{steps} steps of {params.optimisation.global_batch_size} images; resume state in {folder}")
    busy = f"another process trains this very model in {folder}; waiting to use what it comes to"
    with alone(folder, busy):
        about = unfinished.begin(folder, params, inputs, steps)
        _tell(folder, about)
        result = _train(params, inputs, outputs, folder, steps)
        with result.checkpoint.as_directory() as checkpoint:
            state = torch.load(Path(checkpoint) / STATE, map_location="cpu", weights_only=True)
        _export(params, about, state, start, outputs)
        unfinished.note(folder, finished=True)
        finish(folder)
    tracking.log_figure(outputs.history)
    tracking.log_figure(outputs.spectrum)
    _log_curves(state["history"])
    return _metrics(params, state)


def _tell(folder: Path, about: unfinished.About) -> None:
    """Where this work goes on from, or what else it could."""
    if source := unfinished.origin(about):
        progress.show(f"goes on from {source}")
        tracking.log_tags({"resumed_from": source})
    if lines := unfinished.announcement(folder):
        progress.show("\n".join(lines))


def _train(
    params: PretrainParams, inputs: PretrainInputs, outputs: PretrainOutputs, folder: Path, steps: int
) -> Result:
    """The training itself, from the newest checkpoint in `folder` if there is one."""
    saved = latest(folder)
    continued(folder / HISTORY, saved["history"] if saved else [])

    def note(step: int) -> None:
        unfinished.note(folder, step=step)

    with cluster(params.scale), following(folder / HISTORY, steps, _log_curves, note):
        _show_masks(params, Store(inputs.dataset, "train"), outputs)
        trainer = TorchTrainer(
            train_worker,
            train_loop_config={"params": params.model_dump(), "dataset": str(inputs.dataset), "init": str(inputs.init)},
            scaling_config=scaling(params.scale),
            run_config=RunConfig(
                name=folder.name,
                storage_path=str(outputs.work),
                callbacks=[HistoryWriter(folder / HISTORY)],
                checkpoint_config=CheckpointConfig(num_to_keep=2),
                worker_runtime_env=code(),
            ),
        )
        return _fit(trainer)


def heads_taken(width: int, heads: int) -> str:
    """What can't be checked of a plain ViT's file, for a person to check."""
    size = width // heads
    usual = (
        "as published ViTs have it"
        if size in (64, 80, 88)
        else "published ViTs have 64, ViT-H 80, ViT-g 88: is it right?"
    )
    return f"heads: {heads}, as pretrain.encoder.heads says, since no shape tells; {size} wide each, {usual}"


def _show_masks(params: PretrainParams, store: Store, outputs: PretrainOutputs) -> None:
    """What will be asked of the encoder, to look at while it trains."""
    with atomic(outputs.masks) as path:
        preview.draw(params, store).save(path, format="PNG")
    tracking.log_figure(outputs.masks)


def _log_curves(rows: Sequence[Row]) -> None:
    tracking.log_plot("curves.png", curves(rows))


def _fit(trainer: TorchTrainer) -> Result:
    """Trains. A ValueError of a worker, such as a loss that is no number, comes out as itself, without Ray's envelope."""
    try:
        return trainer.fit()
    except WorkerGroupError as error:
        for cause in error.worker_failures.values():
            if isinstance(cause, ValueError):
                raise ValueError(str(cause)) from error
        raise


def _export(
    params: PretrainParams, work: unfinished.About, state: State, start: Start, outputs: PretrainOutputs
) -> None:
    model, before = start.model, diagnostics.spectrum(start.model.predictor)
    model.load_state_dict(state["model"], strict=True)
    about = {
        "fingerprint": work["fingerprint"],
        "params": params.model_dump(),
        "weight_init": params.weight_init,
        "seed": params.seed,
        "steps": state["step"],
    }
    if source := unfinished.origin(work):
        about["resumed_from"] = source
    if start.report:
        about |= {"licence": start.report.licence, "source_sha256": start.report.sha256}
    with atomic(outputs.predictor) as path:
        weights.save(path, model.predictor, about)
    with atomic(outputs.spectrum) as path:
        _write_spectrum(path, diagnostics.spectrum(model.predictor), before)
    if state["target"] is not None:  # MAE has none: its encoder is the trained one
        model.encoder.load_state_dict(state["target"], strict=True)
    with atomic(outputs.encoder) as path:
        weights.save(path, model.encoder, about)
    with atomic(outputs.state) as path:
        torch.save(state, path)
    with atomic(outputs.history) as path:
        write_csv(path, state["history"])


def _write_spectrum(path: Path, end: torch.Tensor, start: torch.Tensor) -> None:
    tracking.log_plot("spectrum.png", spectrum(end.tolist(), start.tolist()))
    rows = zip(range(1, len(end) + 1), end.tolist(), start.tolist(), strict=True)
    write_csv(path, [{"rank": rank, "end": after, "start": before} for rank, after, before in rows])


def _metrics(params: PretrainParams, state: State) -> PretrainMetrics:
    rows = state["history"]
    tail = rows[-max(1, len(rows) // 10) :]
    ends = [name for name in PretrainMetrics.model_fields if name.endswith("_final")]
    last = {name: rows[-1][name.removesuffix("_final")] for name in ends}
    seconds = sum(row["seconds"] for row in rows)
    images = state["step"] * params.optimisation.global_batch_size
    last |= {
        "loss_final": sum(row["loss"] for row in tail) / len(tail),
        "loss_best": min(row["loss"] for row in rows),
        "images_per_second_mean": images / seconds,
        "steps": float(state["step"]),
        "collapsed": max(row["collapsed"] for row in rows),
    }
    return PretrainMetrics(**last)
