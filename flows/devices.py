"""GPUs of a stage's own: of the stages that flows start on a machine, no two see the same device in CUDA_VISIBLE_DEVICES.

A device is had by a name in Linux's abstract sockets, which only one can bind. The stage's supervisor and DVC below it keep the socket
open, so that the kernel frees the name when both have ended, whatever ended them. Unlike a file to lock, no cleaner of temporary folders
removes it in a long training, and all users and checkouts share it.
"""

import errno
import select
import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress

import pynvml
from prefect import get_run_logger

from flows.command import Lifeline

VISIBLE = "CUDA_VISIBLE_DEVICES"
ASK_S = 2.0


class ReleasedError(RuntimeError):
    """The run was cancelled while a stage waited for its turn."""


class TooFewError(ValueError):
    """A stage wants more GPUs than the machine has."""


def present(environment: Mapping[str, str]) -> dict[str, str]:
    """The GPUs that a process with this environment sees, as CUDA_VISIBLE_DEVICES names them; each with its UUID, where NVML knows it."""
    known = _known()
    if VISIBLE not in environment:
        return {str(number): uuid for number, uuid in enumerate(known)}
    names = [name.strip() for name in environment[VISIBLE].split(",")]
    hidden = next((place for place, name in enumerate(names) if name in ("", "-1", "NoDevFiles")), len(names))
    return {name: _identity(name, known) for name in names[:hidden]}


def _known() -> list[str]:
    """UUIDs of this machine's NVIDIA GPUs; none where there is no driver."""
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return []
    found = []
    try:
        for number in range(pynvml.nvmlDeviceGetCount()):
            with suppress(pynvml.NVMLError):  # another job's, or broken: CUDA does not number it either
                found.append(str(pynvml.nvmlDeviceGetUUID(pynvml.nvmlDeviceGetHandleByIndex(number))))
    finally:
        pynvml.nvmlShutdown()
    return found


def _identity(name: str, known: list[str]) -> str:
    """The UUID of the GPU of that name, else the name. Numbers are NVML's, which are CUDA's where all GPUs are of one kind."""
    if name.isdecimal() and int(name) < len(known):
        return known[int(name)]
    return next((uuid for uuid in known if uuid.startswith(name)), name)  # CUDA takes a UUID's beginning as well


def wanted(stage: str, gpus: int, environment: Mapping[str, str]) -> int:
    """How many of a stage's GPUs are this machine's to give. A Ray cluster gives its own: all to pretraining, else those of workers."""
    if environment.get("RAY_ADDRESS", "") in ("", "local"):
        return gpus
    return 0 if stage == "pretrain" else min(gpus, 1)


@contextmanager
def own(
    count: int, environment: Mapping[str, str], lifeline: Lifeline, spare: Callable[[], bool]
) -> Iterator[tuple[dict[str, str], list[int]]]:
    """Waits as `turn` until `count` GPUs are free. Gives what to add to a stage's environment, and what its supervisor keeps open.

    Nothing where `environment` shows no GPU: the stage says so itself. Raises TooFewError where it shows fewer, and as `turn`.
    """
    devices = present(environment) if count else {}
    found: dict[str, socket.socket] = {}
    if len(devices) < count and devices and not spare():
        raise TooFewError(
            f"the stage takes {count} GPUs, and {len(devices)} are to be seen on this machine ({', '.join(devices)}); lower its "
            f"`workers`, or start the run where there are more: {VISIBLE} may hide some"
        )
    with ExitStack() as stack:
        if 0 < count <= len(devices):
            what = f"{count} of the {len(devices)} GPUs to be seen on this machine"
            turn(lambda: _tried(stack, count, devices, found), spare, lifeline, what)
        yield {VISIBLE: ",".join(found)} if found else {}, [one.fileno() for one in found.values()]


def _tried(stack: ExitStack, count: int, devices: Mapping[str, str], found: dict[str, socket.socket]) -> bool:
    """Takes the first that are free until the end of the `stack`; False where they are fewer, and then it takes none.

    Two that try in the same moment may both go without; they try again, and not in the same moment for long.
    """
    with ExitStack() as taken:
        for name, identity in devices.items():
            one = taken.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM))
            try:
                one.bind(f"\0stop-gpu-{identity}")
            except OSError as error:
                if error.errno != errno.EADDRINUSE:
                    raise
                continue
            found[name] = one
            if len(found) == count:
                stack.enter_context(taken.pop_all())
                return True
    found.clear()
    return False


def turn(tried: Callable[[], bool], spare: Callable[[], bool], lifeline: Lifeline, what: str) -> None:
    """Asks `tried` again and again until it is true. Raises ReleasedError when the run ends meanwhile.

    `spare` is asked once when it is not: a stage that needs no GPU after all goes on without.
    """
    if tried() or spare():
        return
    get_run_logger().info("waits for %s, which other stages hold", what)
    # A wait in the kernel or in Prefect would outlast a cancelled run, of which only the main thread is told.
    while not select.select([lifeline], [], [], ASK_S)[0]:
        if tried():
            return
    raise ReleasedError(f"stopped while it waited for {what}")
