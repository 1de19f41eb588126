"""`make run [PRESET=NAMES] [DATA=FOLDER] [NAME=RUN] [IN_PLACE=1]`: the whole pipeline from a terminal, no server needed."""

import argparse
import contextlib
import logging
import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import datetime
from pathlib import Path
from typing import Any

from components.prepare.contract import LAYOUTS
from flows import links, preflight, presets, server, services

FOLDERS = {"davis": ["DAVIS"], "clevr": ["CLEVR_v1.0", "CLEVR"]}  # as the archives of these datasets unpack


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
        print("stopped; `make run` continues with what is missing", file=sys.stderr)
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
        found = [folder / entry for entry in names if (folder / entry).is_dir()]
        if not found:
            expected = " or ".join(str(folder / entry) for entry in names)
            missing.append(f"dataset {name!r} needs a folder {expected}; its layout: {LAYOUTS[dataset['format']]}")
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
    # A person's own Prefect profile and database stay out of it, unless the environment names a server.
    os.environ.setdefault("PREFECT_HOME", str(root / ".prefect"))
    os.environ.setdefault("PREFECT_LOGGING_LEVEL", "WARNING")
    os.environ.setdefault("MLFLOW_LOGGING_LEVEL", "WARNING")
    if (up := services.running(root)).get("prefect"):  # two servers would write to one database
        os.environ.setdefault("PREFECT_API_URL", f"http://127.0.0.1:{up['prefect'].port}/api")
        os.environ.setdefault("PREFECT_UI_URL", f"http://127.0.0.1:{up['prefect'].port}")
    if "mlflow" in up and not links.mlflow_ui():
        os.environ["MLFLOW_UI_URL"] = f"http://127.0.0.1:{up['mlflow'].port}"
    if "PREFECT_API_URL" in os.environ:
        print(f"Prefect server: {os.environ['PREFECT_API_URL']}", flush=True)
        return _pipeline(root, name, asked)
    print("Starting a Prefect server for this run, which takes some seconds", flush=True)
    with server.temporary(root) as address:
        print(f"Watch the run at {address}", flush=True)
        os.environ["PREFECT_API_URL"] = f"{address}/api"
        return _pipeline(root, name, asked)


def _pipeline(root: Path, name: str, asked: Mapping[str, Any]) -> int:
    from flows.pipeline import StageFailedError, pipeline  # imports prefect, which reads the settings above

    terminal = logging.getLogger("flows")
    terminal.addHandler(logging.StreamHandler(sys.stdout))
    terminal.setLevel(logging.INFO)
    terminal.propagate = False
    runs = [logging.getLogger(f"prefect.{kind}_runs") for kind in ("flow", "task")]
    for logger in runs:
        logger.propagate = False  # the terminal has these lines already
    logging.getLogger("EventsWorker").setLevel(
        logging.ERROR
    )  # warns whenever the end of a run takes Prefect some seconds
    try:
        with contextlib.chdir(root):
            pipeline.with_options(flow_run_name=name)(**asked)
    except StageFailedError:
        return 1
    finally:
        for handler in (handler for logger in runs for handler in logger.handlers):
            handler.flush()  # while there is a server to send the lines to
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
