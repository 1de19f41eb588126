"""Pretraining: checks, training in Ray or in this process, and the files that go on."""

from collections.abc import Sequence
from pathlib import Path

import torch

from components import progress, tracking
from components.figures import curves, spectrum
from components.images.store import Store
from components.mim import diagnostics
from components.mim.encoder import Encoder
from components.pretrain import checkpoints, local, preview, resuming, unfinished
from components.pretrain import state as states
from components.pretrain.batches import Batches
from components.pretrain.building import Start, build
from components.pretrain.contract import (
    PretrainInputs,
    PretrainMetrics,
    PretrainOutputs,
    PretrainParams,
)
from components.pretrain.following import Listener, following
from components.pretrain.held_out import held_out
from components.pretrain.history import HISTORY, Row, write_csv
from components.pretrain.session import Job
from components.pretrain.state import State
from components.pretrain.stopping import Stop
from components.stage import atomic, fingerprint
from components.work import alone, finish

SCORES = ("quality_knn_top1", "quality_probe_top1")


def run(params: PretrainParams, inputs: PretrainInputs, outputs: PretrainOutputs) -> PretrainMetrics:
    """Trains, or continues this very work where it stopped, and exports the target encoder and the predictor."""
    store = Store(inputs.dataset, "train")
    batches = Batches(params, store, rank=0, world=params.scale.workers)
    steps = batches.total
    if steps and params.quality.every_epochs:
        held_out(params.quality, inputs.quality)  # images that won't do are told before any work, too
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
        state = _train(params, inputs, outputs, folder, about)
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
    params: PretrainParams, inputs: PretrainInputs, outputs: PretrainOutputs, folder: Path, about: unfinished.About
) -> State:
    """The training itself, from the newest checkpoint in `folder` if there is one; the state at its end."""
    steps, found = about["steps"], resuming.begin(folder, about["step"])
    job, stop = Job(params, inputs.dataset, inputs.init, inputs.quality, folder, found), Stop()
    with stop.listening(), following(folder / HISTORY, steps, _Record(folder)):
        _show_masks(params, Store(inputs.dataset, "train"), outputs)
        if params.scale.backend == "ray":
            from components.pretrain import remote  # takes seconds to import

            done = remote.train(job, stop)
        else:
            done = local.train(job, stop)
    if not done:
        newest = checkpoints.newest(folder)
        progress.show(
            f"stopped; started again, training goes on from step {checkpoints.step_of(newest) if newest else 0}"
        )
        stop.end()
    return resuming.ended(folder, steps)


class _Record(Listener):
    """The rows in MLflow, and how far training is in the resume state's `about.json`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def points(self, row: Row, ranks: Sequence[Row], when: int) -> None:
        """Also those of each worker where there are several."""
        named = {f"pretrain/{name}": value for name, value in row.items() if name != "step"}
        for rank, own in enumerate(ranks if len(ranks) > 1 else ()):
            named |= {f"pretrain/rank{rank}/{name}": value for name, value in own.items()}
        tracking.log_points((name, value, when, int(row["step"])) for name, value in named.items())

    def drawn(self, rows: Sequence[Row]) -> None:
        """As a picture."""
        _log_curves(rows)

    def saved(self, step: int) -> None:
        """As above."""
        unfinished.note(self._folder, step=step)

    def warned(self, name: str, text: str) -> None:
        """As a tag."""
        tracking.log_tags({name: text})


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


def _export(
    params: PretrainParams, work: unfinished.About, state: State, start: Start, outputs: PretrainOutputs
) -> None:
    before = diagnostics.spectrum(start.model.predictor)
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
    local.export(start.model, state, outputs.encoder, outputs.predictor, about)
    with atomic(outputs.spectrum) as path:
        _write_spectrum(path, diagnostics.spectrum(start.model.predictor), before)
    with atomic(outputs.state) as path:
        states.write(path, state, states.flat(state))
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
    last: dict[str, float | None] = {name: _last(rows, name.removesuffix("_final")) for name in ends}
    seconds = sum(row["seconds"] for row in rows)
    images = state["step"] * params.optimisation.global_batch_size
    last |= {
        "loss_final": sum(row["loss"] for row in tail) / len(tail),
        "loss_best": min(row["loss"] for row in rows),
        "images_per_second_mean": images / seconds,
        "steps": float(state["step"]),
        "collapsed": max(row["collapsed"] for row in rows),
        **{f"{name}_best": max((row[name] for row in rows if name in row), default=None) for name in SCORES},
    }
    return PretrainMetrics.model_validate(last)


def _last(rows: Sequence[Row], curve: str) -> float | None:
    """The last value of a curve; None for one that no row has."""
    return next((row[curve] for row in reversed(rows) if curve in row), None)
