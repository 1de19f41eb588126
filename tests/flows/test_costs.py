"""What pretraining costs is on a run's page before anything runs, without torch, and can be asked of any presets."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest
from prefect import flow
from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import ArtifactFilter, ArtifactFilterKey

from components.stage import canonical_yaml, read_yaml
from flows import artifacts, costs
from flows.check import check

PRETRAIN = """\
  pretrain:
    cmd: sh scripts/pretrain.sh
    deps: [scripts/prepare.sh, data/prepared/shapes]
    params: [{params/pretrain.yaml: null}]
    outs: [models/encoder]
"""


def shown() -> list[Any]:
    with get_client(sync_client=True) as client:
        return client.read_artifacts(artifact_filter=ArtifactFilter(key=ArtifactFilterKey(any_=["preflight"])))


@flow(name="checked", flow_run_name="checked")
def checked(root: Path, stages: tuple[str, ...]) -> None:
    check(root, stages, 1, {}, return_state=True).result()


def with_pretrain(toy: Any, repository: Path) -> None:
    (toy.root / "dvc.yaml").write_text((toy.root / "dvc.yaml").read_text() + PRETRAIN)
    (toy.root / "params/pretrain.yaml").write_text(canonical_yaml(read_yaml(repository / "params/pretrain.yaml")))


def test_a_run_that_pretrains_has_the_page_and_others_do_not(toy, prefect, repository: Path) -> None:
    with_pretrain(toy, repository)
    checked(toy.root, ("davis",))
    before = len(shown())
    checked(toy.root, ("pretrain",))
    assert len(shown()) == before + 1
    text = shown()[-1].data
    scenes = read_yaml(toy.root / "params/prepare.yaml")["datasets"]["shapes"]["scenes"]
    assert f"{scenes * 3 // 4:,} images (said by the format shapes)" in text
    assert "`python -m components.preflight` does" in text  # the demo trains on a CPU, and nothing is measured


def test_a_server_that_is_away_costs_a_warning(
    toy, prefect, repository: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with_pretrain(toy, repository)

    def unreachable(*arguments: Any, **options: Any) -> None:
        httpx.get("http://127.0.0.1:9/")

    monkeypatch.setattr(artifacts, "create_markdown_artifact", unreachable)
    checked(toy.root, ("pretrain",))
    assert "did not take the page preflight: ConnectError" in caplog.text


def test_the_page_of_a_recipe_takes_no_torch(repository: Path) -> None:
    code = """
import sys, time
from pathlib import Path
from flows import costs, presets
params = presets.recipe(Path(sys.argv[1]), "vit_h14")
text = costs.page(Path("/nowhere"), params)
assert "torch" not in sys.modules
start = time.process_time()
costs.page(Path("/nowhere"), params)
print(time.process_time() - start)
print(text)
"""
    done = subprocess.run(
        [sys.executable, "-c", code, str(repository)], cwd=repository, check=True, capture_output=True, text=True
    )
    seconds, text = done.stdout.split("\n", 1)
    assert float(seconds) < 0.5
    assert "1,281,167 images" in text and "| 32 × h100 " in text


def test_presets_compose(repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert costs.main(["vit_b16,size_l16", "--root", str(repository), "--device", "h100"]) == 0
    assert "303,098,880" in capsys.readouterr().out  # ViT-L's trunk
    assert costs.main(["vit_b17", "--root", str(repository)]) == 2
    assert capsys.readouterr().err.startswith("error: preset is 'vit_b17'")
