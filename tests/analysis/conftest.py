"""Runs of pretraining as stage `pretrain` leaves them, at toy size and with weights that a test can choose."""

import csv
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from components.analysis.contract import AnalysisInputs
from components.analysis.trained import Trained, load
from components.mim import diagnostics
from components.mim.encoder import Encoder, EncoderConfig, VisionEncoder
from components.mim.initialise import initialise
from components.mim.predictor import Predictor, PredictorConfig
from components.mim.timm_encoder import TimmEncoder, timm_config
from components.mim.weights import save
from components.pretrain.contract import PretrainParams
from components.stage import read_yaml

STEPS = 20


def write_csv(path: Path, rows: list[dict[str, float]]) -> Path:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return path


class Run:
    """Files of one run in a folder; `change` may set weights before they are written."""

    def __init__(
        self,
        folder: Path,
        change: Callable[[VisionEncoder, Predictor], None] = lambda encoder, predictor: None,
        *,
        encoder: dict[str, Any] | None = None,
        predictor: dict[str, Any] | None = None,
        stop: dict[str, Any] | None = None,
        masks: dict[str, Any] | None = None,
        objective: dict[str, Any] | None = None,
        timm: tuple[str, dict[str, Any]] | None = None,
        fingerprint: str = "one",
    ) -> None:
        values = read_yaml(Path(__file__).parents[2] / "params/pretrain.yaml")
        values["encoder"] |= {"image_size": 32, "patch_size": 8, "width": 24, "layers": 2, "heads": 2} | (encoder or {})
        values["predictor"] |= {"width": 16, "layers": 1, "heads": 2} | (predictor or {})
        for name, changes in (("stop", stop), ("masks", masks), ("objective", objective)):
            values[name] |= changes or {}
        params = PretrainParams.model_validate(values)
        sizes, pixels = params.encoder, params.objective.name == "mae"
        network: VisionEncoder = (
            TimmEncoder(timm_config(*timm)) if timm else Encoder(EncoderConfig(**sizes.model_dump()))
        )
        head = Predictor(
            PredictorConfig(
                encoder_width=sizes.width,
                output_width=3 * sizes.patch_size**2 if pixels else sizes.width,
                mask_token=params.stop.mask_token,
                bias_on_noise=params.stop.bias_on_noise,
                covariance=params.stop.covariance,
                grid_side=sizes.image_size // sizes.patch_size,
                low_resolution=params.objective.low_resolution != "none",
                **params.predictor.model_dump(),
            )
        )
        if not timm:
            initialise(network, 0, "fan_in", "encoder.")
        initialise(head, 0, "fan_in", "predictor.")
        before = diagnostics.spectrum(head)
        with torch.no_grad():
            change(network, head)
        about = {
            "fingerprint": fingerprint,
            "params": params.model_dump(),
            "weight_init": "fan_in",
            "seed": 0,
            "steps": STEPS,
        }
        folder.mkdir(parents=True, exist_ok=True)
        self.encoder, self.predictor = folder / "encoder.safetensors", folder / "predictor.safetensors"
        save(self.encoder, network, about)
        save(self.predictor, head, about)
        side = sizes.image_size // sizes.patch_size
        rows = [{"step": float(step), **diagnostics.norms(head, params.stop, (side, side))} for step in (1, STEPS)]
        self.history = write_csv(folder / "history.csv", rows)
        pairs = enumerate(zip(diagnostics.spectrum(head).tolist(), before.tolist(), strict=True), 1)
        self.eigenvalues = write_csv(
            folder / "eigenvalues.csv", [{"rank": rank, "end": end, "start": start} for rank, (end, start) in pairs]
        )

    def load(self) -> Trained:
        return load(self.encoder, self.predictor, torch.device("cpu"))

    def inputs(self, dataset: Path, **changes: Path) -> AnalysisInputs:
        names = ("encoder", "predictor", "history", "eigenvalues")
        return AnalysisInputs(**({name: getattr(self, name) for name in names} | {"dataset": dataset} | changes))


@pytest.fixture
def make(tmp_path: Path) -> Callable[..., Run]:
    """A run with these changes to the committed params."""
    count = iter(range(100))
    return lambda *change, **changes: Run(tmp_path / f"run-{next(count)}", *change, **changes)
