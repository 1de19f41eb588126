"""The files of a toy finetuning, and one thread: small products in several mostly wait for each other."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from components.finetune.contract import FinetuneInputs, FinetuneOutputs
from components.mim.weights import save

from .toys import encoder


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def inputs(tmp_path: Path, toy_images: Path) -> FinetuneInputs:
    """The pretrained encoder and the untrained one are the same: the file was written before the first step."""
    save(tmp_path / "encoder.safetensors", encoder(seed=7), {"seed": 7, "weight_init": "fan_in"})
    (tmp_path / "all.txt").write_text("*\n")
    return FinetuneInputs(encoder=tmp_path / "encoder.safetensors", dataset=toy_images, train_list=tmp_path / "all.txt")


@pytest.fixture
def outputs() -> Callable[[Path], FinetuneOutputs]:
    return lambda folder: FinetuneOutputs(**{name: folder / name for name in FinetuneOutputs.model_fields})
