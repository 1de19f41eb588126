"""The form of the end-to-end flow: what Prefect's UI shows and what its API accepts, derived from the contracts.

A section per stage in pipeline order with the fields, bounds and help texts of the stage's params, under the names of the YAML
files. Two things differ, since a form cannot show them: a mapping of members (`datasets`, `tasks`, `finetunings`) is a list of cards with
a `name`, and rules across fields are left to the contracts, which the flow's first task asks.
"""

import inspect
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal, ParamSpec, TypeVar, get_args, get_origin

from pydantic import BaseModel, ConfigDict, Field, create_model

from components.stage import STAGES, contract

P = ParamSpec("P")
R = TypeVar("R")
NAME = "name"


def section(word: str) -> type[BaseModel]:
    """The section of stage `word`: its params as a form's fields."""
    return _model(contract(word).params, {})


def parameters(function: Callable[P, R]) -> Callable[P, R]:
    """Gives a flow's function its parameters: what is said of the run, then a section per stage of the contracts.

    A stage left out keeps the values of params/. The run's name is no parameter: Prefect's form begins with it.
    """
    keyword = inspect.Parameter.KEYWORD_ONLY
    stages: Any = list[Literal[STAGES]]  # type: ignore[valid-type]
    run = {
        "stages": ([], stages),
        "force": (False, bool),
        "parallel": (2, Annotated[int, Field(ge=1, le=64)]),
        "uncommitted": ("carry", Literal["carry", "refuse"]),
        "in_place": (False, bool),
    }
    head = [inspect.Parameter(name, keyword, default=value, annotation=kind) for name, (value, kind) in run.items()]
    sections = [inspect.Parameter(word, keyword, default=None, annotation=section(word)) for word in STAGES]
    function.__signature__ = inspect.Signature(head + sections)  # type: ignore[attr-defined]
    return function


def to_form(word: str, params: Mapping[str, Any]) -> dict[str, Any]:
    """A stage's params as its section holds them."""
    members = contract(word).members
    if not members:
        return dict(params)
    return dict(params) | {members: [{NAME: name, **values} for name, values in params[members].items()]}


def to_params(word: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """A stage's params from its section, not yet validated. Raises ValueError for a name that two cards have."""
    members = contract(word).members
    if not members or not isinstance(values.get(members), list):
        return dict(values)
    cards: dict[str, Any] = {}
    for number, card in enumerate(values[members], 1):
        if not isinstance(card, Mapping) or not card.get(NAME):
            raise ValueError(f"{word}.{members}: card {number} has no name; give each card a name of its own")
        if card[NAME] in cards:
            raise ValueError(
                f"{word}.{members}: {card[NAME]!r} names two cards; rename or remove one, results are filed by name"
            )
        cards[str(card[NAME])] = {key: value for key, value in card.items() if key != NAME}
    return dict(values) | {members: cards}


def _model(params: type[BaseModel], first: Mapping[str, Any]) -> type[BaseModel]:
    """`params` without validators and with places for its fields, which Prefect's UI would sort otherwise."""
    fields = dict(first)
    for name, field in params.model_fields.items():
        about = Field(title=name, description=field.description, json_schema_extra={"position": len(fields)})
        fields[name] = (Annotated[_kind(field.annotation), *field.metadata, about], ...)
    config = ConfigDict(extra="forbid", title=params.__name__)
    model: type[BaseModel] = create_model(params.__name__, __config__=config, __doc__=params.__doc__, **fields)
    return model


def _kind(annotation: Any) -> Any:
    """What stands in the form for a field's type."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return _model(annotation, {})
    if get_origin(annotation) is dict:
        about = "Lower-case letters, digits and _; names its folder, its metrics and its DVC stage."
        name = Field(title=NAME, description=about, pattern="^[a-z0-9_]+$", json_schema_extra={"position": 0})
        return list[_model(get_args(annotation)[1], {NAME: (Annotated[str, name], ...)})]  # type: ignore[misc]
    return annotation
