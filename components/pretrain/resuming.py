"""Where a run goes on from and what it has come to, the same with Ray and without."""

from pathlib import Path

from components import progress
from components.pretrain import checkpoints
from components.pretrain import state as states
from components.pretrain.history import HISTORY, continued
from components.pretrain.state import State


def begin(folder: Path, reached: int = 0) -> Path | None:
    """The checkpoint that the work in `folder` goes on from, None at its start; the curves there then end where it does.

    `reached` is the step of the last checkpoint that was there. Warns where libraries have changed since. Raises ValueError where there
    were checkpoints and none is left to go on from.
    """
    checkpoints.clear(folder)
    found = checkpoints.newest(folder)
    if found is None and reached:
        raise ValueError(
            f"{folder} has reached step {reached} and has no checkpoint any more; bring its {checkpoints.FOLDER}/ back from a backup, or "
            f"remove {folder} to begin at step 0"
        )
    state = checkpoints.load(found) if found else None
    if state and (others := states.other_versions(state)):
        progress.show(
            f"WARNING: training goes on with other libraries, {', '.join(others)}; its last bits may differ from those of a run that "
            f"was not stopped"
        )
    continued(folder / HISTORY, state["history"] if state else [])
    return found


def ended(folder: Path, steps: int) -> State:
    """The state after the last of `steps`, which was saved. Raises ValueError where it has been damaged since."""
    found = checkpoints.newest(folder)
    reached = checkpoints.step_of(found) if found else 0
    if found is None or reached != steps:
        raise ValueError(
            f"training has ended, but the checkpoint of its last step, {steps}, is not whole any more; start again: it goes on from step "
            f"{reached}"
        )
    return checkpoints.load(found)
