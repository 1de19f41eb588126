"""The command: from params to a report, without torch, and what it refuses."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from components.preflight.__main__ import main
from components.preflight.dataset import carded, expected
from components.stage import read_yaml

H100 = ["--device", "h100"]


def test_a_whole_recipe(repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--params", str(repository / "params/presets/vit_b16.yaml"), *H100]) == 0
    said = capsys.readouterr().out
    assert "1,281,167 images (said by the published size of imagenet)" in said
    assert "85,646,592" in said
    assert "| 32 × h100 " in said
    assert "unknown" in said.split("## On the disk")[1].split("## Time")[0]


def test_the_params_files_with_the_embedded_set(repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    scenes = read_yaml(repository / "params/prepare.yaml")["datasets"]["shapes"]["scenes"]
    assert main(["--params", str(repository / "params/pretrain.yaml"), *H100]) == 0
    said = capsys.readouterr().out
    assert f"{scenes * 3 // 4:,} images (said by the format shapes)" in said
    assert "encoder.width is 96" in said


def test_a_card_says_how_many_images_and_bytes(
    repository: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    splits = {"train": {"count": 5_000, "bytes": 2**30}, "val": {"count": 9, "bytes": 2**29}}
    (tmp_path / "card.json").write_text(json.dumps({"splits": splits}))
    assert carded(tmp_path)[:2] == (5_000, 3 * 2**29)
    main(["--params", str(repository / "params/pretrain.yaml"), "--dataset", str(tmp_path), *H100])
    said = capsys.readouterr().out
    assert "of 5,000 images (said by its card" in said
    assert re.search(r"\| prepared dataset +\| 1\.500 \|", said)


def test_what_a_subset_leaves_and_what_nobody_knows(repository: Path) -> None:
    prepare = read_yaml(repository / "params/presets/vit_b16.yaml")["prepare"]
    entry = prepare["datasets"]["imagenet"]
    assert expected("imagenet", prepare).images == 1_281_167
    entry["subset"]["per_class"] = 13
    assert expected("imagenet", prepare).images == 13_000
    entry["counts"] = "any"
    assert expected("imagenet", prepare).images is None
    assert expected("another", prepare).images is None
    assert expected("imagenet", None).images is None


def test_without_a_known_dataset_hours_are_for_a_million_images(
    repository: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    alone = tmp_path / "pretrain.yaml"
    alone.write_text((repository / "params/pretrain.yaml").read_text())
    assert main(["--params", str(alone), *H100]) == 0
    assert "hours for 1 M images" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--device", "b9000"], "device is 'b9000'; it must be one of v100"),
        (["--images", "0"], "images is 0; it must be at least 1"),
        (["--utilisation", "1.5"], "utilisation is 1.5; it must be above 0 and at most 1"),
        (["--dataset", "/nowhere"], "has no card.json; prepare it"),
        (["--params", "/nowhere.yaml"], "does not exist"),
    ],
)
def test_bad_input_is_one_message(
    repository: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], told: str
) -> None:
    given = ["--params", str(repository / "params/pretrain.yaml"), *H100]
    assert main([*given, *arguments]) == 2
    said = capsys.readouterr().err
    assert said.startswith("error: ") and told in said and said.count("error:") == 1


def test_no_torch_unless_this_machine_is_measured(repository: Path) -> None:
    code = (
        "import sys; from components.preflight.__main__ import main; "
        f"main(['--params', {str(repository / 'params/presets/vit_b16.yaml')!r}, '--device', 'h100']); assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


def test_this_machine_is_measured(repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--params", str(repository / "params/pretrain.yaml")]) == 0  # scale.device is cpu
    assert "| 1 × cpu | yes " in capsys.readouterr().out
