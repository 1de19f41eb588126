"""Presets lie over the params files as they stand; what comes out is legal and is written only where it differs."""

import shutil
from pathlib import Path

import pytest

from components.stage import canonical_yaml, read_yaml
from flows import presets

PROJECT = Path(__file__).parents[2]
COMMITTED = sorted(path.stem for path in (PROJECT / "params/presets").glob("*.yaml"))


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """The project's params and dvc.yaml, with presets of this test's own."""
    shutil.copytree(PROJECT / "params", tmp_path / "params")
    shutil.copy(PROJECT / "dvc.yaml", tmp_path)
    digits = read_yaml(tmp_path / "params/prepare.yaml")["datasets"]["digits"]
    overlays = {
        "quiet": {"pretrain": {"stop": {"noise_std": 0.0}, "seed": 7}, "davis": {"top_k": 3}},
        "loud": {"pretrain": {"stop": {"noise_std": 0.5}}},
        "other_data": {"prepare": {"datasets": {"numbers": digits}}},
        "typo": {"pretrain": {"stop": {"noise_sdt": 0.5}}},
        "nowhere": {"pretrian": {"seed": 1}},
    }
    for name, values in overlays.items():
        (tmp_path / f"params/presets/{name}.yaml").write_text(canonical_yaml(values))
    return tmp_path


def test_mappings_merge_left_to_right_and_the_rest_stays(tree: Path) -> None:
    before = read_yaml(tree / "params/pretrain.yaml")
    after = presets.compose(tree, ["quiet", "loud"])["pretrain"]
    assert (after["stop"]["noise_std"], after["seed"]) == (0.5, 7)
    assert presets.compose(tree, ["loud", "quiet"])["pretrain"]["stop"]["noise_std"] == 0.0
    after["stop"]["noise_std"], after["seed"] = before["stop"]["noise_std"], before["seed"]
    assert after == before


def test_datasets_replace(tree: Path) -> None:
    assert list(presets.compose(tree, ["other_data"])["prepare"]["datasets"]) == ["numbers"]


def test_only_files_that_differ_are_written(tree: Path) -> None:
    before = {path.name: path.read_bytes() for path in (tree / "params").glob("*.yaml")}
    assert sorted(presets.write(tree, presets.compose(tree, ["quiet"]))) == ["davis", "pretrain"]
    changed = {path.name for path in (tree / "params").glob("*.yaml") if path.read_bytes() != before[path.name]}
    assert changed == {"davis.yaml", "pretrain.yaml"}
    assert read_yaml(tree / "params/davis.yaml")["top_k"] == 3
    assert presets.write(tree, presets.compose(tree, ["quiet"])) == []


def test_bad_presets_name_the_way_out_and_write_nothing(tree: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = {path: path.read_bytes() for path in (tree / "params").rglob("*.yaml")}
    messages = {
        "cifar11": "preset is 'cifar11'; the presets in params/presets are: ",
        "quiet,typo": "params/pretrain.yaml with quiet,typo: stop.noise_sdt is not a known name; the names here are: ",
        "nowhere": "params/presets/nowhere.yaml has 'pretrian'; it must hold mappings named after stages: prepare, pretrain",
    }
    for names, message in messages.items():
        assert presets.main([names, "--root", str(tree)]) == 2
        assert capsys.readouterr().err.startswith(f"error: {message}")
    assert {path: path.read_bytes() for path in (tree / "params").rglob("*.yaml")} == before


@pytest.mark.parametrize("name", COMMITTED)
def test_every_committed_preset_is_legal(name: str) -> None:
    """Over the committed values; what asks for a finer grid or a deeper encoder than theirs, over a recipe for photographs."""
    larger = ("legacy_masks", "size_l16", "size_h14", "data2vec")
    presets.compose(PROJECT, ["vit_b16", name] if name in larger else [name])
    if name == "legacy_masks":
        with pytest.raises(ValueError, match="or the reference's sampler never ends"):
            presets.compose(PROJECT, [name])


@pytest.mark.parametrize(
    ("name", "recipes", "flip", "grayscale", "blur"),
    [
        ("augment_ijepa_public", ["ijepa_vit_h14"], False, 0.0, 0.0),
        ("augment_stop_released", ["vit_b16", "vit_l16", "vit_h16", "vit_h14", "ablation"], True, 0.2, 0.5),
    ],
)
def test_augmentations_are_those_of_the_released_recipes(
    name: str, recipes: list[str], flip: bool, grayscale: float, blur: float
) -> None:
    """Source: their config files and programs, as method facts. Over a recipe of its own an overlay changes nothing."""
    crops = {"crop_scale_min": 0.3, "crop_scale_max": 1.0, "flip": flip, "grayscale": grayscale, "blur": blur}
    assert presets.compose(PROJECT, ["mae_vit_b16", name])["pretrain"]["augmentation"] == crops
    for recipe in recipes:
        assert presets.compose(PROJECT, [recipe, name]) == presets.compose(PROJECT, [recipe])


def test_the_committed_values_are_the_demo() -> None:
    photographs = ["ijepa_vit_h14", "mae_vit_b16", "vit_b16", "vit_h14", "vit_h16", "vit_l16", "vit_s16"]
    assert presets.recipes(PROJECT) == ["ablation", "cifar10", "demo", *photographs]
    for word, values in presets.recipe(PROJECT, "demo").items():
        assert values == read_yaml(PROJECT / f"params/{word}.yaml")
    assert all(presets.description(PROJECT, name) for name in presets.recipes(PROJECT))


def test_a_recipe_that_is_not_complete_is_told(tree: Path) -> None:
    sections = read_yaml(tree / "params/presets/demo.yaml")
    del sections["davis"]["radius"]
    (tree / "params/presets/demo.yaml").write_text(canonical_yaml(sections))
    with pytest.raises(ValueError, match="params/presets/demo.yaml: davis: radius is missing"):
        presets.recipe(tree, "demo")
