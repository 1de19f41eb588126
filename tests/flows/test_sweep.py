"""An ablation's definition: which members it stands for, what they are called, and what is refused before any starts."""

import functools
import itertools
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from components.stage import canonical_yaml, flatten, read_yaml
from flows import preflight, presets
from flows.ablations import cells, members, scope, sweep

PROJECT = Path(__file__).parents[2]
COMMITTED = sorted(path.stem for path in (PROJECT / "params/ablations").glob("*.yaml"))
NOISE, SEED, EPOCHS = "pretrain.stop.noise_std", "pretrain.seed", "pretrain.optimisation.epochs"


@functools.cache
def needed() -> dict[str, set[str]]:
    return scope.needs(PROJECT)


def definition(**changed: Any) -> dict[str, Any]:
    return {
        "base": ["demo"],
        "seeds": [0],
        "seeded": [SEED],
        "stages": ["linear_probe"],
        "metrics": ["linear_probe/digits/top1"],
        "members_at_a_time": 1,
        "parallel": 2,
        **changed,
    }


def plan(**changed: Any) -> list[members.Member]:
    return members.plan(PROJECT, "trial", sweep.parse("trial", definition(**changed)), needed())


def fault(**changed: Any) -> str:
    with pytest.raises(ValueError) as told:
        plan(**changed)
    return str(told.value)


def at(sections: dict[str, Any], path: str) -> Any:
    return flatten(sections, ".")[path]


def test_a_grid_is_the_product_and_each_member_differs_by_its_values_alone() -> None:
    noises, epochs, seeds = [0.0, 0.25], [2, 3, 4], [5, 7]
    found = plan(grid={NOISE: noises, EPOCHS: epochs}, seeds=seeds)
    expected = list(itertools.product(noises, epochs, seeds))
    assert [tuple(at(one.sections, path) for path in (NOISE, EPOCHS, SEED)) for one in found] == expected
    assert found[1].name == "trial-noise_std-0-epochs-2-seed-7"
    below = flatten(presets.recipe(PROJECT, "demo"), ".")
    for one, (noise, epoch, seed) in zip(found, expected, strict=True):
        assert flatten(one.sections, ".") == below | {NOISE: noise, EPOCHS: epoch, SEED: seed}


def test_overlays_lie_over_the_base_and_values_over_overlays() -> None:
    found = plan(grid={"presets": ["", "penalty_l1", "ijepa+learned_positions", ["ijepa", "penalty_l2"]], EPOCHS: [4]})
    assert [one.cell.presets for one in found] == [
        (),
        ("penalty_l1",),
        ("ijepa", "learned_positions"),
        ("ijepa", "penalty_l2"),
    ]
    assert [one.name for one in found[1:3]] == [
        "trial-epochs-4-penalty_l1-seed-0",
        "trial-epochs-4-ijepa-learned_positions-seed-0",
    ]
    (one,) = plan(values={EPOCHS: 9}, grid={NOISE: [0.5]})
    assert (one.name, at(one.sections, EPOCHS)) == ("trial-noise_std-0.5-seed-0", 9)
    one = plan(members={"mine": {"presets": "ijepa", NOISE: 0.5}})[0]
    assert (one.name, at(one.sections, NOISE)) == ("trial-mine-seed-0", 0.5)


def test_members_one_by_one_come_after_the_grid_and_neither_means_the_base_alone() -> None:
    both = plan(grid={NOISE: [0.5, 1.0]}, members={"none": {NOISE: 0}})
    assert [one.name for one in both] == [
        "trial-noise_std-0.5-seed-0",
        "trial-noise_std-1-seed-0",
        "trial-none-seed-0",
    ]
    assert [one.name for one in plan(seeds=[3, 1])] == ["trial-base-seed-3", "trial-base-seed-1"]


def test_a_form_that_sends_0_for_0_0_means_the_same_member() -> None:
    file, form = plan(grid={NOISE: [0.0, 1.0]}), plan(grid={NOISE: [0, 1]})
    assert [(one.name, one.sections) for one in file] == [(one.name, one.sections) for one in form]


def test_paths_with_one_last_word_keep_as_many_words_as_tell_them_apart() -> None:
    names = [one.name for one in plan(grid={"clevr.seed": [1], "analysis.seed": [2], NOISE: [0.0]})]
    assert names == ["trial-clevr.seed-1-analysis.seed-2-noise_std-0-seed-0"]


@given(
    st.lists(st.one_of(st.text(max_size=60), st.floats(-9, 9), st.integers(), st.booleans()), max_size=6, unique_by=str)
)
def test_values_become_legal_names_that_differ(values: list[Any]) -> None:
    names = {str(value): f"a-{cells.legal(value)}-seed-0" for value in values}
    for name in names.values():
        preflight.check_name(name)
    texts = {f"{value:.12g}" if type(value) in (int, float) else str(value).lower() for value in values}
    assert len(set(names.values())) >= len(texts)  # values that print alike are one value here


def test_every_fault_of_every_member_is_told_at_once() -> None:
    told = fault(grid={NOISE: [0.25, 9], "pretrain.stpo.noise": [1], "presets": ["", "nope"]}, seeds=[0, 1])
    assert "preset is 'nope'; the presets in params/presets are: ablation, " in told
    assert "pretrain.stpo.noise is no parameter: pretrain has seed, weight_init, " in told
    assert "trial-noise_std-9-noise-1-seed-0, trial-noise_std-9-noise-1-seed-1: pretrain: stop.noise_std is 9: " in told


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"seeds": []}, "ablation 'trial': seeds is []: "),
        ({"seeds": [1, 1]}, "ablation 'trial': seeds has 1 twice; keep one of them"),
        ({"sedes": [1]}, "ablation 'trial': sedes is not a known name; the names here are: base, values, grid, "),
        ({"grid": {NOISE: []}}, f"ablation 'trial': grid: axis '{NOISE}' has no value; "),
        ({"grid": {NOISE: [1]}, "values": {NOISE: 2}}, f"ablation 'trial': '{NOISE}' is given by axes and by values; "),
        ({"grid": {SEED: [1, 2]}}, f"ablation 'trial': '{SEED}' is given by axes and by seeded; "),
        ({"grid": {NOISE: [0.25, 0.25]}}, "noise_std-0.25 and noise_std-0.25 have the same values"),
        (
            {"members": {"a": {NOISE: 0.25}, "b": {}}},
            "a and b have the same values, so that one would be computed twice",
        ),
        (
            {"seeds": [0, 1], "seeded": []},
            "have the same values, so that one would be computed twice; leave one out, or name in",
        ),
        (
            {"members": {"noise_std-1": {NOISE: 2.0}}, "grid": {NOISE: [1.0]}},
            "two combinations are named noise_std-1; ",
        ),
        ({"seeded": ["pretrain"]}, "pretrain is a whole stage; name one of its parameters, as in pretrain.seed"),
        ({"seeded": ["pretrain.seed.x"]}, "pretrain.seed.x is no parameter: pretrain.seed holds a value; "),
        ({"stages": ["linear_prob"]}, "stage 'linear_prob' is no stage; they are: prepare, "),
        (
            {"metrics": ["linear_probe/digits/top_1"]},
            "metric 'linear_probe/digits/top_1' is none of linear_probe@digits, which has: ",
        ),
        (
            {"metrics": ["linear_probe/top1"]},
            "is of no entry of linear_probe, which has: digits; write it as linear_probe/digits/",
        ),
        ({"metrics": ["probe/top1"]}, "metric 'probe/top1' is of no stage; the stages are: prepare, "),
        (
            {"metrics": ["davis/jf_mean"]},
            "is of davis, which does not run for the stages linear_probe; add it to `stages`",
        ),
        (
            {"metrics": ["davis/protocol"], "stages": []},
            "metric 'davis/protocol' is none of davis, which has: jf_mean, ",
        ),
    ],
)
def test_bad_input(changed: dict[str, Any], told: str) -> None:
    assert told in fault(**changed)


def test_what_a_stage_needs_runs_as_well() -> None:
    metrics = ["pretrain/steps", "linear_probe/digits/top1"]
    assert plan(stages=["linear_probe@digits"], metrics=metrics)
    assert plan(stages=["report"], metrics=[*metrics, "davis/jf_mean", "finetune/digits/top1"])
    assert "which does not run" in fault(stages=["pretrain"], metrics=metrics)


def test_a_name_that_is_no_run_name_or_no_ablation() -> None:
    with pytest.raises(ValueError, match="run name is 'a b'"):
        sweep.parse("a b", definition())
    with pytest.raises(
        ValueError, match=f"ablation is 'figure5'; those in params/ablations are: {', '.join(COMMITTED)}"
    ):
        sweep.values(PROJECT, "figure5")


def test_raw_data_that_is_missing_is_told_for_every_member(tmp_path: Path) -> None:
    shutil.copytree(PROJECT / "params", tmp_path / "params")
    recipe = read_yaml(tmp_path / "params/presets/demo.yaml")
    recipe["prepare"]["datasets"]["digits"] |= {"source": "data/raw/nowhere", "format": "image_folder"}
    (tmp_path / "params/presets/demo.yaml").write_text(canonical_yaml(recipe))
    shutil.copy(PROJECT / "dvc.yaml", tmp_path)
    found = [members.Member(f"m{seed}", cells.Cell("m", (), {}, {}), seed, recipe) for seed in range(5)]
    with pytest.raises(
        ValueError, match="m0, m1, m2 and 2 more: dataset 'digits' reads 'data/raw/nowhere', which does not"
    ):
        members.check_raw(tmp_path, found)


@pytest.mark.parametrize("name", COMMITTED)
def test_committed_ablations_compose_for_all_members(name: str) -> None:
    settled = sweep.parse(name, sweep.values(PROJECT, name))
    assert canonical_yaml(read_yaml(PROJECT / f"params/ablations/{name}.yaml")) == canonical_yaml(
        sweep.values(PROJECT, name)
    )
    assert members.plan(PROJECT, name, settled, needed())
    assert sweep.description(PROJECT, name)


def test_tables_6_to_8_are_the_rows_of_the_page_of_the_papers_tables() -> None:
    page = (PROJECT / "docs/paper-tables.md").read_text()
    rows = re.findall(r"^\| (.+?) +\| ([0-9 ]+?) +\| `(.+?)`", page, re.MULTILINE)
    for table in ("6", "7", "8"):
        expected = {
            overlays for _, tables, overlays in rows if table in tables.split() and overlays.startswith("ablation")
        }
        settled = sweep.parse(f"table{table}", sweep.values(PROJECT, f"table{table}"))
        assert {",".join([*settled.base, *cell.presets]) for cell in cells.cells(settled)} == expected
