"""`make run [PRESET=NAMES] [DATA=FOLDER] [NAME=RUN] [IN_PLACE=1]`: the whole pipeline from a terminal, no server needed."""

import argparse
import contextlib
import sys
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import datetime
from pathlib import Path
from typing import Any

from components.prepare.contract import layout
from flows import preflight, presets, terminal

# As the archives of these datasets are named and unpack.
FOLDERS = {
    "davis": ["DAVIS", "DAVIS-2017-trainval-480p.zip"],
    "clevr": ["CLEVR_v1.0", "CLEVR", "CLEVR_v1.0.zip"],
    "cifar10": ["cifar-10-batches-py", "cifar-10-python.tar.gz"],
    "cifar100": ["cifar-100-python", "cifar-100-python.tar.gz"],
    "imagenet": ["ImageNet", "ILSVRC2012", "ILSVRC"],
}


def main(argv: Sequence[str] | None = None) -> int:
    """Exit status 0; 1 when a stage failed; 2 for bad input, with one message and nothing started; 130 for Ctrl-C."""
    options = _parser().parse_args(argv)
    root = options.root.absolute()
    name = options.name or f"{options.preset.replace(',', '-') or 'demo'}-{datetime.now():%Y%m%d-%H%M%S}"
    try:
        preflight.check_name(name)
        preflight.check_project(root)
        params = presets.compose(root, options.preset.split(",") if options.preset else [])
        with _turn(root, options.in_place):  # a run in place reads what is about to be written
            planned = planned_links(root, params["prepare"], options.data) if options.data else {}
            preflight.check_raw(root, params["prepare"], planned)
            for link, folder in planned.items():
                make_link(root, link, folder)
            # The flow checks again, but only when its server is up.
            for word in preflight.settle(root, params, [])[0] if options.in_place else ():
                print(f"params/{word}.yaml now holds the values of {options.preset}")
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    asked = {"force": options.force, "in_place": options.in_place, **(params if options.preset else {})}
    try:
        return _run(root, name, asked)
    except ValueError as error:  # the name is taken, another run has the folder, or a file changed since it was checked
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        again = "`make run` with another NAME" if options.name else "`make run`"  # a name is one run's only
        print(f"stopped; {again} continues with what is missing", file=sys.stderr)
        return 130


def _turn(root: Path, in_place: bool) -> AbstractContextManager[None]:
    return preflight.alone(root, "make run") if in_place else contextlib.nullcontext()


def planned_links(root: Path, prepare: Mapping[str, Any], folder: Path) -> dict[Path, Path]:
    """For each dataset read from `data/raw/…` that path and the entry of `folder` it shall link to.

    Looked for are the names of the raw folder and of the dataset, and for DAVIS and CLEVR the name their archives have.
    Raises ValueError when one is missing, a real folder stands where the link goes, or nothing is read from there.
    """
    planned, missing = {}, []
    for name, dataset in prepare["datasets"].items():
        source = Path(dataset["source"])
        if not source.is_relative_to("data/raw"):
            continue  # an embedded set, made from its seed
        names = dict.fromkeys([source.name, name, *FOLDERS.get(dataset["format"], [])])
        found = [folder / entry for entry in names if (folder / entry).exists()]
        if not found:
            expected = " or ".join(str(folder / entry) for entry in names)
            missing.append(f"dataset {name!r} needs {expected}; its layout: {layout(dataset['format'])}")
        elif (root / source).exists() and not (root / source).is_symlink():
            missing.append(f"{source} is a real folder, which DATA would hide; move it away, or run without DATA")
        else:
            planned[root / source] = found[0].absolute()
    if missing:
        raise ValueError("\n".join(missing))
    if not planned:
        raise ValueError(
            f"DATA is {str(folder)!r}, but every dataset in params/prepare.yaml is embedded; add a PRESET that reads raw "
            "data, such as cifar10, or leave DATA out"
        )
    return planned


def make_link(root: Path, link: Path, folder: Path) -> None:
    """Points `link` to `folder` and says so; a link that does already is left alone."""
    if link.is_symlink() and link.readlink() == folder:
        return
    before = f", no longer to {link.readlink()}" if link.is_symlink() else ""
    link.parent.mkdir(parents=True, exist_ok=True)
    link.unlink(missing_ok=True)
    link.symlink_to(folder, target_is_directory=True)
    print(f"{link.relative_to(root)} links to {folder}{before}")


def _run(root: Path, name: str, asked: Mapping[str, Any]) -> int:
    with terminal.attended(root):
        from flows.pipeline import StageFailedError, pipeline  # imports prefect, which reads its settings then

        with terminal.shown(), contextlib.chdir(root):
            try:
                pipeline.with_options(flow_run_name=name)(**asked)
            except StageFailedError:
                return 1
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m flows.demo", description=__doc__, allow_abbrev=False)
    parser.add_argument("--preset", default="", help="names of params/presets/*.yaml with commas between; see README")
    parser.add_argument("--data", type=Path, metavar="FOLDER", help="folder of raw datasets, linked into data/raw")
    parser.add_argument("--name", default="", help="the run's name; without one the presets and the time")
    parser.add_argument("--in-place", action="store_true", help="work in the checkout itself, and write its params")
    parser.add_argument("--force", action="store_true", help="run the stages that DVC would skip, too")
    parser.add_argument("--root", type=Path, default=Path(__file__).parents[1], help="the project's folder")
    return parser


if __name__ == "__main__":
    sys.exit(main())
