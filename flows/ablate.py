"""`make ablation NAME=figure4 [DRY=1] [OTHER_CODE=renew]`: an ablation of params/ablations from a terminal, no server needed."""

import argparse
import contextlib
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import get_args

from flows import terminal
from flows.ablations import agenda, members, sweep
from flows.ablations.standing import OtherCode


def main(argv: Sequence[str] | None = None) -> int:
    """Exit status 0; 1 when a member failed; 2 for bad input, with one message and nothing started; 130 for Ctrl-C."""
    options = _parser().parse_args(argv)
    root = options.root.absolute()
    try:
        definition = sweep.values(root, options.name)
        due = agenda.read(root, options.name, definition, options.other_code)
        if options.dry:
            print(f"{due.listed()}\n{due.outline()}; nothing is started")
        members.check_raw(root, due.waiting)
        return 0 if options.dry else _run(root, options.name, definition, options.other_code)
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"stopped; `make ablation NAME={options.name}` continues with what is missing", file=sys.stderr)
        return 130


def _run(root: Path, name: str, definition: dict[str, object], other_code: OtherCode) -> int:
    with terminal.attended(root):
        from flows.ablation import MemberFailedError, ablation  # imports prefect, which reads its settings then

        with terminal.shown(), contextlib.chdir(root):
            try:
                ablation(ablation=name, other_code=other_code, **definition)
            except MemberFailedError:
                return 1
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m flows.ablate", description=__doc__, allow_abbrev=False)
    parser.add_argument("name", help="a file of params/ablations, without .yaml")
    parser.add_argument("--dry", action="store_true", help="check everything and list the members, start nothing")
    about = "what becomes of members that other code finished: refuse starts nothing, take takes them as they are, renew runs them again"
    parser.add_argument("--other-code", choices=get_args(OtherCode), default="refuse", help=about)
    parser.add_argument("--root", type=Path, default=Path(__file__).parents[1], help="the project's folder")
    return parser


if __name__ == "__main__":
    sys.exit(main())
