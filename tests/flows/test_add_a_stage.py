"""docs/add-a-stage.md, carried out as written in a copy of the project."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from components.stage import read_yaml

PROJECT = Path(__file__).parents[2]
KNOWN = """
from pathlib import Path
from flows import graph, presets
from flows.pipeline import pipeline
import inspect

assert "colour" in graph.words(Path.cwd())
assert "colour" in inspect.signature(pipeline).parameters
(node,) = [node for node in graph.read(Path.cwd(), ["colour"]) if node.name == "colour"]
assert node.upstreams == ("prepare@digits",), node
for name in presets.recipes(Path.cwd()):
    presets.recipe(Path.cwd(), name)
print(" ".join(presets.recipes(Path.cwd())))
"""


def blocks(text: str) -> list[tuple[str, str]]:
    """The file that each fenced block is of, '' for commands; and what stands in it."""
    return re.findall(r"^```\w+ ?(\S*)\n(.*?)^```$", text, flags=re.MULTILINE | re.DOTALL)


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """The files that git tracks or would, as they stand now."""
    command = ["git", "-C", str(PROJECT), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split("\0")
    for name in listed:
        if name and (PROJECT / name).is_file() and not (PROJECT / name).is_symlink():
            (tmp_path / "copy" / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(PROJECT / name, tmp_path / "copy" / name)
    (tmp_path / "copy/.dvc/config.local").write_text("[core]\n    no_scm = true\n")
    return tmp_path / "copy"


def do(copy: Path, *command: str) -> str:
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    environment = os.environ | {"PATH": path, "PYTHONPATH": str(copy)}
    done = subprocess.run(command, cwd=copy, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout}{done.stderr}"
    return done.stdout


@pytest.mark.faults
def test_the_recipe_makes_a_stage(copy: Path) -> None:
    python = sys.executable
    recipes = do(
        copy, python, "-c", "from pathlib import Path; from flows import presets; print(*presets.recipes(Path.cwd()))"
    )
    written = blocks((copy / "docs/add-a-stage.md").read_text())
    assert [name.rpartition("/")[2] for name, _ in written] == [
        "__init__.py", "contract.py", "run.py", "colour.yaml", "dvc.yaml", "test_run.py", "",
    ]  # fmt: skip
    for name, text in written:
        if name == "dvc.yaml":
            graph = copy / name
            graph.write_text(graph.read_text().replace("\n  report:\n", f"\n{text}\n  report:\n"))
        elif name:
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            (copy / name).write_text(text)
        else:
            do(copy, "bash", "-ec", text)
    assert do(copy, python, "-c", KNOWN) == recipes  # none is less than whole for the new stage

    do(copy, python, "-m", "dvc", "repro", "colour")
    metrics = json.loads((copy / "metrics/colour.json").read_text())
    assert set(metrics) == {"red", "green", "blue"} and 0 < metrics["red"] == metrics["blue"] < 255  # digits are grey
    assert set(read_yaml(copy / "dvc.lock")["stages"]) == {"prepare@digits", "colour"}
    assert "didn't change, skipping" in do(copy, python, "-m", "dvc", "repro", "colour")

    tests = ["tests/test_one_word.py", "tests/test_dependencies.py", "tests/colour", "tests/flows/test_form.py"]
    do(copy, python, "-m", "pytest", "-q", *tests)
    do(copy, python, "-m", "ruff", "check", "components/colour", "tests/colour")
    do(copy, python, "-m", "ruff", "format", "--check", "components/colour", "tests/colour")
    do(copy, "lint-imports")
