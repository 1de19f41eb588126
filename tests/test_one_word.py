"""The law of one word: a stage has the same name in dvc.yaml, params/, components/, its contract and tests/."""

import re
from pathlib import Path
from typing import Any

import pytest

from components.stage import STAGES, canonical_yaml, contract, read_yaml, validate


def stages(repository: Path) -> dict[str, dict[str, Any]]:
    described = read_yaml(repository / "dvc.yaml")["stages"]
    return {word: stage.get("do", stage) for word, stage in described.items()}


def test_dvc_yaml_and_the_code_name_the_same_stages(repository: Path) -> None:
    assert set(stages(repository)) == set(STAGES)


@pytest.mark.parametrize("word", STAGES)
def test_each_place_has_the_word(repository: Path, word: str) -> None:
    for path in (f"params/{word}.yaml", f"components/{word}/contract.py", f"components/{word}/run.py", f"tests/{word}"):
        assert (repository / path).exists(), path
    described = read_yaml(repository / "dvc.yaml")["stages"][word]
    members = contract(word).members
    assert described.get("foreach") == (f"${{{members}}}" if members else None)


@pytest.mark.parametrize("word", STAGES)
def test_the_command_names_every_input_and_output_of_the_contract(repository: Path, word: str) -> None:
    stage, kind = stages(repository)[word], contract(word)
    assert stage["cmd"].startswith(f"python -m components {word} --params params/{word}.yaml ")
    flags = dict(re.findall(r"--([a-z-]+) (\S+)", stage["cmd"]))
    fields = {name.replace("_", "-") for model in (kind.inputs, kind.outputs) for name in model.model_fields}
    assert set(flags) == fields | {"params"} | ({"member"} if kind.members else set())
    written = {flags[name.replace("_", "-")] for name in kind.outputs.model_fields} - {f"work/{word}"}
    plots = {next(iter(plot)) if isinstance(plot, dict) else plot for plot in stage.get("plots", [])}
    assert written == set(stage["outs"]) | set(stage.get("metrics", [])) | plots
    assert {flags[name.replace("_", "-")] for name in kind.inputs.model_fields} - {"params"} <= set(stage["deps"])


@pytest.mark.parametrize("word", STAGES)
def test_every_value_of_the_params_file_is_tracked(repository: Path, word: str) -> None:
    tracked = next(entry for entry in stages(repository)[word]["params"] if f"params/{word}.yaml" in entry)
    keys, members = tracked[f"params/{word}.yaml"], contract(word).members
    if not members:
        assert keys is None  # the whole file
        return
    expected = set(contract(word).params.model_fields) - {members} | {f"{members}.${{key}}"}
    assert set(keys) == expected


@pytest.mark.parametrize("word", STAGES)
def test_the_committed_values_are_legal_complete_and_canonical(repository: Path, word: str) -> None:
    path = repository / "params" / f"{word}.yaml"
    values = read_yaml(path)
    assert validate(contract(word).params, values, str(path)).model_dump() == values
    assert path.read_text() == canonical_yaml(values)


@pytest.mark.parametrize("word", STAGES)
def test_every_field_explains_itself(word: str) -> None:
    unexplained = []

    def visit(model: Any, where: str) -> None:
        if not model.__doc__:
            unexplained.append(where)
        for name, field in model.model_fields.items():
            inner = [
                kind
                for kind in (field.annotation, *getattr(field.annotation, "__args__", ()))
                if hasattr(kind, "model_fields")
            ]
            for kind in inner:
                visit(kind, f"{where}.{name}")
            if not inner and len(field.description or "") < 20:
                unexplained.append(f"{where}.{name}")
            assert field.is_required(), f"{where}.{name} has a default; every value stands in the YAML"

    visit(contract(word).params, word)
    assert not unexplained
