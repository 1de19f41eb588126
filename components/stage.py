"""What every stage shares: typed parameters, checked inputs, atomic outputs, metrics and fingerprints.

A stage is one word. `components/<word>/contract.py` says what is legal with the classes `<Word>Params`, `<Word>Inputs`,
`<Word>Outputs` and `<Word>Metrics`; `components/<word>/run.py` does the work in `run(params, inputs, outputs)`.
"""

import hashlib
import importlib
import json
import re
import shutil
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, Self

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError, model_validator

STAGES = ("prepare", "pretrain", "linear_probe", "finetune", "davis", "clevr", "analysis", "report")


class Params(BaseModel):
    """Values of one params file or of a section of it. Unknown keys and wrong types are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


class Inputs(BaseModel):
    """Paths a stage reads. Each must exist when the stage starts."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    @model_validator(mode="after")
    def _exist(self) -> Self:
        for name, path in self:
            if not path.exists():
                raise ValueError(
                    f"input --{name.replace('_', '-')} is {str(path)!r}, which does not exist; put it there or make it "
                    f"with `dvc repro`, which runs the stages before this one"
                )
        return self


class Outputs(BaseModel):
    """Paths a stage writes, each through `atomic`."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Metrics(BaseModel):
    """What a stage measured. Accuracies, J and F are percentages, as in the paper's tables."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Contract(NamedTuple):
    """The four classes of one stage, and the name of its `foreach` mapping ('' where it has none)."""

    params: type[Params]
    inputs: type[Inputs]
    outputs: type[Outputs]
    metrics: type[Metrics]
    members: str


def contract(stage: str) -> Contract:
    """The contract of `stage`. Raises ValueError for a word that names no stage."""
    if stage not in STAGES:
        raise ValueError(f"stage is {stage!r}; it must be one of {', '.join(STAGES)}")
    module = importlib.import_module(f"components.{stage}.contract")
    word = "".join(part.title() for part in stage.split("_"))
    params, inputs, outputs, metrics = (
        getattr(module, word + kind) for kind in ("Params", "Inputs", "Outputs", "Metrics")
    )
    return Contract(params, inputs, outputs, metrics, getattr(module, "MEMBERS", ""))


class _Loader(yaml.SafeLoader):
    """YAML as DVC reads it: `1e-3` is a number (YAML 1.2), and a key given twice is an error."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = [self.construct_object(key, deep=True) for key, _ in node.value]
        for key in keys:
            if keys.count(key) > 1:
                raise ValueError(f"{node.start_mark.name}: key {key!r} stands twice in one mapping; keep one of them")
        return super().construct_mapping(node, deep)


_Loader.yaml_implicit_resolvers = {  # a copy, so that yaml.safe_load elsewhere stays as it is
    first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:float"]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^[-+]?(?:[0-9]+\.[0-9]*|\.[0-9]+|[0-9]+(?=[eE]))(?:[eE][-+]?[0-9]+)?$|^[-+]?\.inf$|^\.nan$"),
    list("-+0123456789."),
)


class _Dumper(yaml.SafeDumper):
    """Writes what `_Loader` reads back: a text that looks like a YAML 1.2 number gets quotes."""


_Dumper.yaml_implicit_resolvers = _Loader.yaml_implicit_resolvers


def read_yaml(path: Path) -> dict[str, Any]:
    """The mapping in a YAML file. Raises ValueError when the file is missing, malformed or no mapping."""
    if not path.is_file():
        raise ValueError(
            f"params file {str(path)!r} does not exist; `git checkout {path}` brings the committed values back"
        )
    try:
        with path.open(encoding="utf-8") as stream:
            values = yaml.load(stream, _Loader)  # noqa: S506 - a SafeLoader
    except yaml.YAMLError as error:
        raise ValueError(f"params file {str(path)!r} is not valid YAML: {error}") from error
    if not isinstance(values, dict):
        raise ValueError(
            f"params file {str(path)!r} holds a {type(values).__name__}; it must hold a mapping of names to values"
        )
    return values


def canonical_yaml(values: Mapping[str, Any]) -> str:
    """One text for one set of values: key order kept, no anchors, no flow style."""
    return yaml.dump(
        dict(values), Dumper=_Dumper, sort_keys=False, default_flow_style=False, allow_unicode=True, width=100
    )


def validate(model: type[Params], values: Mapping[str, Any], where: str) -> Params:
    """`values` as `model`; ValueError with one line per fault: where, the value, the rule and the way out."""
    try:
        return model.model_validate(values)
    except ValidationError as error:
        raise ValueError(explain(error, where, model)) from None


def explain(error: ValidationError, where: str, model: type[BaseModel]) -> str:
    """A pydantic error as lines a person can act on."""
    lines = []
    for fault in error.errors(include_url=False):
        key = ".".join(str(part) for part in fault["loc"])
        label = f"{where}: {key}" if key else where
        if fault["type"] == "extra_forbidden":
            legal = ", ".join(_fields_at(model, fault["loc"][:-1])) or "none"
            lines.append(f"{label} is not a known name; the names here are: {legal}")
        elif fault["type"] == "missing":
            lines.append(f"{label} is missing; add it, every value is written out in the params file")
        elif fault["type"] == "value_error":
            lines.append(f"{label}: {fault['msg'].removeprefix('Value error, ')}")
        else:
            lines.append(f"{label} is {fault['input']!r}: {fault['msg'][0].lower()}{fault['msg'][1:]}")
    return "\n".join(lines)


def _fields_at(model: type[BaseModel], location: tuple[int | str, ...]) -> list[str]:
    """Field names of the nested model that `location` points into."""
    for part in location:
        field = model.model_fields.get(str(part))
        annotation = field.annotation if field else model  # a key of a mapping: stay on its value model
        for candidate in (annotation, *getattr(annotation, "__args__", ())):
            if isinstance(candidate, type) and issubclass(candidate, BaseModel):
                model = candidate
    return list(model.model_fields)


def load_params(stage: str, path: Path, member: str = "") -> Params:
    """The validated params of `stage`, narrowed to one `member` of its mapping when it is a `foreach` stage."""
    kind = contract(stage)
    params = validate(kind.params, read_yaml(path), str(path))
    if bool(kind.members) != bool(member):
        rule = f"needs --member, a name under {kind.members!r}" if kind.members else "takes no --member"
        raise ValueError(f"stage {stage!r} {rule}; got {member!r}")
    if not member:
        return params
    entries = getattr(params, kind.members)
    if member not in entries:
        raise ValueError(f"{path}: {kind.members} has no {member!r}; the names there are: {', '.join(entries)}")
    return params.model_copy(update={kind.members: {member: entries[member]}})


def current_names(params: Path) -> set[str]:
    """`<stage>` or `<stage>/<member>` of all that the params folder asks for; files of other members are leftovers."""
    names: set[str] = set()
    for stage in STAGES:
        path, members = params / f"{stage}.yaml", contract(stage).members
        if path.is_file():
            names |= {f"{stage}/{member}" for member in read_yaml(path)[members]} if members else {stage}
    return names


@contextmanager
def atomic(path: Path) -> Iterator[Path]:
    """A temporary sibling of `path` to write a file or folder at; it takes the place of `path` on success only."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.parent / f".{path.name}.partial"
    remove(temporary)
    try:
        yield temporary
        if path.is_dir() and not path.is_symlink():  # a folder cannot be replaced in one step
            remove(path)
        elif temporary.is_dir():
            path.unlink(missing_ok=True)
        temporary.replace(path)
    finally:
        remove(temporary)


def remove(path: Path) -> None:
    """Removes a file, link or folder if it is there. Never writes through a link into DVC's cache."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def write_json(path: Path, value: Any) -> None:
    """Writes `value` as indented JSON, atomically."""
    with atomic(path) as temporary:
        temporary.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def flatten(values: Mapping[str, Any], separator: str) -> dict[str, Any]:
    """Nested mappings as one level: {'a': {'b': 1}} becomes {'a.b': 1} for separator '.'."""
    flat: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, Mapping):
            flat.update({f"{key}{separator}{inner}": leaf for inner, leaf in flatten(value, separator).items()})
        else:
            flat[str(key)] = value
    return flat


def digest(value: Any) -> str:
    """sha256 (first 16 hex digits) of `value` as canonical JSON: the basis of fingerprints."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def fingerprint(stage: str, params: Params, inputs: Inputs) -> str:
    """Names a piece of work: the stage's params, what its inputs hold and the code loaded to do it.

    A prepared dataset counts by the content hash in its card, so that nothing large is hashed again; a file by its bytes; any
    other folder by its path. Call it when the stage's `run` module is imported.
    """
    return digest([stage, *ingredients(params, inputs).values()])


def ingredients(params: Params, inputs: Inputs) -> dict[str, dict[str, Any]]:
    """What a fingerprint is made of: `params`, `inputs` (a hash of each) and `code` (a hash of each loaded file)."""
    contents = {name: content(path) for name, path in inputs}
    return {"params": params.model_dump(), "inputs": contents, "code": code_files("components")}


def file_hash(path: Path) -> str:
    """sha256 of a file's bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def content(path: Path) -> str:
    """Says what is at `path`: the hash in a prepared dataset's card, a file's sha256, and of another folder its name."""
    if path.is_file():
        return file_hash(path)
    card = path / "card.json"
    return str(json.loads(card.read_text(encoding="utf-8"))["content"]) if card.is_file() else path.name


def code(*packages: str) -> str:
    """Hash of the source files of all loaded modules that are or are in `packages`, by name and content."""
    return digest(code_files(*packages))


def code_files(*packages: str) -> dict[str, str]:
    """sha256 of the source file of each loaded module that is or is in one of `packages`, by the module's name."""
    loaded = {name: getattr(module, "__file__", None) for name, module in sys.modules.items()}
    chosen = tuple(f"{package}." for package in packages)
    return {
        name: file_hash(Path(source))
        for name, source in sorted(loaded.items())
        if source and f"{name}.".startswith(chosen)
    }
