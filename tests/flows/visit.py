"""Starts the servers as `make mlflow` and `make run` do, and opens their pages as a browser would: `visit.py PROJECT ROOT`.

`test_offline.py` runs it where every attempt to leave this machine is seen.
"""

import os
import re
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from urllib.parse import urljoin

from flows import server

MLFLOW = "http://127.0.0.1:5000"
STAY_S = 5  # with telemetry on, both servers try to leave as soon as they are up and asked


def main(project: Path, root: Path) -> None:
    make = ["make", "-C", str(root), "-f", str(project / "Makefile"), "-o", ".venv/.installed", "mlflow"]
    mlflow = subprocess.Popen(make, start_new_session=True)
    try:
        with server.temporary(root) as prefect:
            visit(prefect, "/api/admin/settings", "/api/admin/version")
            while not answers(MLFLOW):
                assert mlflow.poll() is None, "make mlflow has ended"
                time.sleep(0.1)
            visit(MLFLOW, "/ajax-api/3.0/mlflow/ui-telemetry")
            leave = time.monotonic() + STAY_S
            while time.monotonic() < leave:
                assert answers(prefect) and answers(MLFLOW)
                time.sleep(0.1)
    finally:
        os.killpg(mlflow.pid, signal.SIGINT)
        mlflow.wait()


def visit(address: str, *asked: str) -> None:
    """Gets the page, the code it loads and what that code asks; none of it may lie elsewhere."""
    where, page = get(address)
    loaded = re.findall(r'(?:src|href)="([^"]+[.](?:js|css))"', page)
    addresses = [urljoin(where, path) for path in [*loaded, *asked]]
    assert loaded and all(one.startswith(address) for one in addresses), addresses
    for one in addresses:
        get(one)


def answers(address: str) -> bool:
    try:
        return bool(get(address))
    except (urllib.error.URLError, ConnectionError):
        return False


def get(address: str) -> tuple[str, str]:
    """The address it led to, and the text there."""
    with urllib.request.urlopen(address, timeout=30) as answer:
        return answer.url, answer.read().decode(errors="replace")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
