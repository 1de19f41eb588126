"""Every row of the paper's Tables 1 to 8 has presets (docs/paper-tables.md), and each of them builds and takes a step."""

import math
import re
from collections import Counter
from pathlib import Path

import pytest
import torch

from components.images.store import Store
from components.pretrain.batches import Batches
from components.pretrain.contract import PretrainParams
from components.pretrain.loop import Trainer
from components.pretrain.parallel import Alone
from components.stage import validate
from flows import presets

from ..mim import published_files as published
from .test_recipes import PROJECT, toy_size

ROWS_OF_THE_PAPER = {1: 6, 2: 10, 3: 9, 4: 10, 5: 2, 6: 3, 7: 4, 8: 4}
LINE = re.compile(r"^\| (?P<row>[^|]+) \| (?P<tables>[1-8 ]+) \| `(?P<presets>[a-z0-9_,]+)` \|$", re.MULTILINE)
ENTRIES = [match.groupdict() for match in LINE.finditer((PROJECT / "docs/paper-tables.md").read_text())]


def test_the_page_has_as_many_rows_as_each_table_of_the_paper() -> None:
    counted = Counter(int(table) for entry in ENTRIES for table in entry["tables"].split())
    assert counted == ROWS_OF_THE_PAPER
    assert len({entry["presets"] for entry in ENTRIES}) == len(ENTRIES)


@pytest.mark.parametrize("names", [entry["presets"] for entry in ENTRIES])
def test_its_presets_compose_and_take_a_step(names: str, toy_images: Path, tmp_path: Path) -> None:
    composed = presets.compose(PROJECT, names.split(","))
    chosen = toy_size(composed["pretrain"])
    init = Path(chosen["init"]["path"])
    if names.endswith("published"):
        init = tmp_path / "encoder.pth"
        torch.save(published.beit(shared=True, predicts=published.WIDTH), init)
        chosen["encoder"] |= {"image_size": published.IMAGE, "patch_size": published.PATCH, "heads": published.HEADS}
        chosen["masks"]["min_context"] = 4  # its 4×4 grid has no more
    params = validate(PretrainParams, chosen, names)
    assert isinstance(params, PretrainParams)
    one = Trainer(params, Batches(params, Store(toy_images, "train"), 0, 1), Alone(torch.device("cpu")), init)
    one.steps = 1
    rows = []
    one.train(lambda row, own: rows.append(row), lambda: None)
    assert len(rows) == 1 and all(math.isfinite(value) for value in rows[0].values())
