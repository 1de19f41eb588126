"""What the `davis` stage takes, makes and measures."""

from pathlib import Path
from typing import Literal

from pydantic import Field

from components.evaluation import EvaluationParams, Scores
from components.stage import Inputs, Outputs


class DavisParams(EvaluationParams):
    """Video object segmentation by label propagation: no training, the frozen features alone decide."""

    dataset: str = Field(
        min_length=1,
        description="Name of a prepared video dataset (an entry of params/prepare.yaml). Results of different datasets do not compare.",
    )
    profile: Literal["paper", "clean"] = Field(
        description="`paper` repeats DINO's protocol with its accidents (red std .228, aliased resize, small objects lost in the first "
        "labels, faded objects re-inflated); choose it to compare with published numbers. `clean` mends them.",
    )
    short_side: int = Field(
        ge=8,
        le=4096,
        description="Pixels of a frame's short side when it enters the encoder, rounded to whole patches. 480 at patch 16 and 120 at "
        "patch 4 give 854×480 videos DINO's 30×52 tokens. Twice as much costs 16 times the time in attention and affinities.",
    )
    positions: Literal["stretched", "continued"] = Field(
        description="How an encoder with fixed sin-cos positions sees the video's larger grid: `stretched` resamples the table of its "
        "own grid (bicubic, as DINO's protocol does), `continued` counts rows and columns on. Learned tables are always stretched."
    )
    context_frames: int = Field(
        ge=0,
        le=100,
        description="Recent frames whose predicted labels are passed on, besides the first frame, which always is. More steadies slow "
        "videos and costs time in proportion. DINO uses 7.",
    )
    radius: int = Field(
        ge=1,
        le=1024,
        description="How far, in tokens and in any direction, an object may seem to move between two frames. Too small loses fast "
        "objects, too large invites look-alikes. DINO uses 12 on a 30×52 grid; from the grid's size on there is no limit.",
    )
    top_k: int = Field(
        ge=1,
        le=1000,
        description="Number of most similar tokens, over all context frames together, that vote on the label of a token. DINO uses 5.",
    )
    temperature: float = Field(
        gt=0,
        le=10,
        description="Softmax temperature of the votes on cosine similarity: small lets the best match decide, large averages the "
        "top_k. DINO uses 0.1.",
    )


class DavisInputs(Inputs):
    """What is judged, and on what."""

    encoder: Path = Field(description="self-describing encoder weights (safetensors)")
    dataset: Path = Field(description="prepared folder of a dataset of kind video")


class DavisOutputs(Outputs):
    """Predictions in the official layout, their scores and a sheet to look at."""

    masks: Path = Field(
        description="folder of palette PNGs <encoder>/<sequence>/<frame>.png that the official DAVIS-2017 tool can score"
    )
    scores: Path = Field(description="CSV of J and F per encoder, sequence and object, in percent")
    sequences: Path = Field(description="CSV of J and F per encoder and sequence, means over its objects, in percent")
    sheet: Path = Field(
        description="PNG: some frames of every sequence with the encoder's prediction, the baselines' of the last one, and the true outline"
    )
    protocol: Path = Field(description="JSON of the settings and the data that the scores belong to")
    metrics: Path = Field(description="JSON of the metrics")
    run: Path = Field(description="JSON that links to the MLflow run")
    work: Path = Field(description="folder of finished sequences, by fingerprint, until the stage is done")


class DavisMetrics(Scores):
    """J (region overlap) and F (boundary agreement) in percent, means over all objects of all sequences.

    `_untrained` is the encoder before its first step, `_pixels` the same propagation of the patches' own pixels, `_copy` the
    first mask in every frame.
    """

    jf_mean: float
    j_mean: float
    j_recall: float
    j_decay: float
    f_mean: float
    f_recall: float
    f_decay: float
    jf_mean_untrained: float
    j_mean_untrained: float
    j_recall_untrained: float
    j_decay_untrained: float
    f_mean_untrained: float
    f_recall_untrained: float
    f_decay_untrained: float
    jf_mean_pixels: float
    j_mean_pixels: float
    j_recall_pixels: float
    j_decay_pixels: float
    f_mean_pixels: float
    f_recall_pixels: float
    f_decay_pixels: float
    jf_mean_copy: float
    j_mean_copy: float
    j_recall_copy: float
    j_decay_copy: float
    f_mean_copy: float
    f_recall_copy: float
    f_decay_copy: float
    jf_mean_gain: float
    sequences: int
    objects: int
    frames: int
    sequences_excluded: int
