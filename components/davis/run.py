"""Follows the first frame's objects through every video, with the pretrained and with the untrained encoder."""

from collections.abc import Iterable, Iterator
from pathlib import Path

from torch import Tensor

from components import progress, tracking
from components.davis import results, scores, sheet
from components.davis.contract import DavisInputs, DavisMetrics, DavisOutputs, DavisParams
from components.davis.labels import harden, soften
from components.davis.palette import Ids, write_ids
from components.davis.propagation import propagate
from components.davis.sequence import Sequence, grid_size, pixels, sequences
from components.features import token_grid
from components.mim.encoder import VisionEncoder
from components.mim.weights import load_encoder, untrained_encoder
from components.stage import atomic


def run(params: DavisParams, inputs: DavisInputs, outputs: DavisOutputs) -> DavisMetrics:
    """Predicts, writes and scores the masks of every sequence that has a scored frame."""
    found = sequences(inputs.dataset)
    videos = scorable(found, params.dataset)
    encoders = {"pretrained": load_encoder(inputs.encoder), "untrained": untrained_encoder(inputs.encoder)}
    meter = progress.Meter("davis", len(encoders) * sum(map(len, videos)), "frames")
    table: list[results.Score] = []
    with atomic(outputs.masks) as masks:
        for name, encoder in encoders.items():
            for number, video in enumerate(videos, 1):
                progress.show(f"davis: {name} encoder, sequence {number}/{len(videos)} {video.name}")
                predicted = metered(predictions(video, encoder, params), meter)
                table += judge(video, predicted, name, masks / name / video.name)
        picture = sheet.draw(videos, masks / "pretrained")
    with atomic(outputs.sheet) as path:
        picture.save(path, format="PNG")
    results.write_table(outputs.scores, table)
    tracking.log_figure(outputs.sheet)
    tracking.log_figure(outputs.scores)
    return results.summarise(table, sequences_excluded=len(found) - len(videos))


def scorable(found: list[Sequence], dataset: str) -> list[Sequence]:
    """The videos with a scored frame; the others are named, never silently averaged in. Raises ValueError when none is left."""
    for video in found:
        if not video.scored:
            progress.show(f"davis: {video.name} is left out: no frame between its first and its last has a mask")
    videos = [video for video in found if video.scored]
    if not videos:
        raise ValueError(
            f"dataset {dataset!r}: none of its {len(found)} sequences has a mask between its first and its last frame, "
            f"so nothing can be scored; name a dataset with longer or annotated videos in params/davis.yaml"
        )
    return videos


def judge(video: Sequence, predicted: Iterable[Ids], encoder: str, folder: Path) -> list[results.Score]:
    """Writes the predicted ids of every frame into `folder`; the scores of the video's objects."""
    folder.mkdir(parents=True)
    scored, objects = video.scored, range(1, video.objects + 1)
    j: dict[int, list[float]] = {label: [] for label in objects}
    f: dict[int, list[float]] = {label: [] for label in objects}
    for frame, ids_HW in enumerate(predicted):
        write_ids(folder / f"{video.paths[frame].stem}.png", ids_HW)
        if frame not in scored:
            continue
        truth_HW = video.truth(frame)
        for label in objects:
            pair = ids_HW == label, truth_HW == label
            j[label].append(scores.region_overlap(*pair))
            f[label].append(scores.boundary_agreement(*pair))
    return [
        results.Score(encoder, video.name, label, len(scored), scores.statistics(j[label]), scores.statistics(f[label]))
        for label in objects
    ]


def metered(frames: Iterable[Ids], meter: progress.Meter) -> Iterator[Ids]:
    """The same frames, each counted when it is done with."""
    for ids_HW in frames:
        yield ids_HW
        meter.advance(1)


def predictions(video: Sequence, encoder: VisionEncoder, params: DavisParams) -> Iterator[Ids]:
    """Object ids [H,W] of every frame in order; the first frame's are given."""
    patch = encoder.config.patch_size
    grid = grid_size(*video.size, params.short_side, patch, params.profile)
    first_HW = video.truth(0)
    yield first_HW
    soft_labels = propagate(
        features(video, encoder, grid, params),
        soften(first_HW, video.objects, grid, params.profile),
        radius=params.radius,
        top_k=params.top_k,
        temperature=params.temperature,
        context_frames=params.context_frames,
    )
    for labels_Khw in soft_labels:
        yield harden(labels_Khw, video.size, patch, params.profile)


def features(video: Sequence, encoder: VisionEncoder, grid: tuple[int, int], params: DavisParams) -> Iterator[Tensor]:
    """The token grid [h,w,D] of every frame in order."""
    height, width = (side * encoder.config.patch_size for side in grid)
    for frame in range(len(video)):
        yield token_grid(encoder, pixels(video.image(frame), height, width, params.profile))[0]
