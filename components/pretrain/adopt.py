"""Going on from another fingerprint's state: its newest checkpoint becomes the start of this one's work."""

import os
import shutil
from pathlib import Path
from typing import Any

from components.mim.model import optimizer, target_encoder
from components.pretrain import checkpoints, unfinished
from components.pretrain.building import build
from components.pretrain.contract import PretrainParams
from components.pretrain.history import HISTORY
from components.pretrain.state import State
from components.stage import atomic, remove
from components.work import FINISHED, LOCK, USERS, alone, in_use

OWN = {unfinished.ABOUT, LOCK, USERS, FINISHED}
"""What says whose a folder is and how far it is, and goes to no other."""


def adopt(folder: Path, source: Path, replace: bool = False) -> list[str]:
    """Makes the newest state in `source` the start of the work in `folder`; lines that say what was done and what differs.

    `source` stays as it is. Raises ValueError, before anything is changed, where one of them is no state of pretraining or is in use,
    where `folder` has steps of its own and `replace` does not give them up, and where the state does not fit its params.
    """
    mine, other = _about(folder), _about(source)
    if folder.resolve() == source.resolve():
        raise ValueError(f"{folder} cannot go on from itself; it does so anyway when its stage starts")
    for path in (folder, source):
        if in_use(path):
            raise ValueError(f"a process is training in {path}; stop it first")
    if mine["finished"] or (mine["step"] and not replace):
        way_out = (
            "they are all it has to do"
            if mine["finished"]
            else f"give --replace to put those of {source} in their place"
        )
        raise ValueError(f"{folder} has {mine['step']} steps of its own; {way_out}")
    found = checkpoints.newest(source)
    if found is None:
        raise ValueError(f"{source} has no checkpoint to go on from")
    state = checkpoints.load(found)
    _check_fit(PretrainParams.model_validate(mine["params"]), mine, state, source)
    with alone(folder, ""), alone(source, ""):
        _copy(found, source, folder)
        from_there = {"fingerprint": other["fingerprint"], "step": state["step"], "run": other["run"]}
        unfinished.note(folder, step=state["step"], resumed_from=[*other["resumed_from"], from_there])
        unfinished.note(source, continued_as=mine["fingerprint"])
    done = f"{folder} goes on from step {state['step']} of {mine['steps']} when its stage starts"
    return [done, *(f"  {line}" for line in unfinished.differences(other, mine))]


def _about(folder: Path) -> unfinished.About:
    about = unfinished.read(folder)
    if about is None:
        raise ValueError(
            f"{str(folder)!r} holds no state of pretraining; give a folder work/pretrain/<fingerprint> that has {unfinished.ABOUT}, "
            f"as the stage's first lines name it"
        )
    return about


def _check_fit(params: PretrainParams, mine: unfinished.About, state: State, source: Path) -> None:
    """Loads everything once, as training would."""
    if state["step"] >= mine["steps"]:
        raise ValueError(
            f"{source} is at step {state['step']} and this work ends at {mine['steps']}; raise optimisation.epochs, start again and "
            f"then go on from it"
        )
    model = build(params, Path(mine["paths"]["init"])).model
    target = None if params.objective.name == "mae" else target_encoder(model.encoder)
    rates = params.optimisation
    try:
        model.load_state_dict(state["model"], strict=True)
        if (target is None) != (state["target"] is None):
            raise RuntimeError("one has a target encoder and the other has not (objective.name mae)")
        if target and state["target"]:
            target.load_state_dict(state["target"], strict=True)
        adamw = optimizer(model, rates.lr, rates.weight_decay, rates.beta2, rates.decay_A)
        adamw.load_state_dict(state["optimizer"])
    except (RuntimeError, ValueError) as error:
        first = [line.strip() for line in str(error).splitlines()][:2]
        raise ValueError(
            f"the state in {source} does not fit the params of {mine['fingerprint']}: {' '.join(first)} Only params that leave every "
            f"tensor's shape may differ; a trained encoder of the same architecture can start anew through init.source file"
        ) from error


def _copy(checkpoint: Path, source: Path, folder: Path) -> None:
    """The checkpoint as hard links where the disk has them, since it is never written again; and the curves up to it."""
    for path in folder.iterdir():
        if path.name not in OWN:
            remove(path)
    if (source / HISTORY).is_file():
        shutil.copy2(source / HISTORY, folder / HISTORY)
    with atomic(folder / checkpoints.FOLDER / checkpoint.name) as path:
        shutil.copytree(checkpoint, path, copy_function=_link)


def _link(source: str, aim: str) -> Any:
    try:
        os.link(source, aim)
    except OSError:  # another disk, or one without links
        shutil.copy2(source, aim)
