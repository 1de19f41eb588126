"""prefect.yaml registers with a work pool exactly what `flows.deploy` serves, and a process worker's runs are in the right folder."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from prefect.client.orchestration import get_client

from flows import deploy, presets
from flows.ablations import sweep

FLOWS = {"flows.pipeline.pipeline", "flows.ablation.ablation", "flows.promote.promote", "flows.promote.rollback"}


def test_every_recipe_and_ablation_is_in_prefect_yaml(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(repository)
    declared = yaml.safe_load((repository / "prefect.yaml").read_text())["deployments"]
    by_flow: dict[str, list[Any]] = {}
    for one in declared:
        by_flow.setdefault(one["entrypoint"], []).append(one)
    assert by_flow.keys() == FLOWS
    for entrypoint, names, step in (
        ("flows.pipeline.pipeline", presets.recipes(repository), deploy.recipe),
        ("flows.ablation.ablation", sweep.names(repository), deploy.ablation),
    ):
        assert sorted(one["name"] for one in by_flow[entrypoint]) == names
        for one in by_flow[entrypoint]:
            ((called, inputs),) = one["build"][0].items()
            assert (called, inputs["name"]) == (f"flows.deploy.{step.__name__}", one["name"])
            keys = step(one["name"])["parameters"].keys()
            assert one["parameters"] == {key: f"{{{{ it.parameters.{key} }}}}" for key in keys}


@pytest.mark.faults
def test_deploy_all_registers_what_is_served(
    repository: Path, prefect: str, monkeypatch: pytest.MonkeyPatch, until: Callable[..., None]
) -> None:
    environment = os.environ | {"PREFECT_API_URL": prefect}
    words = [sys.executable, "-m", "prefect", "--no-prompt"]
    for command in (["work-pool", "create", "stop", "--type", "process", "--overwrite"], ["deploy", "--all"]):
        done = subprocess.run([*words, *command], cwd=repository, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
    monkeypatch.chdir(repository)
    expected = {name: deploy.recipe(name) for name in presets.recipes(repository)}
    expected |= {name: deploy.ablation(name) for name in sweep.names(repository)}
    with get_client(sync_client=True) as client:
        found = {one.name: one for one in client.read_deployments() if one.work_pool_name == "stop"}
        for one in found.values():
            client.delete_deployment(one.id)
    assert found.keys() == expected.keys() | {"promote", "rollback"}
    for name, about in expected.items():
        assert (found[name].parameters, found[name].description) == (about["parameters"], about["description"])
        (pull,) = found[name].pull_steps or []
        assert pull == {"prefect.deployments.steps.set_working_directory": {"directory": str(repository)}}
