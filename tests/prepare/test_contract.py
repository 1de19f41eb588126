"""What the contract refuses, and that it says why."""

from pathlib import Path
from typing import Any

import pytest

from components.prepare.contract import FORMATS, DatasetParams, PrepareInputs, PrepareParams, layout
from components.stage import load_params, validate

from . import toy

FOLDER: dict[str, Any] = {**toy.VALUES, "source": "data/raw/photos"}
SHAPES = {**FOLDER, "source": "components/prepare/embedded/shapes.py", "format": "shapes", "scenes": 32}
VIDEO = {**FOLDER, "source": "components/prepare/embedded/shapes_video.py", "format": "shapes_video", "clips": 2}


def check(values: dict[str, Any], name: str = "toy") -> None:
    validate(PrepareParams, {"datasets": {name: values}}, "params/prepare.yaml")


def test_committed_values_are_legal() -> None:
    params = load_params("prepare", Path(__file__).parents[2] / "params/prepare.yaml", "shapes")
    assert isinstance(params, PrepareParams)
    assert params.datasets["shapes"].scenes >= 1500


@pytest.mark.parametrize("values", [FOLDER, {**FOLDER, "on_error": "skip", "skip_budget": 5}, SHAPES, VIDEO])
def test_legal_datasets(values: dict[str, Any]) -> None:
    check(values)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({**FOLDER, "source": "photos"}, "source is 'photos'.*data/raw/<name>.*ln -s FOLDER"),
        ({**FOLDER, "source": "data/raw/../secret"}, "source is 'data/raw/../secret'"),
        ({**FOLDER, "source": "data/raw/.."}, "source is 'data/raw/..'"),
        ({**SHAPES, "source": "data/raw/shapes"}, "has source 'components/prepare/embedded/shapes.py'"),
        ({**SHAPES, "scenes": 31}, "scenes is 31; with format 'shapes' it must be at least 32"),
        ({**SHAPES, "clips": 1}, "clips is 1; with format 'shapes' it must be 0"),
        ({**VIDEO, "clips": 0}, "clips is 0; with format 'shapes_video' it must be at least 1"),
        ({**FOLDER, "scenes": 32}, "scenes is 32; with format 'image_folder' it must be 0"),
        ({**FOLDER, "on_error": "skip"}, "skip_budget is 0; with on_error 'skip' it must be at least 1"),
        ({**FOLDER, "skip_budget": 3}, "skip_budget is 3; with on_error 'fail' it must be 0"),
        ({**FOLDER, "format": "davis", "on_error": "skip", "skip_budget": 1}, "with format 'davis' it must be 'fail'"),
        ({**VIDEO, "on_error": "skip", "skip_budget": 1}, "with format 'shapes_video' it must be 'fail'"),
        ({**FOLDER, "format": "imagefolder"}, "format is 'imagefolder'; it must be one of .*image_folder"),
        ({**FOLDER, "resize_short_side": 256}, "quality is 0; with resize_short_side 256 it must be at least 1"),
        ({**FOLDER, "quality": 90}, "quality is 90; with resize_short_side 0 it must be 0"),
        (
            {**FOLDER, "format": "davis", "resize_short_side": 256, "quality": 90},
            "resize_short_side is 256; with format 'davis' it must be 0: masks lie on the pixels",
        ),
        ({**FOLDER, "subset": {**FOLDER["subset"], "sha256": "abc"}}, "subset.sha256 is 'abc'"),
        ({**FOLDER, "shard_mib": 0}, "shard_mib is 0: .*greater than or equal to 1"),
        ({**FOLDER, "seed": "0"}, "seed is '0': .*integer"),
        ({**FOLDER, "skipbudget": 0}, "skipbudget is not a known name; the names here are: source"),
    ],
)
def test_illegal_datasets(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=rf"(?s)params/prepare.yaml: datasets\.toy.*{message}"):
        check(values)


@pytest.mark.parametrize("name", ["CIFAR", "cifar-10", "a/b", "a b", "", "cifar\n"])
def test_names_become_folders(name: str) -> None:
    with pytest.raises(ValueError, match="must be made of a-z, 0-9 and _ only"):
        check(FOLDER, name)


def test_no_datasets_at_all() -> None:
    with pytest.raises(ValueError, match="datasets is {}"):
        validate(PrepareParams, {"datasets": {}}, "params/prepare.yaml")


def test_a_missing_source_or_list_says_what_belongs_there(tmp_path: Path) -> None:
    (tmp_path / "dangling").symlink_to(tmp_path / "gone")
    with pytest.raises(
        ValueError, match=r"dangling', which does not exist; put a folder, an archive or.*docs/datasets.md"
    ):
        PrepareInputs(source=tmp_path / "dangling", subset_list=tmp_path)
    with pytest.raises(
        ValueError, match=r"subset.list is .*, which is no file; 'params/subsets/all.txt' stands for every"
    ):
        PrepareInputs(source=tmp_path, subset_list=tmp_path / "gone.txt")


def test_every_format_has_a_layout_and_stands_in_the_form() -> None:
    enum = DatasetParams.model_json_schema()["properties"]["format"]["enum"]
    assert enum == FORMATS and {"clevr", "davis", "image_folder", "shapes", "digits"} <= set(enum)
    assert all(len(layout(format)) > 10 for format in FORMATS)
