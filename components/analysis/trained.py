"""What is analysed: encoder, predictor and curves of one run, and the settings that they were trained with."""

import csv
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from components.mim.encoder import VisionEncoder
from components.mim.grid import MaskSettings, Size, patch_grid
from components.mim.objectives import ObjectiveSettings
from components.mim.positions import StopSettings
from components.mim.predictor import Predictor
from components.mim.weights import load_encoder, load_predictor, read_about

Curves = dict[str, list[float]]


@dataclass(frozen=True)
class Trained:
    """One run: its two networks on one device, and what its files record of it."""

    encoder: VisionEncoder
    predictor: Predictor
    stop: StopSettings
    masks: MaskSettings
    objective: ObjectiveSettings
    steps: int

    @property
    def grid(self) -> Size:
        """The patches of an image of the size that the encoder was pretrained at."""
        return patch_grid(self.encoder.config.image_size, self.encoder.config.patch_size)

    @property
    def device(self) -> torch.device:
        """Where both networks are."""
        return self.predictor.embed.weight.device

    @property
    def noisy(self) -> bool:
        """Whether the run had any noise."""
        return self.stop.noise_std > 0

    def mark(self) -> Tensor:
        """What every masked token is given besides its position, [P]: m̃, or b in the released code's form, or their sum."""
        nowhere = torch.zeros(1, 1, self.predictor.config.width, device=self.device)
        return self.predictor.masked_tokens(nowhere, None)[0, 0]

    def mark_names(self) -> dict[str, str]:
        """The parameters that make up `mark`: their names in the history, and in a legend."""
        config, names = self.predictor.config, {"mask_token": "m̃, mask token", "b": "b, bias of A"}
        live = {"mask_token": config.mask_token, "b": config.bias_on_noise}
        return {name: meaning for name, meaning in names.items() if live[name]}


def load(encoder_path: Path, predictor_path: Path, device: torch.device) -> Trained:
    """The run whose files these are. Raises ValueError for files of another kind, or of two runs that do not fit."""
    encoder, (found, about) = load_encoder(encoder_path), read_about(predictor_path)
    if "encoder_width" not in found:
        raise ValueError(
            f"{str(predictor_path)!r} holds an encoder; a predictor is needed here, such as models/predictor.safetensors"
        )
    predictor, config = load_predictor(predictor_path), encoder.config
    _check_fit(config, predictor.config, encoder_path, predictor_path)
    marks = [read_about(path)[1].get("fingerprint") for path in (encoder_path, predictor_path)]
    if marks[0] != marks[1] or "params" not in about:
        raise ValueError(
            f"{str(encoder_path)!r} is of run {marks[0]} and {str(predictor_path)!r} of run {marks[1]}; a prediction means nothing "
            f"to another run's encoder: make both with one `dvc repro pretrain`"
        )
    stop, masks, objective = (SimpleNamespace(**about["params"][name]) for name in ("stop", "masks", "objective"))
    return Trained(
        encoder.to(device),
        predictor.to(device),
        cast(StopSettings, stop),
        cast(MaskSettings, masks),
        cast(ObjectiveSettings, objective),
        about["steps"],
    )


def _check_fit(encoder: Any, predictor: Any, encoder_path: Path, predictor_path: Path) -> None:
    """Said before anything is computed, since torch would speak of matrices."""
    files = f"{str(encoder_path)!r} and {str(predictor_path)!r} do not fit"
    if encoder.width != predictor.encoder_width:
        raise ValueError(
            f"{files}: the encoder's tokens are {encoder.width} wide, the predictor takes {predictor.encoder_width}; use the two "
            f"files of one run"
        )
    side = patch_grid(encoder.image_size, encoder.patch_size).h
    if predictor.grid_side != side:
        raise ValueError(
            f"{files}: the encoder has {side}×{side} patches, the predictor was trained on {predictor.grid_side}×"
            f"{predictor.grid_side}; use the two files of one run"
        )


class Curve(NamedTuple):
    """What is read from a table, and the columns that it must have."""

    path: Path
    columns: tuple[str, ...]

    def read(self) -> Curves:
        """The columns by name. Raises ValueError for a table without rows, one of them or with what is no number."""
        with self.path.open(newline="", encoding="utf-8") as file:
            reader = csv.DictReader(file)
            missing = [name for name in self.columns if name not in (reader.fieldnames or ())]
            rows = list(reader)
        if missing or not rows:
            lack = f"lacks the columns {', '.join(missing)}" if missing else "has no rows"
            raise ValueError(f"{str(self.path)!r} {lack}; it must be a table of stage pretrain: `dvc repro pretrain`")
        try:
            return {name: [float(row[name]) for row in rows] for name in self.columns}
        except (TypeError, ValueError) as error:
            raise ValueError(
                f"{str(self.path)!r} holds what is no number ({error}); make it anew: `dvc repro pretrain`"
            ) from error


def read_history(trained: Trained, path: Path) -> Curves:
    """Step and norms of A and of what marks masked tokens. Raises ValueError when they are another run's."""
    names = [f"{name}_norm{kind}" for name in ("A", *trained.mark_names()) for kind in ("", "_l1")]
    curves = Curve(path, ("step", *names)).read()
    if curves["step"][-1] != trained.steps:
        raise ValueError(
            f"{str(path)!r} ends at step {curves['step'][-1]:.0f}, the encoder was trained for {trained.steps} steps; they must be "
            f"of one run: `dvc repro pretrain`"
        )
    return curves


def read_eigenvalues(path: Path) -> Curves:
    """Eigenvalues of AAᵀ, the largest first, at the `start` and at the `end` of training."""
    return Curve(path, ("end", "start")).read()
