"""Promotes a finished run: its encoder becomes the champion of MLflow's registry, its files a branch, its data goes to the remote.

`python -m flows.promote RUN`, and `python -m flows.promote --rollback` for the way back; in Prefect the flows `promote` and `rollback`.
"""

import argparse
import logging
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from prefect import flow, get_run_logger
from prefect.artifacts import create_markdown_artifact
from prefect.client.schemas import State
from prefect.states import Completed, Failed

from flows.promotions import judgement, promotion
from flows.promotions.promotion import Request


@flow(name="promote", persist_result=False)
def promote(
    run: str, metrics: Sequence[str] = (), tolerance: float = judgement.TOLERANCE, force: str = "", push: bool = True
) -> State[str]:
    """Makes a finished run's encoder the champion of MLflow's registry, if its scores may stand beside the champion's.

    Its params and dvc.lock become the branch `promoted/<run>`; data, checkpoints and the run cache go to DVC's default remote.

    Args:
        run: Name of a finished run.
        metrics: Scores to compare on, such as davis/jf_mean. None means every headline that the run and the champion share.
        tolerance: Percentage points by which a score may be worse than the champion's.
        force: Why it is promoted even if the comparison speaks against it. Empty lets the comparison decide.
        push: Pushes to DVC's default remote.
    """
    return _state(lambda: promotion.promote(Path.cwd(), Request(run, metrics, tolerance, force, push)))


@flow(name="rollback", persist_result=False)
def rollback() -> State[str]:
    """Gives the name of champion back to the version before. Nothing is removed."""
    return _state(lambda: promotion.rollback(Path.cwd()))


def _state(act: Callable[[], str]) -> State[str]:
    try:
        text = act()
    except (ValueError, RuntimeError) as error:  # said in full already; Prefect would print a traceback of ours
        return Failed(message=str(error), data=error)
    get_run_logger().info("%s", text)
    create_markdown_artifact(text, key="promotion")
    return Completed(message=text, data=text)


def main(argv: Sequence[str] | None = None) -> int:
    """Exit status 0; 1 when git, DVC or MLflow failed; 2 for a run that cannot be promoted, with one message and nothing changed."""
    parser = argparse.ArgumentParser(prog="python -m flows.promote", description=__doc__, allow_abbrev=False)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("run", nargs="?", metavar="RUN", help="name of a finished run")
    what.add_argument("--rollback", action="store_true", help="give the alias back to the champion before")
    parser.add_argument("--metrics", default="", help="scores to compare on, with commas between them")
    parser.add_argument(
        "--tolerance", type=float, default=judgement.TOLERANCE, help="percentage points it may be worse"
    )
    parser.add_argument("--force", default="", metavar="REASON", help="promote it whatever the comparison says")
    parser.add_argument("--no-push", action="store_true", help="do without DVC's remote")
    parser.add_argument("--root", type=Path, default=Path.cwd(), help="the project's folder")
    options = parser.parse_args(argv)
    logging.basicConfig(format="%(message)s")
    logging.getLogger("flows").setLevel(logging.INFO)
    root, metrics = options.root.resolve(), [name for name in options.metrics.split(",") if name]
    request = Request(options.run, metrics, options.tolerance, options.force, not options.no_push)
    try:
        print(promotion.rollback(root) if options.rollback else promotion.promote(root, request))
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except RuntimeError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
