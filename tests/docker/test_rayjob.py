"""The example for Kubernetes says what its comments promise."""

import re
from pathlib import Path
from typing import Any

import yaml

from components.pretrain.contract import PretrainParams
from flows import presets


def manifest(repository: Path) -> dict[str, Any]:
    return yaml.safe_load((repository / "docker/rayjob.yaml").read_text())["spec"]


def pods(spec: dict[str, Any]) -> list[dict[str, Any]]:
    cluster = spec["rayClusterSpec"]
    return [group["template"]["spec"] for group in [cluster["headGroupSpec"], *cluster["workerGroupSpecs"]]]


def test_all_pods_have_one_version_one_user_and_the_checkout_under_one_path(repository: Path) -> None:
    spec = manifest(repository)
    (pinned,) = re.findall(r"^ray==(.+)$", (repository / "constraints.txt").read_text(), re.MULTILINE)
    assert spec["rayClusterSpec"]["rayVersion"] == pinned
    for pod in pods(spec):
        (container,) = pod["containers"]
        assert container["image"] == pods(spec)[0]["containers"][0]["image"]
        assert pod["securityContext"] == pods(spec)[0]["securityContext"]
        mounted = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
        assert {volume["name"] for volume in pod["volumes"]} == set(mounted) and mounted["shm"] == "/dev/shm"
        assert f"cd {mounted['stop']}/checkout" in spec["entrypoint"]


def test_tokens_are_on_and_none_is_written_down(repository: Path) -> None:
    spec = manifest(repository)
    assert spec["rayClusterSpec"]["authOptions"] == {"mode": "token"}
    assert "RAY_AUTH_TOKEN" not in {one["name"] for pod in pods(spec) for one in pod["containers"][0]["env"]}


def test_a_recipe_of_the_paper_has_room(repository: Path) -> None:
    spec = manifest(repository)
    scale = PretrainParams.model_validate(presets.compose(repository, ["vit_l16"])["pretrain"]).scale
    (group,) = spec["rayClusterSpec"]["workerGroupSpecs"]
    ask = group["template"]["spec"]["containers"][0]["resources"]["requests"]
    gpus = int(ask["nvidia.com/gpu"])
    assert scale.device == "gpu" and gpus * scale.cpus_per_worker <= int(ask["cpu"])
    assert scale.workers <= gpus * group["replicas"]
    assert spec["rayClusterSpec"]["headGroupSpec"]["rayStartParams"]["num-cpus"] == "0"
