"""Real Ray nodes on this machine, each with a token, its own processes and its own end."""

import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import psutil

RAY = str(Path(sys.executable).with_name("ray"))


class Nodes:
    """A cluster: a head that gives `head_cpus`, and as many nodes as are added. `environment` is what a driver needs to join."""

    def __init__(self, head_cpus: int, dashboard: bool = False) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="ray-", dir="/tmp"))  # short: Ray's sockets lie below it
        token = self._folder / "token"
        token.write_text(secrets.token_hex(32))
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.address = f"127.0.0.1:{free.getsockname()[1]}"
        self.environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("RAY_")},
            "RAY_ADDRESS": self.address,
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN_PATH": str(token),
        }
        self._processes: list[subprocess.Popen[bytes]] = []
        port = self.address.split(":")[1]
        self.head = self._start(
            ["--head", f"--port={port}", f"--num-cpus={head_cpus}", f"--include-dashboard={str(dashboard).lower()}",
             "--dashboard-port=0", f"--temp-dir={self._folder}"], [],
        )  # fmt: skip

    def add(self, cpus: int, before: Sequence[str] = ()) -> subprocess.Popen[bytes]:
        """A further node with `cpus` CPUs, started by the command `before` if there is one; it joins within seconds."""
        return self._start([f"--address={self.address}", f"--num-cpus={cpus}"], before)

    def _start(self, options: Sequence[str], before: Sequence[str]) -> subprocess.Popen[bytes]:
        log = self._folder / f"node-{len(self._processes)}.log"
        command = [
            *before,
            RAY,
            "start",
            *options,
            "--object-store-memory=80000000",
            "--disable-usage-stats",
            "--block",
        ]
        environment = {name: value for name, value in self.environment.items() if name != "RAY_ADDRESS"}
        with log.open("wb") as file:
            process = subprocess.Popen(
                command,
                stdout=file,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                env=environment,
                cwd=self._folder,
            )
        self._processes.append(process)
        deadline = time.monotonic() + 120
        while "Ray runtime started" not in log.read_text():
            assert process.poll() is None and time.monotonic() < deadline, log.read_text()
            time.sleep(0.1)
        return process

    def kill(self, node: subprocess.Popen[bytes]) -> None:
        """SIGKILL of all of the node's processes, as a machine that loses its power."""
        if node.poll() is None:
            family = [*psutil.Process(node.pid).children(recursive=True), psutil.Process(node.pid)]
            for process in family:
                process.send_signal(signal.SIGSTOP)  # so that none sees another's end and tidies up
            for process in family:
                process.send_signal(signal.SIGKILL)
            node.wait()

    def with_cpus(self) -> list[str]:
        """Ray's ids of the nodes that train."""
        ask = (
            "import ray; ray.init(logging_level='error', log_to_driver=False)\n"
            "print(*[each['NodeID'] for each in ray.nodes() if each['Resources'].get('CPU')])"
        )
        done = subprocess.run(
            [sys.executable, "-c", ask], env=self.environment, check=True, capture_output=True, text=True
        )
        return done.stdout.split()

    def drain(self, node_id: str, seconds: int) -> None:
        """Tells the cluster that the node will be taken away after so long, as a cloud does."""
        reason = ["--reason=DRAIN_NODE_REASON_PREEMPTION", "--reason-message=wanted elsewhere"]
        when = [f"--node-id={node_id}", f"--deadline-remaining-seconds={seconds}"]
        command = [RAY, "drain-node", f"--address={self.address}", *reason, *when]
        subprocess.run(command, env=self.environment, check=True, capture_output=True)

    def close(self) -> None:
        """Ends all nodes and removes their files."""
        for node in reversed(self._processes):
            self.kill(node)
        shutil.rmtree(self._folder, ignore_errors=True)
