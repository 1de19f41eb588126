"""The preflight as Markdown that reads well as plain text, too."""

from collections.abc import Sequence

from components.preflight.dataset import Dataset
from components.preflight.devices import GIB
from components.preflight.memory import CONTEXT, FRAGMENTS, disk, shared
from components.preflight.prediction import Costs, Prediction, warnings
from components.report.markdown import grid

MILLION = 1_000_000


def write(cost: Costs, predictions: Sequence[Prediction], dataset: Dataset) -> str:
    """Model, one image, memory, disk and time on each of the devices, then what to look at."""
    told = warnings(cost, predictions)
    parts = ["# Preflight: what pretraining costs", _summary(cost, dataset)]
    parts += ["## The model", _model(cost), "## One image", _image(cost)]
    parts += ["## Memory of each device", _memory(cost, dataset), "## On the disk", _disk(cost, dataset)]
    parts += ["## Time", _time(cost, predictions, dataset)]
    if told:
        parts += ["## Before you start", "\n".join(f"- {line}" for line in told)]
    return "\n\n".join(parts) + "\n"


def _summary(cost: Costs, dataset: Dataset) -> str:
    encoder, rates, scale = cost.params.encoder, cost.params.optimisation, cost.params.scale
    together = f", {cost.at_once} at once" if cost.at_once < cost.images else ""
    count = "an unknown number of" if dataset.images is None else f"{dataset.images:,}"
    return (
        f"{cost.params.objective.name}, width {encoder.width}, {encoder.layers} layers, {encoder.image_size} pixels in patches of "
        f"{encoder.patch_size}; {rates.epochs} epochs of {count} images (said by {dataset.source}), {rates.global_batch_size} in a step: "
        f"{scale.workers} × {cost.images}{together}, {scale.precision}{', activation checkpointing' * scale.activation_checkpointing}"
        f"{', in shards' * (scale.sharding == 'fsdp')}."
    )


def _model(cost: Costs) -> str:
    size = cost.size
    rows = [
        ("encoder", size.encoder),
        ("predictor", size.predictor),
        ("of it A and b", size.projection),
        ("of it mask token", size.mask_token),
        ("target encoder, not trained", size.target),
    ]
    return grid([("parameters", "numbers"), *((name, f"{count:,}") for name, count in rows)], words=1)


def _image(cost: Costs) -> str:
    count, tokens = cost.flops, cost.tokens
    rows = [
        ("encoder", tokens.prefix + tokens.context, count.encoder_forward, count.encoder_backward),
        ("target encoder", tokens.prefix + tokens.patches if count.target else 0, count.target, 0.0),
        (
            "predictor",
            sum(seen for seen, _ in tokens.passes(cost.params.predictor.passes == "joint")),
            count.predictor_forward,
            count.predictor_backward,
        ),
        ("computed again", 0, 0.0, count.again),
    ]
    cells = [(name, f"{length:.0f}", f"{there / 1e9:.2f}", f"{back / 1e9:.2f}") for name, length, there, back in rows]
    total = ("together", "", f"{count.forward / 1e9:.2f}", f"{(count.backward + count.again) / 1e9:.2f}")
    return grid([("part", "mean tokens", "GFLOP forward", "GFLOP backward"), *cells, total], words=1)


def _memory(cost: Costs, dataset: Dataset) -> str:
    held = cost.memory
    names = {
        "parameters": held.parameters,
        "gradients": held.gradients,
        "layers that FSDP has whole" if cost.params.scale.sharding == "fsdp" else "DDP's buffers": held.exchange,
        "AdamW's moments": held.optimiser,
        "target encoder": held.target,
        "bf16 casts of weights": held.casts,
        f"activations of {cost.at_once} images": held.activations,
        "working memory, images and targets": held.working,
    }
    if cost.params.scale.device == "gpu":
        names[f"together, × {FRAGMENTS} and {CONTEXT / GIB:.0f} GiB"] = held.needed
    else:
        names["together"] = held.tensors
    if cost.params.scale.loaders:
        names["on the host, for each worker: loaders' batches in /dev/shm"] = shared(cost.params, cost.images)
    names["on the host of rank 0: the checkpoint being written"] = disk(cost.params, cost.size, dataset).checkpoint
    return grid([("bytes of", "GiB"), *((name, f"{each / GIB:.3f}") for name, each in names.items())], words=1)


def _disk(cost: Costs, dataset: Dataset) -> str:
    found = disk(cost.params, cost.size, dataset)
    rows = [
        ("a checkpoint", f"{found.checkpoint / GIB:.3f}"),
        (
            f"{'unknown' if found.kept is None else found.kept} of them at most, with the one being written",
            "unknown" if found.checkpoints is None else f"{found.checkpoints / GIB:.3f}",
        ),
        ("final state, encoder, predictor", f"{found.outputs / GIB:.3f}"),
        ("prepared dataset", "unknown" if found.dataset is None else f"{found.dataset / GIB:.3f}"),
    ]
    return grid([("bytes of", "GiB"), *rows], words=1)


def _time(cost: Costs, predictions: Sequence[Prediction], dataset: Dataset) -> str:
    workers, scale = cost.params.scale.workers, cost.params.scale
    images, unit = MILLION, " for 1 M images"
    if dataset.images is not None:
        batch = cost.params.optimisation.global_batch_size
        images, unit = cost.params.optimisation.epochs * dataset.images // batch * batch, ""
    head = ("device", "fits", "s/step", "images/s", "of each core", f"hours{unit}", "device-hours")
    rows = [
        (
            f"{workers} × {each.device.name}",
            "yes" if each.fits else "no",
            f"{each.step_s:.3g}",
            f"{each.images_per_s:,.0f}",
            f"{each.images_per_s / (workers * scale.cpus_per_worker):,.0f}",
            _number(each.hours(images)),
            _number(workers * each.hours(images)),
        )
        for each in predictions
    ]
    notes = "Loaders must deliver the images/s, each core of scale.cpus_per_worker its share. docs/preflight.md has the model behind this."
    if not predictions:
        return "Not told for a CPU without measuring it: `python -m components.preflight` does."
    return f"{grid([head, *rows], words=2)}\n\n{notes}"


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
