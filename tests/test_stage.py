"""The base of every stage: values, messages, atomic files, fingerprints, the command's manners."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from components.davis.contract import DavisInputs, DavisParams
from components.stage import (
    atomic,
    canonical_yaml,
    contract,
    current_names,
    fingerprint,
    flatten,
    load_params,
    read_yaml,
)


@pytest.mark.parametrize(
    "text", ["1e-3", "1.0e-05", "5E2", "0.1", "-2.5", ".5", "3", "true", "0.25", "1.", "yes", "'1e-3'", "text"]
)
def test_numbers_are_read_as_dvc_reads_them(tmp_path: Path, text: str) -> None:
    """PyYAML alone takes 1e-3 for a text, where DVC's YAML 1.2 sees a number: two tools, two values."""
    path = tmp_path / "file.yaml"
    path.write_text(f"value: {text}\n")
    ours, theirs = read_yaml(path)["value"], YAML(typ="safe").load(path.read_text())["value"]
    if text != "yes":  # YAML 1.1's booleans: a contract refuses either reading where it does not want it
        assert (ours, type(ours)) == (theirs, type(theirs))


def test_canonical_yaml_survives_its_own_reading(tmp_path: Path) -> None:
    values = {"a": 1e-5, "b": {"c": [0.1, 2.0], "d": "1e-3", "e": True}, "ä": "é: x"}
    path = tmp_path / "file.yaml"
    path.write_text(canonical_yaml(values))
    assert read_yaml(path) == values


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: 1\na: 2\n", "key 'a' stands twice"),
        ("a: [1\n", "is not valid YAML"),
        ("- 1\n", "holds a list; it must hold a mapping"),
    ],
)
def test_broken_files_are_named(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "file.yaml").write_text(text)
    with pytest.raises(ValueError, match=message) as error:
        read_yaml(tmp_path / "file.yaml")
    assert "file.yaml" in str(error.value)
    with pytest.raises(ValueError, match="does not exist; `git checkout"):
        read_yaml(tmp_path / "none.yaml")


def test_a_member_is_asked_for_by_its_name(repository: Path) -> None:
    path = repository / "params/prepare.yaml"
    assert list(load_params("prepare", path, "shapes").model_dump()["datasets"]) == ["shapes"]
    with pytest.raises(ValueError, match="datasets has no 'shape'; the names there are: shapes, shapes_video, digits"):
        load_params("prepare", path, "shape")
    with pytest.raises(ValueError, match="needs --member, a name under 'datasets'"):
        load_params("prepare", path)
    with pytest.raises(ValueError, match="stage is 'colour'; it must be one of prepare, pretrain"):
        contract("colour")


def test_an_output_appears_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "out" / "file"
    with atomic(path) as temporary:
        temporary.write_text("old")
    with pytest.raises(RuntimeError), atomic(path) as temporary:
        temporary.write_text("half")
        raise RuntimeError
    assert path.read_text() == "old"
    os.link(path, tmp_path / "cache")  # DVC's cache may share the file
    with atomic(path) as temporary:
        temporary.mkdir()
        (temporary / "inner").write_text("new")
    assert (path / "inner").read_text() == "new" and (tmp_path / "cache").read_text() == "old"
    assert list(path.parent.iterdir()) == [path]


def test_flat_names() -> None:
    assert flatten({"a": {"b": 1, "c": {"d": 2}}, "e": [3]}, ".") == {"a.b": 1, "a.c.d": 2, "e": [3]}


def test_names_of_the_committed_pipeline(repository: Path) -> None:
    assert current_names(repository / "params") >= {"pretrain", "davis", "prepare/shapes", "linear_probe/digits"}


def test_a_fingerprint_follows_params_and_contents_but_not_places(tmp_path: Path, repository: Path) -> None:
    params = load_params("davis", repository / "params/davis.yaml")

    def made(folder: str, params: DavisParams, encoder: bytes, content: str) -> str:
        base = tmp_path / folder
        (base / "data").mkdir(parents=True, exist_ok=True)
        (base / "encoder").write_bytes(encoder)
        (base / "data/card.json").write_text(f'{{"content": "{content}"}}')
        return fingerprint("davis", params, DavisInputs(encoder=base / "encoder", dataset=base / "data"))

    assert isinstance(params, DavisParams)
    first = made("one", params, b"weights", "abc")
    assert made("two", params, b"weights", "abc") == first
    others = {
        made("three", params.model_copy(update={"top_k": 6}), b"weights", "abc"),
        made("four", params, b"other", "abc"),
        made("five", params, b"weights", "abd"),
    }
    assert len(others | {first}) == 4


REST = ["--values", ".", "--protocols", ".", "--plots", ".", "--report", "r", "--page", "p", "--table", "t", "--run", "u"]  # fmt: skip


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["colour"], "error: stage is 'colour'; it must be one of prepare, pretrain, linear_probe, finetune, davis, clevr, "
         "analysis, report"),
        (["report", "--params", "gone.yaml", "--metrics", ".", *REST], "error: params file 'gone.yaml' does not exist"),
        (["report", "--params", "report.yaml", "--metrics", "gone", *REST], "error: report: input --metrics is"),
    ],
)  # fmt: skip
def test_bad_commands_leave_with_one_message_and_status_2(
    repository: Path, tmp_path: Path, arguments: list[str], message: str
) -> None:
    (tmp_path / "report.yaml").write_text((repository / "params/report.yaml").read_text())
    done = subprocess.run(
        [sys.executable, "-m", "components", *arguments], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 2
    assert done.stderr.startswith(message) and "Traceback" not in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["report.yaml"]
