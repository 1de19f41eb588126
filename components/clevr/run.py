"""Counting and distance heads on scenes of CLEVR's format, for the pretrained encoder and the untrained one."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from PIL import Image

from components import figures, progress, tracking
from components.clevr.contract import ClevrInputs, ClevrMetrics, ClevrOutputs, ClevrParams
from components.clevr.labels import COUNT_CLASSES, DISTANCE_CLASSES, count_labels, distance_labels
from components.features import Features, pooled
from components.images.transforms import Pixels, direct_resize
from components.mim.encoder import VisionEncoder
from components.probe.choice import Choice, Rows, Task, choose, gain, split, write_confusion, write_heads
from components.probe.dataset import Part, encoders, open_part


def run(params: ClevrParams, inputs: ClevrInputs, outputs: ClevrOutputs) -> ClevrMetrics:
    """Both tasks on one encoding of the scenes. Raises ValueError for a dataset, labels or limits that cannot work."""
    train = open_part(inputs.dataset, params.dataset, "scenes", params.train_split, params.train_limit)
    test = open_part(inputs.dataset, params.dataset, "scenes", params.test_split, params.test_limit)
    learned, judged = labels(train), labels(test)
    tasks = {
        "count": Task("clevr count", COUNT_CLASSES, params.count_epochs),
        "distance": Task("clevr distance", DISTANCE_CLASSES, params.distance_epochs),
    }
    for key, task in tasks.items():
        split(params, task, learned[key], train.column("path"), judged[key])
    paths, test_paths = np.tile(train.column("path"), 2), test.column("path")
    choices: dict[str, dict[str, Choice]] = {key: {} for key in tasks}
    for kind, encoder in encoders(inputs.encoder, params.height, params.width):
        seen, judge = _both_views(params, train, encoder, kind), _encode(params, test, encoder, kind, mirror=False)
        for key, task in tasks.items():
            rows = Rows(seen, np.tile(learned[key], 2), paths)
            choices[key][kind] = choose(params, task, rows, Rows(judge, judged[key], test_paths))
            progress.show(f"{task.name}: {kind} {choices[key][kind].sentence()}")
    _write(choices["count"], tasks["count"], judged["count"], outputs.count_heads, outputs.count_confusion)
    _write(
        choices["distance"], tasks["distance"], judged["distance"], outputs.distance_heads, outputs.distance_confusion
    )
    return _metrics(choices, len(test.rows))


def labels(part: Part) -> dict[str, np.ndarray]:
    """Count and distance classes [n] of the scenes in use."""
    paths = part.column("path")
    return {
        "count": count_labels(part.column("count"), paths),
        "distance": distance_labels(part.column("distance"), paths),
    }


def _both_views(params: ClevrParams, part: Part, encoder: VisionEncoder, kind: str) -> Features:
    """Each scene as it is, then each mirrored: with fixed features this is what a random flip becomes."""
    plain, mirrored = (_encode(params, part, encoder, kind, mirror) for mirror in (False, True))
    return {name: np.concatenate([plain[name], mirrored[name]]) for name in plain}


def _encode(params: ClevrParams, part: Part, encoder: VisionEncoder, kind: str, mirror: bool) -> Features:
    def view(image: Image.Image) -> Pixels:
        pixels = direct_resize(image, params.height, params.width)
        return pixels[:, ::-1] if mirror else pixels

    return pooled(
        encoder,
        part.store,
        part.rows,
        view,
        layers=params.layers,
        batch_size=params.encoding_batch_size,
        label=f"clevr: {kind} features of {part.store.split}{', mirrored' if mirror else ''}",
    )


def _write(choices: Mapping[str, Choice], task: Task, actual: np.ndarray, heads: Path, confusion: Path) -> None:
    chosen = choices["pretrained"]
    write_heads(heads, choices)
    predicted = chosen.predictions[chosen.best()]
    write_confusion(confusion, task.classes, actual, predicted)
    tracking.log_figure(heads)
    tracking.log_figure(confusion)
    tracking.log_plot(f"{confusion.stem}.png", figures.confusion(task.classes, actual, predicted))


def _metrics(choices: Mapping[str, Mapping[str, Choice]], scored: int) -> ClevrMetrics:
    count, count_untrained = (choices["count"][kind].score() for kind in ("pretrained", "untrained"))
    distance, distance_untrained = (choices["distance"][kind].score() for kind in ("pretrained", "untrained"))
    return ClevrMetrics(
        count_top1=count,
        count_top1_untrained=count_untrained,
        count_top1_gain=gain(count, count_untrained),
        distance_top1=distance,
        distance_top1_untrained=distance_untrained,
        distance_top1_gain=gain(distance, distance_untrained),
        scored=scored,
    )
