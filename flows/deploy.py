"""`python -m flows.deploy`: serves the end-to-end flow to a Prefect server, one deployment for each whole recipe.

Start it in the project's folder, which its runs work in, with PREFECT_API_URL naming the server. `make up` does both.
"""

import logging
import os
import sys
from pathlib import Path
from typing import Any

from flows import form, graph, presets

POLL_S = 2.0  # Prefect's own 10 s is long for a person who has just pressed Run


def parameters(root: Path, recipe: str) -> dict[str, Any]:
    """What the sections of the form of deployment `recipe` are filled with; what is said of the run has defaults of its own."""
    return {word: form.to_form(word, values) for word, values in presets.recipe(root, recipe).items()}


def main() -> int:
    """Serves until it is stopped. Exit status 2 for bad input, with one message."""
    root = Path.cwd()
    try:
        if "PREFECT_API_URL" not in os.environ:
            raise ValueError(
                "PREFECT_API_URL is not set; it must name a Prefect server, as in http://127.0.0.1:4200/api. `make up` "
                "starts one and serves the deployments"
            )
        graph.words(root)
        recipes = {name: parameters(root, name) for name in presets.recipes(root)}
        if not recipes:
            raise ValueError(
                f"{root / 'params' / 'presets'} holds no whole recipe, a file with a section for every stage of "
                "dvc.yaml; add one, for there is nothing to serve"
            )
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2

    from prefect import serve  # imports Prefect: only once the input is known to be good
    from prefect.types.entrypoint import EntrypointType

    from flows.pipeline import pipeline

    logging.getLogger("prefect.runner").setLevel(logging.INFO)
    # Runs work in this one folder, so they take turns; one that waits shows as Late.
    deployments: Any = [  # to_deployment is a coroutine only inside a loop
        pipeline.to_deployment(
            name,
            parameters=values,
            description=presets.description(root, name),
            entrypoint_type=EntrypointType.MODULE_PATH,
        )
        for name, values in recipes.items()
    ]
    serve(
        *deployments,
        limit=1,
        pause_on_shutdown=False,
        print_starting_message=False,
        query_seconds=POLL_S,
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
