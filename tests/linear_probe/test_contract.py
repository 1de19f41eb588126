import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from components.clevr.contract import ClevrParams
from components.linear_probe.contract import LinearProbeParams
from components.stage import canonical_yaml, load_params, read_yaml

PARAMS = Path(__file__).parents[2] / "params"


def test_the_committed_values_are_legal_for_every_task() -> None:
    for name in read_yaml(PARAMS / "linear_probe.yaml")["tasks"]:
        probe = load_params("linear_probe", PARAMS / "linear_probe.yaml", name)
        assert isinstance(probe, LinearProbeParams)
        assert list(probe.tasks) == [name]
    assert isinstance(load_params("clevr", PARAMS / "clevr.yaml"), ClevrParams)


@pytest.mark.parametrize(
    ("shared", "task", "message"),
    [
        ({"profile": "dirty"}, {}, r"profile is 'dirty': input should be 'paper' or 'clean'"),
        ({"learning_rates": [0.1, 0.0]}, {}, r"learning_rates\.1 is 0.0: input should be greater than 0"),
        ({"learning_rates": [0.1, 0.1]}, {}, r"learning_rates is \[0.1, 0.1\]; each value may stand once"),
        ({"learning_rates": []}, {}, r"learning_rates is \[\]: list should have at least 1 item"),
        ({"holdout_fraction": 0.0}, {}, r"holdout_fraction is 0.0: input should be greater than 0"),
        ({"knn": 20}, {}, r"knn is not a known name; the names here are: seed, profile"),
        ({}, {"image_size": "32"}, r"tasks\.pets\.image_size is '32': input should be a valid integer"),
        ({}, {"test_split": "a", "train_split": "a"}, r"tasks\.pets: train_split and test_split are both 'a'"),
    ],
)
def test_faults_name_the_field_the_value_and_the_rule(
    tmp_path: Path, shared: dict[str, Any], task: dict[str, Any], message: str
) -> None:
    values = read_yaml(PARAMS / "linear_probe.yaml")
    example = next(iter(values["tasks"].values()))
    path = tmp_path / "linear_probe.yaml"
    path.write_text(canonical_yaml(values | shared | {"tasks": {"pets": example | task}}))
    with pytest.raises(ValueError, match=message):
        load_params("linear_probe", path, "pets")


def test_a_contract_loads_no_torch() -> None:
    code = "import sys, components.linear_probe.contract, components.clevr.contract; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=PARAMS.parent).returncode == 0
