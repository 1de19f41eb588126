"""What a flow that a person starts at a terminal needs: a Prefect server, and its lines on the screen."""

import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from flows import links, server, services


@contextmanager
def attended(root: Path) -> Iterator[None]:
    """A Prefect server that flows of the project in `root` find: that of `make up`, the environment's, or one for the time of the run.

    Raises ValueError where the environment's doesn't answer.
    """
    # A person's own Prefect profile and database stay out of it, unless the environment names a server.
    os.environ.setdefault("PREFECT_HOME", str(root / ".prefect"))
    os.environ.setdefault("PREFECT_LOGGING_LEVEL", "WARNING")
    os.environ.setdefault("MLFLOW_LOGGING_LEVEL", "WARNING")
    if (up := services.running(root)).get("prefect"):  # two servers would write to one database
        os.environ.setdefault("PREFECT_API_URL", f"http://127.0.0.1:{up['prefect'].port}/api")
        os.environ.setdefault("PREFECT_UI_URL", f"http://127.0.0.1:{up['prefect'].port}")
    if "mlflow" in up and not links.mlflow_ui():
        os.environ["MLFLOW_UI_URL"] = f"http://127.0.0.1:{up['mlflow'].port}"
    if "PREFECT_API_URL" in os.environ:
        server.check()
        print(f"Prefect server: {os.environ['PREFECT_API_URL']}", flush=True)
        yield
        return
    print("Starting a Prefect server for this run, which takes some seconds", flush=True)
    with server.temporary(root) as address:
        print(f"Watch the run at {address}", flush=True)
        os.environ["PREFECT_API_URL"] = f"{address}/api"
        yield


@contextmanager
def shown() -> Iterator[None]:
    """What flows say goes to stdout, once; enter it when Prefect is imported, as it makes loggers of its own."""
    terminal = logging.getLogger("flows")
    terminal.addHandler(logging.StreamHandler(sys.stdout))
    terminal.setLevel(logging.INFO)
    terminal.propagate = False
    runs = [logging.getLogger(f"prefect.{kind}_runs") for kind in ("flow", "task")]
    for logger in runs:
        logger.propagate = False  # the terminal has these lines already
    logging.getLogger("EventsWorker").setLevel(
        logging.ERROR
    )  # warns whenever the end of a run takes Prefect some seconds
    try:
        yield
    finally:
        for handler in (handler for logger in runs for handler in logger.handlers):
            handler.flush()  # while there is a server to send the lines to
