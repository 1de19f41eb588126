"""`python -m flows.deploy`: serves the flows to a Prefect server: a deployment for each whole recipe, each ablation, promote, rollback.

Start it in the project's folder, which its runs work for, with PREFECT_API_URL naming the server. `make up` does both.
`prefect deploy --all` registers the same deployments with a work pool instead; prefect.yaml takes their values from here.
"""

import logging
import os
import sys
from pathlib import Path
from typing import Any

from flows import form, graph, presets, server
from flows.ablations import sweep

POLL_S = 2.0  # Prefect's own 10 s is long for a person who has just pressed Run
RUNS = 2


def parameters(root: Path, name: str) -> dict[str, Any]:
    """What the sections of the form of deployment `name` are filled with; what is said of the run has defaults of its own."""
    return {word: form.to_form(word, values) for word, values in presets.recipe(root, name).items()}


def recipe(name: str) -> dict[str, Any]:
    """The build step of prefect.yaml: {parameters, description, checkout} of the deployment `name`, from the current folder."""
    root = Path.cwd()
    return {
        "parameters": parameters(root, name),
        "description": presets.description(root, name),
        "checkout": str(root),
    }


def ablation(name: str) -> dict[str, Any]:
    """The same of the deployment of ablation `name`, from its definition."""
    root = Path.cwd()
    return {
        "parameters": {"ablation": name, **sweep.parse(name, sweep.values(root, name)).model_dump()},
        "description": sweep.description(root, name),
        "checkout": str(root),
    }


def plain() -> dict[str, str]:
    """The same of a deployment whose form begins empty."""
    return {"checkout": str(Path.cwd())}


def runs() -> int:
    """How many runs go at once: RUNS of the environment. Raises ValueError for a text that is no such number."""
    text = os.environ.get("RUNS") or str(RUNS)
    if not text.isdigit() or int(text) < 1:
        raise ValueError(
            f"RUNS is {text!r}; it must be at least 1, the number of runs that go at once; others wait as Late"
        )
    return int(text)


def main() -> int:
    """Serves until it is stopped. Exit status 2 for bad input, with one message."""
    root = Path.cwd()
    try:
        server.check()
        limit = runs()
        graph.words(root)
        recipes = {name: recipe(name) for name in presets.recipes(root)}
        ablations = {name: ablation(name) for name in sweep.names(root)}
        if not recipes:
            raise ValueError(
                f"{root / 'params' / 'presets'} holds no whole recipe, a file with a section for every stage of "
                "dvc.yaml; add one, for there is nothing to serve"
            )
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    _serve(recipes, ablations, limit)
    return 0


def _serve(recipes: dict[str, dict[str, Any]], ablations: dict[str, dict[str, Any]], limit: int) -> None:
    from prefect import serve  # imports Prefect: only once the input is known to be good
    from prefect.types.entrypoint import EntrypointType

    from flows import zombies
    from flows.ablation import ablation as ablation_flow
    from flows.pipeline import pipeline
    from flows.promote import promote, rollback

    zombies.register()
    logging.getLogger("prefect.runner").setLevel(logging.INFO)
    deployments: Any = [  # to_deployment is a coroutine only inside a loop
        flow.to_deployment(
            name,
            parameters=about["parameters"],
            description=about["description"],
            entrypoint_type=EntrypointType.MODULE_PATH,
        )
        for flow, served in ((pipeline, recipes), (ablation_flow, ablations))
        for name, about in served.items()
    ]
    for other in (promote, rollback):
        deployments.append(other.to_deployment(other.name, entrypoint_type=EntrypointType.MODULE_PATH))
    serve(*deployments, limit=limit, pause_on_shutdown=False, print_starting_message=False, query_seconds=POLL_S)


if __name__ == "__main__":
    sys.exit(main())
