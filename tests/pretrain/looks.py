"""What tests of quality share: params that ask for it, what measures, and what it says."""

from pathlib import Path
from typing import Any

import torch

from components.images.store import Store
from components.pretrain.batches import Batches
from components.pretrain.contract import PretrainParams
from components.pretrain.parallel import Alone
from components.pretrain.quality import Quality, Row

CPU = torch.device("cpu")


def parameters(tiny: dict[str, Any], **changed: Any) -> PretrainParams:
    return PretrainParams(**tiny | {"quality": tiny["quality"] | {"every_epochs": 1.0} | changed})


def watch(params: PretrainParams, toy: Path, parallel: Alone | None = None) -> Quality:
    made = Quality.of(params, toy, parallel or Alone(CPU), Batches(params, Store(toy, "train"), 0, 1))
    assert made
    return made


def scores(row: Row) -> Row:
    """All but the time it took."""
    return {name: value for name, value in row.items() if name != "quality_seconds"}
