"""Several processes at a time, as the ranks of one process group are."""

import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).parents[2]


def run(commands: Mapping[str, Sequence[str]], folder: Path) -> None:
    """Runs the commands side by side to their ends; what each says stands in `<its name>.log` and, where one fails, in the error."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    processes = []
    for name, command in commands.items():
        log = (folder / f"{name}.log").open("w+")
        processes.append((subprocess.Popen(command, env=environment, stdout=log, stderr=log), log))
    try:
        for process, log in processes:
            process.wait(timeout=300)
            log.seek(0)
            assert process.returncode == 0, log.read()
    finally:
        for process, log in processes:
            process.kill()
            log.close()
