"""What ended a group of Ray workers: a verdict, which would come again, goes before lost connections."""

import pytest
from ray.exceptions import OutOfMemoryError
from ray.train import WorkerGroupError
from ray.train.v2._internal.exceptions import WorkerHealthCheckFailedError
from ray.train.v2.api.exceptions import ControllerError

from components.pretrain.remote import OURS, _cause


@pytest.mark.parametrize(
    ("failures", "kind", "text"),
    [
        ({0: RuntimeError("Connection closed by peer"), 1: ValueError("loss is nan")}, ValueError, "loss is nan"),
        ({0: RuntimeError("Connection closed by peer"), 1: TypeError("a fault of ours")}, TypeError, "a fault of ours"),
        ({0: RuntimeError("Connection closed by peer"), 1: OutOfMemoryError("killed")}, OutOfMemoryError, "killed"),
        ({0: WorkerHealthCheckFailedError("no answer", OutOfMemoryError("killed"))}, OutOfMemoryError, "killed"),
        ({3: RuntimeError("DataLoader worker (pid 7) is killed")}, RuntimeError, "DataLoader worker (pid 7) is killed"),
    ],
)
def test_a_verdict_goes_before_what_it_brought_about(
    failures: dict[int, Exception], kind: type[Exception], text: str
) -> None:
    cause = _cause(WorkerGroupError("told", failures))
    assert type(cause) is kind and text in str(cause)
    assert isinstance(cause, (ValueError, *OURS)) == (kind in (ValueError, TypeError))


def test_what_the_controller_met_counts_as_well() -> None:
    assert isinstance(_cause(ControllerError(ValueError("no room for the curves"))), ValueError)
