"""A Prefect server for one run from a terminal; it ends with the run, and also when the run is killed."""

import os
import socket
import sys
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from components.reachable import why_not
from flows import command, service

START_S = 120


def check() -> None:
    """ValueError where PREFECT_API_URL names a server that doesn't answer, or none at all."""
    address = os.environ.get("PREFECT_API_URL", "")
    if not address:
        raise ValueError(
            "PREFECT_API_URL is not set; it must name a Prefect server, as in http://127.0.0.1:4200/api. `make up` "
            "starts one and serves the deployments"
        )
    if reason := why_not(f"{address.rstrip('/')}/health"):
        raise ValueError(
            f"PREFECT_API_URL is {address!r}, where no Prefect server answers: {reason}; start it, for example with `make up`, or correct "
            "the address; without the variable `make run` starts a server for the time of the run"
        )


@contextmanager
def temporary(root: Path) -> Iterator[str]:
    """The server's address without `/api`; its own lines go to logs/prefect.log in `root`.

    Prefect's own temporary server would get a terminal's Ctrl-C before the run could tell it how it ended, and would
    outlive a killed run. Raises RuntimeError when the server doesn't answer within START_S seconds.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    words = ["-m", "prefect", "--no-prompt", "server", "start", "--host", "127.0.0.1", "--port", str(port)]
    log = root / "logs" / "prefect.log"
    environment = os.environ | {
        "PREFECT_SERVER_UI_API_URL": f"http://127.0.0.1:{port}/api"
    }  # else its pages ask port 4200
    # The pool waits for the server's end, so it must be left after the lifeline.
    with ThreadPoolExecutor(1) as pool, command.Lifeline() as lifeline:
        server = pool.submit(command.run, [sys.executable, *words], lifeline, root, environment, log, lambda line: None)
        _wait(server, port, log)
        yield f"http://127.0.0.1:{port}"


def _wait(server: Future[command.Ended], port: int, log: Path) -> None:
    deadline = time.monotonic() + START_S
    while not service.answers(port, "/api/health"):
        if server.done() or time.monotonic() > deadline:
            raise RuntimeError(f"Prefect's server did not start on port {port}; {log} says why")
        time.sleep(0.1)
