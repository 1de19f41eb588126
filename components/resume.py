"""Goes on from another fingerprint's training state: `python -m components.resume FOLDER --resume-from FOLDER`.

Both are folders `work/pretrain/<fingerprint>`: the first belongs to the work that shall go on, whose stage was started once and
stopped, the second has the state. Refuses a state that does not fit. Steps that the first has made meanwhile go with `--replace` only.
"""

import argparse
import sys
from pathlib import Path


def main(argv: list[str] | None = None) -> int:
    """Exit status 0 on success, 2 for bad input (one message on stderr)."""
    parser = argparse.ArgumentParser(prog="python -m components.resume", description=__doc__, allow_abbrev=False)
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="resume state of the work that shall go on")
    parser.add_argument("--resume-from", type=Path, required=True, metavar="FOLDER", help="resume state to go on from")
    parser.add_argument("--replace", action="store_true", help="give up the steps that FOLDER has of its own")
    arguments = parser.parse_args(argv)
    from components.pretrain.adopt import adopt  # loads torch

    try:
        print("\n".join(adopt(arguments.folder.absolute(), arguments.resume_from.absolute(), arguments.replace)))
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
