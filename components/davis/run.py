"""Follows the first frame's objects through every video: with the encoder, untrained, by bare pixels, and not at all."""

from collections.abc import Iterable, Iterator
from typing import Any

from components import evaluation, features, progress, tracking
from components.davis import results, sheet
from components.davis.contract import DavisInputs, DavisMetrics, DavisOutputs, DavisParams
from components.davis.following import FOLLOWERS, followers
from components.davis.judging import Score
from components.davis.palette import Ids
from components.davis.sequence import Sequence, sequences
from components.davis.work import announce, resumable
from components.images.store import read_card
from components.stage import atomic, fingerprint

VERSION = 2
"""Of what is measured; raise it when the same settings begin to mean something else."""


def run(params: DavisParams, inputs: DavisInputs, outputs: DavisOutputs) -> DavisMetrics:
    """Predicts, writes and scores the masks of every sequence that has a scored frame; goes on where it was stopped."""
    found = sequences(inputs.dataset)
    videos = scorable(found, params.dataset)
    each = followers(inputs.encoder, params, features.pick(params.device), videos)
    folder = outputs.work / fingerprint("davis", params, inputs)
    with resumable(folder) as work:
        pairs = [(name, video) for name in FOLLOWERS for video in videos]
        left = announce(work, pairs, folder)
        meter = progress.Meter("davis", sum(len(video) for _, video in left), "frames")
        for name, video in left:
            progress.show(f"davis: {name}, sequence {videos.index(video) + 1}/{len(videos)} {video.name}")
            work.do(name, video, metered(each[name](video), meter))
        table = [score for name, video in pairs for score in work.scores(name, video)]
        with atomic(outputs.masks) as masks:
            for name, video in pairs:
                work.copy_masks(name, video, masks)
            picture = sheet.draw(videos, masks, table)
        with atomic(outputs.sheet) as path:
            picture.save(path, format="PNG")
        results.write_objects(outputs.scores, table)
        results.write_sequences(outputs.sequences, table)
        protocol = write_protocol(params, inputs, outputs, videos)
        for output in (outputs.sheet, outputs.scores, outputs.sequences):
            tracking.log_figure(output)
    return summarise(table, protocol, len(found) - len(videos))


def scorable(found: list[Sequence], dataset: str) -> list[Sequence]:
    """The videos with a scored frame; the others are named, never silently averaged in. Raises ValueError when none is left."""
    for video in found:
        if not video.scored:
            progress.show(f"davis: {video.name} is left out: no mask is left between its first and its last")
    videos = [video for video in found if video.scored]
    if not videos:
        raise ValueError(
            f"dataset {dataset!r}: none of its {len(found)} sequences has a mask between its first and its last one, "
            f"so nothing can be scored; name a dataset with longer or annotated videos in params/davis.yaml"
        )
    return videos


def metered(frames: Iterable[Ids], meter: progress.Meter) -> Iterator[Ids]:
    """The same frames, each counted when it is done with."""
    for ids_HW in frames:
        yield ids_HW
        meter.advance(1)


def write_protocol(params: DavisParams, inputs: DavisInputs, outputs: DavisOutputs, videos: list[Sequence]) -> str:
    """The protocol's hash. Counts of sequences, objects and frames tell DAVIS-2017 val (30, 61, 1999) from all else."""
    counts = {"sequences": len(videos), "objects": sum(video.objects for video in videos)}
    measured_on: dict[str, Any] = evaluation.data(read_card(inputs.dataset), {"val": sum(map(len, videos))}) | counts
    decided_by = evaluation.settings(params, without=("dataset",))
    return evaluation.write_protocol(outputs.protocol, "davis", VERSION, decided_by, measured_on)


def summarise(table: list[Score], protocol: str, excluded: int) -> DavisMetrics:
    """Means over all objects of each follower, and what pretraining gained."""
    values: dict[str, float] = {}
    for name in FOLLOWERS:
        values |= results.summary(table, name, "" if name == "pretrained" else f"_{name}")
    pretrained = [score for score in table if score.encoder == "pretrained"]
    frames = {score.sequence: score.frames for score in pretrained}
    return DavisMetrics(
        protocol=protocol,
        **values,
        jf_mean_gain=values["jf_mean"] - values["jf_mean_untrained"],
        sequences=len(frames),
        objects=len(pretrained),
        frames=sum(frames.values()),
        sequences_excluded=excluded,
    )
