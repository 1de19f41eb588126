"""What replicas keep besides the model."""

from pathlib import Path
from typing import Any

import torch
from torch import distributed, nn

from components.pretrain.parallel import Replicated


def test_gradients_of_replicas_lie_in_the_buffers_that_go_round(tmp_path: Path) -> None:
    """As the preflight's memory model has it: where they are copies, each parameter's has memory of its own."""
    distributed.init_process_group("gloo", f"file://{tmp_path}/meeting", rank=0, world_size=1)
    try:
        model: Any = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2))
        wrapped = Replicated(torch.device("cpu")).distribute(model, None)
        for _ in range(3):  # DDP makes its buffers anew in the second step
            model.zero_grad(set_to_none=True)
            wrapped(torch.ones(1, 4)).sum().backward()
        assert len({parameter.grad.untyped_storage().data_ptr() for parameter in model.parameters()}) == 1
    finally:
        distributed.destroy_process_group()
