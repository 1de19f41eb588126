"""`python -m components.preflight [--params FILE] [--device h100 …]`: what a pretraining run costs, before it starts."""

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from components.preflight.dataset import Dataset, carded, expected
from components.preflight.devices import DEVICES, Device, device
from components.preflight.prediction import costs, predict
from components.preflight.report import write
from components.pretrain.contract import PretrainParams
from components.stage import read_yaml, validate

PARAMS = Path("params/pretrain.yaml")


def main(argv: Sequence[str] | None = None) -> int:
    """Exit status 0, or 2 with one message for bad input."""
    parser = argparse.ArgumentParser(prog="python -m components.preflight", description=__doc__, allow_abbrev=False)
    parser.add_argument(
        "--params",
        type=Path,
        default=PARAMS,
        metavar="FILE",
        help=f"{PARAMS}, or a whole recipe such as params/presets/vit_b16.yaml",
    )
    add_options(parser)
    options = parser.parse_args(argv)
    try:
        pretrain, prepare = _sections(options.params)
        print(answer(pretrain, prepare, options))
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


def add_options(parser: argparse.ArgumentParser) -> None:
    """What can be asked, whoever composes the params."""
    parser.add_argument(
        "--dataset", type=Path, metavar="FOLDER", help="prepared dataset whose card says how many images there are"
    )
    parser.add_argument("--images", type=int, metavar="N", help="images of an epoch, where no dataset says")
    parser.add_argument(
        "--device",
        nargs="+",
        default=[],
        metavar="NAME",
        help=f"{', '.join(DEVICES)}, or cpu, which measures this machine for 2 s",
    )
    parser.add_argument(
        "--utilisation",
        type=float,
        metavar="SHARE",
        help="of the peak FLOP/s that training gets, where you have measured it",
    )


def answer(pretrain: PretrainParams, prepare: Mapping[str, Any] | None, options: argparse.Namespace) -> str:
    """The report. Raises ValueError for options that cannot be."""
    if options.images is not None and options.images < 1:
        raise ValueError(f"images is {options.images}; it must be at least 1, the images of an epoch")
    if options.utilisation is not None and not 0 < options.utilisation <= 1:
        raise ValueError(f"utilisation is {options.utilisation}; it must be above 0 and at most 1, a share of the peak")
    devices = _devices(pretrain, options.device)
    cost = costs(pretrain)
    predictions = [predict(cost, each, options.utilisation) for each in devices]
    return write(cost, predictions, _dataset(pretrain, prepare, options))


def _sections(path: Path) -> tuple[PretrainParams, Mapping[str, Any] | None]:
    """Params of pretrain and, where they are known, of prepare: of a whole recipe, or of the file and the one beside it."""
    values = read_yaml(path)
    if "pretrain" in values:
        pretrain, prepare, where = values["pretrain"], values.get("prepare"), f"{path}: pretrain"
    else:
        beside = path.with_name("prepare.yaml")
        pretrain, prepare, where = values, read_yaml(beside) if beside.is_file() else None, str(path)
    checked = validate(PretrainParams, pretrain, where)
    assert isinstance(checked, PretrainParams)
    return checked, prepare


def _devices(params: PretrainParams, names: Sequence[str]) -> list[Device]:
    names = names or (["cpu"] if params.scale.device == "cpu" else list(DEVICES))
    return [_measured(params) if name == "cpu" else device(name) for name in names]


def _measured(params: PretrainParams) -> Device:
    from components.preflight.machine import this_machine  # imports torch

    return this_machine(params.scale.cpus_per_worker, params.scale.workers)


def _dataset(params: PretrainParams, prepare: Mapping[str, Any] | None, options: argparse.Namespace) -> Dataset:
    if options.images is not None:
        return Dataset(options.images, None, "--images")
    return carded(options.dataset) if options.dataset else expected(params.dataset, prepare)


if __name__ == "__main__":
    sys.exit(main())
