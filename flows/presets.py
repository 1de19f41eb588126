"""Overlays over the params files: `python -m flows.presets cifar10,stop_paper` writes them into params/.

params/presets/<name>.yaml has a section per stage with only the values it changes. Presets compose left to right
over the params files as they stand: mappings merge, `datasets`, `tasks` and `finetunings` replace, since other data means other
members, and `+datasets`, `+tasks` and `+finetunings` add members to those there are. What a preset doesn't name stays as it is in
the tree, so a whole recipe names every value it depends on.
"""

import argparse
import sys
from collections.abc import Mapping, Sequence
from itertools import takewhile
from pathlib import Path
from typing import Any

from components.stage import STAGES, atomic, canonical_yaml, contract, read_yaml, validate
from flows import graph

REPLACED = ("datasets", "tasks", "finetunings")


def compose(root: Path, names: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Complete params by stage word: the files in `root`/params with the presets `names` over them, validated.

    Raises ValueError for an unknown preset, a section that names no stage and values that the contracts refuse.
    """
    params = overlaid(root, names)
    origin = f" with {','.join(names)}" if names else ""
    for word, values in params.items():
        validate(contract(word).params, values, f"params/{word}.yaml{origin}")
    return params


def overlaid(root: Path, names: Sequence[str]) -> dict[str, dict[str, Any]]:
    """The same, its values not yet validated. Raises ValueError for an unknown preset and a section that names no stage."""
    params = {word: read_yaml(root / "params" / f"{word}.yaml") for word in graph.words(root)}
    for name in names:
        for word, changes in _preset(root, name).items():
            if word not in params or not isinstance(changes, dict):
                raise ValueError(
                    f"params/presets/{name}.yaml has {word!r}; it must hold mappings named after stages: "
                    f"{', '.join(params)}"
                )
            added = {key: changes[f"+{key}"] for key in REPLACED if f"+{key}" in changes}
            others = {key: value for key, value in changes.items() if key.removeprefix("+") not in added}
            members = {key: changes[key] for key in REPLACED if key in changes}
            params[word] = _merged(params[word], others) | members
            for key, more in added.items():
                params[word][key] = {**params[word][key], **more}
    return params


def recipes(root: Path) -> list[str]:
    """Names of the presets that are whole recipes: those with a section for every stage of dvc.yaml."""
    words = set(graph.words(root))
    return sorted(path.stem for path in _folder(root).glob("*.yaml") if words <= read_yaml(path).keys())


def recipe(root: Path, name: str) -> dict[str, dict[str, Any]]:
    """Complete params by stage word, in pipeline order, from the whole recipe `name` alone.

    Raises ValueError for an unknown preset and for values that are missing or that the contracts refuse.
    """
    sections = _preset(root, name)
    where = f"params/presets/{name}.yaml"
    return {
        word: validate(contract(word).params, sections[word], f"{where}: {word}").model_dump()
        for word in STAGES
        if word in graph.words(root)
    }


def description(root: Path, name: str) -> str:
    """What the comment at the top of the preset `name` says."""
    lines = (_folder(root) / f"{name}.yaml").read_text(encoding="utf-8").splitlines()
    return " ".join(line.removeprefix("#").strip() for line in takewhile(lambda line: line.startswith("#"), lines))


def write(root: Path, params: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Writes each params file whose values differ and returns their stage words; the other files stay untouched."""
    changed = []
    for word, values in params.items():
        path, text = root / "params" / f"{word}.yaml", canonical_yaml(values)
        if canonical_yaml(read_yaml(path)) != text:
            with atomic(path) as temporary:
                temporary.write_text(text, encoding="utf-8")
            changed.append(word)
    return changed


def _folder(root: Path) -> Path:
    return root / "params" / "presets"


def _preset(root: Path, name: str) -> dict[str, Any]:
    folder = _folder(root)
    legal = sorted(path.stem for path in folder.glob("*.yaml"))
    if name not in legal:
        raise ValueError(f"preset is {name!r}; the presets in params/presets are: {', '.join(legal) or 'none'}")
    return read_yaml(folder / f"{name}.yaml")


def _merged(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(below)
    for key, value in above.items():
        both = isinstance(value, Mapping) and isinstance(below.get(key), Mapping)
        merged[key] = _merged(below[key], value) if both else value
    return merged


def main(argv: Sequence[str] | None = None) -> int:
    """Exit status 0, or 2 with one message for bad input, in which case nothing is written."""
    parser = argparse.ArgumentParser(prog="python -m flows.presets", description=__doc__)
    parser.add_argument("presets", help="names of params/presets/*.yaml with commas between them, later ones win")
    parser.add_argument("--root", type=Path, default=Path(__file__).parents[1], help="the project's folder")
    options = parser.parse_args(argv)
    try:
        changed = write(options.root, compose(options.root, [name.strip() for name in options.presets.split(",")]))
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    for word in changed:
        print(f"written: params/{word}.yaml")
    return 0


if __name__ == "__main__":
    sys.exit(main())
