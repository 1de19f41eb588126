"""Each stage's code dependencies in dvc.yaml are its real import closure, so that no cached result can be stale."""

import ast
from pathlib import Path

import pytest

from components.stage import STAGES, read_yaml


def imports(path: Path, root: Path) -> set[Path]:
    """Files of our own that a file imports anywhere in it, also inside functions."""
    found: set[Path] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
        for name in names:
            if name.split(".")[0] == "components":
                base = root.joinpath(*name.split("."))
                found |= {file for file in (base.with_suffix(".py"), base / "__init__.py") if file.is_file()}
    return found


def closure(word: str, root: Path) -> set[Path]:
    """All our files that importing the stage's `run` loads; package files without code but a docstring do not count."""
    seen: set[Path] = set()
    generators = {
        path for path in (root / "components/prepare/embedded").glob("*.py") if "def generate(" in path.read_text()
    }
    readers = set((root / "components/prepare/readers").glob("*.py"))  # they and the generators are imported by name
    open_files = {root / "components" / word / "run.py"} | (generators | readers if word == "prepare" else set())
    while open_files:
        path = open_files.pop()
        seen.add(path)
        open_files |= imports(path, root) - seen
    own = generators if word == "prepare" else set()  # each is the `source` of its dataset alone
    return {path for path in seen - own if len(ast.parse(path.read_text()).body) > 1}


@pytest.mark.parametrize("word", STAGES)
def test_code_dependencies_are_the_import_closure(repository: Path, word: str) -> None:
    described = read_yaml(repository / "dvc.yaml")["stages"][word]
    declared = [repository / dep for dep in described.get("do", described)["deps"] if dep.startswith("components")]
    files = closure(word, repository)

    def covers(dependency: Path, file: Path) -> bool:
        return dependency == file or dependency in file.parents

    missing = [str(file) for file in files if not any(covers(dependency, file) for dependency in declared)]
    assert not missing, f"add to deps of {word}: {missing}"
    idle = [str(dependency) for dependency in declared if not any(covers(dependency, file) for file in files)]
    assert not idle, f"remove from deps of {word}: {idle}"
