"""Training in this very process, without Ray: the same loop for one worker.

`python -m components.pretrain.local --params params/pretrain.yaml --dataset data/prepared/NAME --output FOLDER [--init FILE] [--quality
data/prepared/NAME]` trains where
only torch, timm, numpy, pyarrow and pydantic are installed, and what timm brings: no Ray, MLflow, DVC or Prefect. The folder gets
checkpoints, `history.jsonl`, and at the end `encoder.safetensors` and `predictor.safetensors`. Started again it goes on, with the same
params and data only.
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Any, cast

import torch

from components import progress
from components.images.store import Store
from components.mim import weights
from components.mim.model import MaskedImageModel
from components.pretrain import resuming
from components.pretrain.batches import Batches
from components.pretrain.building import build
from components.pretrain.contract import PretrainParams
from components.pretrain.following import Listener, following
from components.pretrain.history import HISTORY, append
from components.pretrain.loop import Row
from components.pretrain.parallel import Alone
from components.pretrain.session import Job, work
from components.pretrain.state import State
from components.pretrain.stopping import Stop
from components.stage import atomic, canonical_yaml, content, load_params, write_json
from components.work import alone


def train(job: Job, stop: Stop) -> bool:
    """Trains to the end; False when `stop` was set and a checkpoint was saved before it.

    Raises ValueError when it asks for a GPU and torch sees none.
    """
    scale = job.params.scale
    if scale.device == "gpu" and not torch.cuda.is_available():
        raise ValueError(
            "scale.device is 'gpu', but torch sees no CUDA device here; set it to cpu, or free or mount a GPU"
        )
    if scale.device == "cpu":
        torch.set_num_threads(scale.cpus_per_worker)

    def log(row: Row, own: Row) -> None:
        append(job.folder / HISTORY, row, [own])

    return work(job, Alone(torch.device("cuda" if scale.device == "gpu" else "cpu")), log, lambda: stop.asked)


def export(model: MaskedImageModel, state: State, encoder: Path, predictor: Path, about: dict[str, Any]) -> None:
    """Writes the predictor and the target encoder (MAE's only one) of a state, each describing itself and saying `about`.

    `model` gets both. Raises RuntimeError where a tensor does not fit.
    """
    model.load_state_dict(state["model"], strict=True)
    with atomic(predictor) as path:
        weights.save(path, model.predictor, about)
    if state["target"] is not None:
        model.encoder.load_state_dict(state["target"], strict=True)
    with atomic(encoder) as path:
        weights.save(path, model.encoder, about)


def main(argv: list[str] | None = None) -> int:
    """Exit status 0 on success, 2 for bad input (one message on stderr), 130 and 143 after SIGINT and SIGTERM."""
    parser = argparse.ArgumentParser(
        prog="python -m components.pretrain.local", description=__doc__, allow_abbrev=False
    )
    parser.add_argument("--params", type=Path, required=True, metavar="FILE", help="values of pretraining")
    parser.add_argument(
        "--dataset", type=Path, required=True, metavar="FOLDER", help="prepared dataset with a train split"
    )
    parser.add_argument(
        "--quality",
        type=Path,
        metavar="FOLDER",
        help="prepared labelled dataset to measure quality on; without it nothing does",
    )
    parser.add_argument("--output", type=Path, required=True, metavar="FOLDER", help="where everything goes")
    parser.add_argument(
        "--init", type=Path, metavar="FILE", help="encoder to start from; init.path of the params otherwise"
    )
    chosen = parser.parse_args(argv)
    try:
        quality = chosen.quality.absolute() if chosen.quality else None
        _run(chosen.params, chosen.dataset.absolute(), quality, chosen.output.absolute(), chosen.init)
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:  # after a checkpoint, which was told
        return 130
    return 0


def _run(file: Path, dataset: Path, quality: Path | None, folder: Path, init: Path | None) -> None:
    params = cast(PretrainParams, load_params("pretrain", file))
    if params.scale.workers > 1:
        raise ValueError(
            f"scale.workers is {params.scale.workers}; without Ray there is one: set it to 1, or run the stage"
        )
    start = (init or Path(params.init.path)).absolute()
    steps = Batches(params, Store(dataset, "train"), 0, 1).total
    read = {"dataset": content(dataset), "init": content(start), "quality": content(quality) if quality else ""}
    with alone(folder, f"another process trains in {folder}; waiting"):
        _same(folder, canonical_yaml(params.model_dump()), read)
        stop = Stop()
        with stop.listening():
            job = Job(params, dataset, start, quality, folder, resuming.begin(folder))
            with following(folder / HISTORY, steps, Listener()):
                done = train(job, stop)
        if not done:
            stop.end()
        _finish(job, steps)


def _finish(job: Job, steps: int) -> None:
    """Writes what goes on."""
    params, folder, state = job.params, job.folder, resuming.ended(job.folder, steps)
    about = {
        "params": params.model_dump(),
        "weight_init": params.weight_init,
        "seed": params.seed,
        "steps": state["step"],
    }
    export(
        build(params, job.init).model, state, folder / "encoder.safetensors", folder / "predictor.safetensors", about
    )
    progress.show(f"{folder / 'encoder.safetensors'}: the target encoder after {state['step']} steps")


def _same(folder: Path, values: str, read: dict[str, str]) -> None:
    """Writes down params and what was read, each as a hash. Raises ValueError where the folder has work of others."""
    path, inputs = folder / "params.yaml", folder / "inputs.json"
    if path.is_file() and path.read_text(encoding="utf-8") != values:
        raise ValueError(
            f"{folder} has training of other params, which {path} has; give another --output, or the same params"
        )
    known = json.loads(inputs.read_text(encoding="utf-8")) if inputs.is_file() else read
    if others := [f"--{name}" for name in read if known[name] != read[name]]:
        raise ValueError(
            f"{folder} has training with other content of {', '.join(others)}; give another --output, or the same data"
        )
    with atomic(path) as temporary:
        temporary.write_text(values, encoding="utf-8")
    write_json(inputs, read)


if __name__ == "__main__":
    sys.exit(main())
