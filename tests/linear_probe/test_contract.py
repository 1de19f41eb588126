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
        ({}, {"heads": {"learning_rates": [0.1, 0.0]}}, r"learning_rates\.1 is 0.0: input should be greater than 0"),
        ({}, {"heads": {"learning_rates": [0.1, 0.1]}}, r"learning_rates is \[0.1, 0.1\]; each value may stand once"),
        ({}, {"heads": {"learning_rates": []}}, r"learning_rates is \[\]: list should have at least 1 item"),
        (
            {},
            {"heads": {"schedule": "step", "milestones": [50]}},
            r"heads.milestones is \[50\], but there are 50 epochs",
        ),
        ({}, {"train_list_sha256": "0" * 63}, r"train_list_sha256 is '0+': string should match pattern"),
        ({}, {"logistic_lambdas": [1.0, 1.0]}, r"logistic_lambdas is \[1.0, 1.0\]; each value may stand once"),
        ({}, {"crop_scale_min": 0.5, "crop_scale_max": 0.4}, r"crop_scale_min is 0.5, above crop_scale_max 0.4"),
        ({"holdout_fraction": 0.0}, {}, r"holdout_fraction is 0.0: input should be greater than 0"),
        ({"knn": 20}, {}, r"knn is not a known name; the names here are: device, seed, profile"),
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
    heads = example["heads"] | task.get("heads", {})
    path.write_text(canonical_yaml(values | shared | {"tasks": {"pets": example | task | {"heads": heads}}}))
    with pytest.raises(ValueError, match=message):
        load_params("linear_probe", path, "pets")


def test_a_contract_loads_no_torch() -> None:
    code = "import sys, components.linear_probe.contract, components.clevr.contract; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=PARAMS.parent).returncode == 0
