"""`make up`, `make down`, `make status`: Prefect's server, MLflow's server and the served deployments, on this machine.

Each is a process of its own that outlives the terminal. .prefect/services.json notes which ones were started, by process id
and start time, so that exactly these are ended again. Their lines go to logs/services/.
"""

import argparse
import fcntl
import json
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from components.stage import write_json
from flows import links, service
from flows.service import Service, Started


def services(root: Path) -> list[Service]:
    """The three services in their order of starting."""
    noted = {name: process.port for name, process in _noted(root).items()}  # what died comes back where it was
    prefect = service.port("PREFECT_PORT", noted.get("prefect", 4200))
    mlflow = service.port("MLFLOW_PORT", noted.get("mlflow", 5000))
    python, local = [sys.executable, "-m"], ["--host", "127.0.0.1"]
    store = [
        "--backend-store-uri",
        f"sqlite:///{root / 'mlflow.db'}",
        "--artifacts-destination",
        str(root / "mlartifacts"),
    ]
    return [
        Service(
            "prefect",
            [*python, "prefect", "--no-prompt", "server", "start", *local, "--port", str(prefect)],
            prefect,
            "/api/health",
        ),
        Service(
            "mlflow",
            [*python, "mlflow", "server", "--workers", "1", *local, "--port", str(mlflow), *store],
            mlflow,
            "/health",
        ),
        Service("deployments", [*python, "flows.deploy"], 0, ""),
    ]


def running(root: Path) -> dict[str, Started]:
    """What `make up` started and still runs, by name."""
    return {name: process for name, process in _noted(root).items() if process.process()}


def _noted(root: Path) -> dict[str, Started]:
    path = _record(root)
    noted = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    return {name: Started(**values) for name, values in noted.items()}


def up(root: Path) -> str:
    """Starts what doesn't run yet, and returns what there is to open. Raises ValueError for a port that is taken.

    When one doesn't start, RuntimeError says why, and those started with it are ended again.
    """
    with _alone(root):
        already = running(root)
        wanted = services(root)
        missing = [one for one in wanted if one.name not in already]
        if not missing:
            return f"already up\n{status(root)}"
        service.end([noted for name, noted in _noted(root).items() if name not in already])  # what a killed one left
        for one in missing:
            service.check_port(one)
        ports = {one.name: already[one.name].port if one.name in already else one.port for one in wanted}
        environment = _environment(root, ports["prefect"], ports["mlflow"])
        started = dict(already)
        try:
            for group in ([one for one in missing if one.port], [one for one in missing if not one.port]):
                for one in group:  # the servers side by side, then what needs them
                    started[one.name] = service.start(one, root, environment)
                    _write(root, started)
                for one in group:
                    service.wait(one, started[one.name], root, ports["prefect"])
        except BaseException:
            new = [started[one.name] for one in reversed(missing) if one.name in started]
            service.end(new)
            _write(root, already)
            raise
        return f"up\n{status(root)}"


def down(root: Path) -> str:
    """Ends exactly what `up` started; runs in progress are stopped first, while there are servers to tell."""
    with _alone(root):
        noted = _noted(root)
        processes = {one.name: noted[one.name] for one in services(root) if one.name in noted}
        service.end(list(reversed(processes.values())))
        _write(root, {})
        return f"ended: {', '.join(processes)}" if processes else "nothing was up"


def status(root: Path) -> str:
    """What runs, where, since when."""
    processes = running(root)
    lines = []
    for one in services(root):
        process = processes.get(one.name)
        address = f"http://127.0.0.1:{process.port}" if process and process.port else ""
        state = (
            f"process {process.pid} since {process.since()}"
            if process
            else f"not running; {service.log(root, one.name).relative_to(root)} tells more"
        )
        lines.append(f"  {one.name:12} {address:22} {state}".rstrip())
    if "prefect" in processes:
        lines.append(f"  run it:      http://127.0.0.1:{processes['prefect'].port}/deployments")
    return "\n".join(lines)


def _environment(root: Path, prefect: int, mlflow: int) -> dict[str, str]:
    """What the services inherit. Runs write to the database file itself, so that they need no server to finish."""
    return os.environ | {
        "PREFECT_HOME": str(root / ".prefect"),
        "PREFECT_API_URL": f"http://127.0.0.1:{prefect}/api",
        "PREFECT_UI_URL": f"http://127.0.0.1:{prefect}",
        "MLFLOW_UI_URL": links.mlflow_ui() or f"http://127.0.0.1:{mlflow}",
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)]),
        "PYTHONUNBUFFERED": "1",
    }


def _record(root: Path) -> Path:
    return root / ".prefect" / "services.json"


def _write(root: Path, started: dict[str, Started]) -> None:
    write_json(_record(root), {name: process._asdict() for name, process in started.items()})


@contextmanager
def _alone(root: Path) -> Iterator[None]:
    """Two terminals take turns."""
    _record(root).parent.mkdir(exist_ok=True)
    with (root / ".prefect" / "services.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def main(argv: Sequence[str] | None = None) -> int:
    """Exit status 0; 1 when a service didn't start; 2 for bad input, with one message and nothing started."""
    parser = argparse.ArgumentParser(prog="python -m flows.services", description=__doc__)
    parser.add_argument("command", choices=["up", "down", "status"])
    parser.add_argument("--root", type=Path, default=Path(__file__).parents[1], help="the project's folder")
    options = parser.parse_args(argv)
    try:
        print({"up": up, "down": down, "status": status}[options.command](options.root.absolute()))
    except (ValueError, RuntimeError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2 if isinstance(error, ValueError) else 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
