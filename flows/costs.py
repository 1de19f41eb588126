"""What a run's pretraining will cost: on its page before it starts, or of any presets: `python -m flows.costs vit_b16,stop_paper`."""

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from components.preflight.__main__ import add_options, answer
from components.preflight.dataset import carded, expected
from components.preflight.devices import DEVICES
from components.preflight.prediction import costs, predict
from components.preflight.report import write
from components.pretrain.contract import PretrainParams
from flows import presets


def page(root: Path, params: Mapping[str, Mapping[str, Any]]) -> str:
    """The preflight of params by stage word, in the folder `root`. Nothing is measured: a run may start on another machine."""
    pretrain = PretrainParams.model_validate(params["pretrain"])
    folder = root / "data" / "prepared" / pretrain.dataset
    ready = (folder / "card.json").is_file()
    dataset = carded(folder) if ready else expected(pretrain.dataset, params.get("prepare"))
    cost = costs(pretrain)
    devices = DEVICES.values() if pretrain.scale.device == "gpu" else ()
    return write(cost, [predict(cost, device) for device in devices], dataset)


def main(argv: Sequence[str] | None = None) -> int:
    """Exit status 0, or 2 with one message for bad input. Nothing is written."""
    parser = argparse.ArgumentParser(prog="python -m flows.costs", description=__doc__, allow_abbrev=False)
    parser.add_argument("presets", help="names of params/presets/*.yaml with commas between them, later ones win")
    parser.add_argument("--root", type=Path, default=Path(__file__).parents[1], help="the project's folder")
    add_options(parser)
    options = parser.parse_args(argv)
    try:
        params = presets.compose(options.root, [name.strip() for name in options.presets.split(",")])
        print(answer(PretrainParams.model_validate(params["pretrain"]), params["prepare"], options))
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
