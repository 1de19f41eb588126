"""The form is the contracts': the same names, bounds and help texts, and nothing that Prefect's UI cannot draw."""

import inspect
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prefect.utilities.callables import parameter_schema
from prefect.utilities.schema_tools import is_valid_schema, validate

from components.stage import STAGES, contract
from flows import deploy, form, presets

PROJECT = Path(__file__).parents[2]
SNAPSHOT = Path(__file__).with_name("form.json")
RECIPES = presets.recipes(PROJECT)


@pytest.fixture(scope="module")
def schema() -> dict[str, Any]:
    """What Prefect derives from the flow, and hands to its UI and its API."""
    from flows.pipeline import pipeline

    made: dict[str, Any] = parameter_schema(pipeline).model_dump(mode="json")
    return made


def objects(node: Any) -> Iterator[dict[str, Any]]:
    if isinstance(node, dict):
        yield node
    for inner in node.values() if isinstance(node, dict) else node if isinstance(node, list) else ():
        yield from objects(inner)


def test_the_schema_is_the_one_on_record(schema: dict[str, Any]) -> None:
    """After an intended change: `UPDATE_SNAPSHOT=1 pytest tests/flows/test_form.py`, then read the difference."""
    if os.environ.get("UPDATE_SNAPSHOT"):
        SNAPSHOT.write_text(json.dumps(schema, indent=1, ensure_ascii=False) + "\n")
    assert schema == json.loads(SNAPSHOT.read_text())


def test_the_order_is_the_run_then_the_stages_of_the_pipeline(schema: dict[str, Any]) -> None:
    places = {name: about["position"] for name, about in schema["properties"].items()}
    assert sorted(places, key=places.__getitem__) == ["stages", "force", "parallel", "uncommitted", "in_place", *STAGES]
    assert all(
        schema["properties"][name]["description"] for name in ("stages", "force", "parallel", "uncommitted", "in_place")
    )
    assert schema["properties"]["stages"]["items"]["enum"] == list(STAGES)
    is_valid_schema(schema)


def test_there_is_no_widget_for_experts(schema: dict[str, Any]) -> None:
    """Unions draw as tabs, tuples badly, an open object as a JSON editor, and a single choice not as a drop-down."""
    for node in objects(schema):
        assert not {"anyOf", "oneOf", "allOf", "const", "prefixItems"} & node.keys(), node
        if node.get("type") == "object" and "definitions" not in node:
            assert node["additionalProperties"] is False and node["properties"], node
        if node.get("type") == "array":
            assert {"$ref", "enum", "type"} & node["items"].keys(), node


@pytest.mark.parametrize("word", STAGES)
def test_a_section_says_what_the_contract_says(schema: dict[str, Any], word: str) -> None:
    def compare(node: dict[str, Any], model: Any, first: tuple[str, ...] = ()) -> None:
        described = schema["definitions"][node["$ref"].rpartition("/")[2]]
        fields = described["properties"]
        assert sorted(fields, key=lambda name: fields[name]["position"]) == [*first, *model.model_fields]
        assert set(described["required"]) == set(fields)
        assert described["description"] == inspect.cleandoc(model.__doc__)
        for name, field in model.model_fields.items():
            assert fields[name]["title"] == name
            assert fields[name].get("description") == field.description
            inner = [
                kind
                for kind in (field.annotation, *getattr(field.annotation, "__args__", ()))
                if hasattr(kind, "model_fields")
            ]
            if inner and "$ref" in fields[name]:
                compare(fields[name], inner[0])
            elif inner:
                compare(fields[name]["items"], inner[0], ("name",))

    compare(schema["properties"][word], contract(word).params)


@pytest.mark.parametrize("recipe", RECIPES)
def test_what_a_deployment_fills_in_is_accepted_and_is_the_recipe_again(schema: dict[str, Any], recipe: str) -> None:
    filled = deploy.parameters(PROJECT, recipe)
    validate(filled, schema, raise_on_error=True)
    for word, values in presets.recipe(PROJECT, recipe).items():
        assert form.to_params(word, json.loads(json.dumps(filled[word]))) == values


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("pretrain", "stop", "noise_std"), -0.1),
        (("pretrain", "stop", "noise_std"), "a lot"),
        (("pretrain", "stop", "noise_sdt"), 0.1),
        (("pretrain", "scale", "device"), "tpu"),
        (("prepare", "datasets", 0, "name"), "My Data"),
        (("prepare", "datasets"), []),
        (("linear_probe", "tasks", 0, "heads", "learning_rates", 0), 0),
        (("stages",), ["pretrian"]),
        (("parallel",), 0),
        (("davis",), {}),
    ],
)
def test_the_api_refuses_what_a_schema_can_tell(schema: dict[str, Any], path: tuple[Any, ...], value: Any) -> None:
    from prefect.utilities.schema_tools.validation import ValidationError

    filled: Any = deploy.parameters(PROJECT, "demo")
    at = filled
    for part in path[:-1]:
        at = at[part]
    at[path[-1]] = value
    with pytest.raises(ValidationError):
        validate(filled, schema, raise_on_error=True)


def test_two_cards_of_one_name_and_a_card_without_are_told() -> None:
    card = form.to_form("linear_probe", presets.recipe(PROJECT, "demo")["linear_probe"])["tasks"][0]
    with pytest.raises(ValueError, match=r"linear_probe.tasks: 'digits' names two cards"):
        form.to_params("linear_probe", {"tasks": [card, card]})
    with pytest.raises(ValueError, match=r"linear_probe.tasks: card 2 has no name"):
        form.to_params("linear_probe", {"tasks": [card, {"dataset": "digits"}]})
