"""One worker of test_same_mathematics.py, a process: `python recorded_worker.py RANK WORLD MEETING JOBS`.

Runs the jobs of the JSON file JOBS one after the other in one process group, which meets in the file MEETING. Beside JOBS it leaves
`<name>-<rank>.pt` of each: what it drew in every step, by place in the global batch, and on rank 0 losses and the state at the end.
"""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, distributed

from components.images.store import Store
from components.mim import masks
from components.pretrain import loop
from components.pretrain.batches import Batch, Batches
from components.pretrain.contract import PretrainParams
from components.pretrain.loop import Trainer
from components.pretrain.parallel import Alone, Replicated
from components.pretrain.sharding import Sharded
from components.pretrain.state import flat, read, write

CPU = torch.device("cpu")
KINDS = {"alone": Alone, "ddp": Replicated, "fsdp": Sharded}


class Drawn:
    """Tensors by name and step, then by an image's place in the global batch."""

    def __init__(self) -> None:
        self.tensors: dict[tuple[str, int], dict[int, Tensor]] = {}

    def add(self, name: str, step: int, places: Tensor, values: Tensor) -> None:
        known = self.tensors.setdefault((name, step), {})
        for place, value in zip(places.tolist(), values, strict=True):
            assert place not in known or torch.equal(known[place], value), (name, step, place)
            known[place] = value.clone()

    def stacked(self) -> dict[tuple[str, int], tuple[list[int], Tensor]]:
        """Places in rising order, and what is theirs."""
        found = {key: sorted(known.items()) for key, known in self.tensors.items()}
        return {key: ([place for place, _ in all_], torch.stack([t for _, t in all_])) for key, all_ in found.items()}


class Watched(Batches):
    """Batches that note their crops, in the order of the dataset or from the end of each batch to its start."""

    drawn: Drawn
    backwards = False

    def steps(self, start: int, stop: int) -> Iterator[Batch]:
        for step, batch in enumerate(super().steps(start, stop), start):
            self.drawn.add("crop", step, batch.places, batch.pixels)
            if self.backwards:
                batch = batch._replace(pixels=batch.pixels.flip(0), places=batch.places.flip(0))
            yield batch


def watch(drawn: Drawn) -> None:
    """Notes the masks and the noise that the loop draws."""
    sample, draw_noise = masks.sample.__wrapped__, loop.draw_noise.__wrapped__  # type: ignore[attr-defined]

    def sampled(seed: int, step: int, places: Tensor, *more: Any) -> Any:
        chosen = sample(seed, step, places, *more)
        for name, indices in [
            ("context", chosen.context_BK),
            *((f"target {m}", t) for m, t in enumerate(chosen.targets)),
        ]:
            drawn.add(name, step, places, indices)
        return chosen

    def noise(stop: Any, seed: int, step: int, places: Tensor, *more: Any) -> Any:
        found = draw_noise(stop, seed, step, places, *more)
        for m, values in enumerate(found.masked):
            drawn.add(f"noise {m}", step, places, values)
        return found

    for module, name, function, old in ((masks, "sample", sampled, sample), (loop, "draw_noise", noise, draw_noise)):
        function.__wrapped__ = old  # type: ignore[attr-defined]
        setattr(module, name, function)


def run(job: dict[str, Any], rank: int, world: int, out: Path) -> None:
    params, drawn = PretrainParams.model_validate(job["params"]), Drawn()
    watch(drawn)

    def trainer() -> Trainer:
        batches = Watched(params, Store(Path(job["dataset"]), "train"), rank, world)
        batches.drawn, batches.backwards = drawn, job["backwards"]
        return Trainer(params, batches, KINDS[job["kind"]](CPU), Path("scratch"))

    one, file = trainer(), out / f"{job['name']}.safetensors"
    if job["stop"]:  # and go on from the file in a trainer of its own
        one.stopping = lambda: one.step == job["stop"] - 1
        assert not one.train(lambda row, own: None, lambda: save(one, file, rank))
        one = trainer()
        one.restore(read(file))
    one.train(lambda row, own: None, lambda: None)
    state = one.state()
    found = {"drawn": drawn.stacked()}
    if rank == 0:
        found |= {
            "losses": [row["loss"] for row in one.history],
            "norms": [row["gradient_norm"] for row in one.history],
        }
        found |= {"tensors": {name: tensor.clone() for name, tensor in flat(state).items()}}
    torch.save(found, out / f"{job['name']}-{rank}.pt")


def save(one: Trainer, file: Path, rank: int) -> None:
    state = one.state()
    if rank == 0:
        write(file, state, flat(state))
    if one.parallel.world > 1:
        distributed.barrier()


def main() -> None:
    rank, world, meeting, jobs = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], Path(sys.argv[4])
    torch.set_num_threads(1)
    masks.sample.__wrapped__, loop.draw_noise.__wrapped__ = masks.sample, loop.draw_noise  # type: ignore[attr-defined]
    if world > 1:
        distributed.init_process_group("gloo", f"file://{meeting}", rank=rank, world_size=world)
    for job in json.loads(jobs.read_text()):
        run(job, rank, world, jobs.parent)
    if world > 1:
        distributed.destroy_process_group()


if __name__ == "__main__":
    main()
