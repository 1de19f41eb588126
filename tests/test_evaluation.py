"""The hash of a protocol: what decides a score moves it, what only names or places the work does not."""

import json
from pathlib import Path
from typing import Any

import pytest

from components.evaluation import data, settings, write_protocol
from components.linear_probe.contract import LinearProbeParams
from components.linear_probe.run import decided_by
from components.stage import read_yaml

CARD = {
    "name": "pets",
    "kind": "images",
    "format": "image_folder",
    "content": "c0ffee",
    "classes": ["ant", "bee"],
    "splits": {"train": {"count": 9}, "val": {"count": 4}},
}


def mark(folder: Path, used: int = 4, values: dict[str, Any] | None = None, **card: Any) -> str:
    return write_protocol(folder / "p.json", "clevr", 1, values or {"k": 1}, data(CARD | card, {"val": used}))


def test_settings_rows_and_content_move_it_and_names_do_not(tmp_path: Path) -> None:
    plain = mark(tmp_path)
    assert plain == json.loads((tmp_path / "p.json").read_text())["protocol"]
    assert plain == mark(tmp_path, name="others", format="manifest")
    assert len({plain, mark(tmp_path, used=3), mark(tmp_path, values={"k": 2}), mark(tmp_path, content="cafe")}) == 4


@pytest.mark.parametrize(
    ("change", "moves"), [({"train_limit": 5}, False), ({"epochs": 3}, True), ({"flip": True}, True)]
)
def test_a_limit_is_told_by_the_rows_in_use(change: dict[str, Any], moves: bool) -> None:
    values = read_yaml(Path(__file__).parents[1] / "params/linear_probe.yaml")
    plain, other = (
        LinearProbeParams.model_validate(values | {"tasks": {"digits": values["tasks"]["digits"] | more}})
        for more in ({}, change)
    )
    found = [decided_by(params, params.tasks["digits"]) for params in (plain, other)]
    assert (found[0] != found[1]) == moves


def test_device_and_seed_never_count() -> None:
    params = LinearProbeParams.model_validate(read_yaml(Path(__file__).parents[1] / "params/linear_probe.yaml"))
    assert not {"device", "seed"} & settings(params).keys()
