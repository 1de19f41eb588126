"""A cluster's dashboard, and room that comes while a stage waits for it: real nodes."""

import os
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from components.cluster.connection import DASHBOARD

from .nodes import Nodes

pytestmark = pytest.mark.faults

DRIVER = """
import time
import ray
from components.cluster import Asked, connected, wait_for

two = Asked(2, 1, 0, "scale", "lower scale.workers", "lower it")
with connected(two._replace(workers=1)):
    print("connected", flush=True)
    wait_for(two, 120)
    print("there", flush=True)
    task = ray.remote(num_cpus=2)(lambda: time.sleep(3600)).remote()
    while ray.available_resources().get("CPU", 0) > 1:
        time.sleep(0.1)
    wait_for(two, 3)
"""


def test_it_is_linked_where_there_is_one(tmp_path: Path) -> None:
    nodes = Nodes(1, dashboard=True)
    try:
        code = DRIVER.partition("    wait_for")[0]
        done = subprocess.run(
            [sys.executable, "-c", code], env=nodes.environment, capture_output=True, text=True, timeout=120
        )
        assert done.returncode == 0, done.stderr
        link, end = done.stdout.splitlines()
        assert link.startswith(f"{DASHBOARD}http://127.0.0.1:") and end == "connected"
        with urllib.request.urlopen(link.removeprefix(DASHBOARD), timeout=10) as page:
            assert b"Ray Dashboard" in page.read()
    finally:
        nodes.close()


def test_a_stage_waits_for_nodes_and_not_for_ever() -> None:
    nodes = Nodes(1)
    try:
        driver = subprocess.Popen(
            [sys.executable, "-c", DRIVER],
            env=nodes.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert driver.stdout
        assert driver.stdout.readline() == "connected\n"
        missing = "scale asks for 2 CPUs (2 workers), the Ray cluster of"
        assert driver.stdout.readline().startswith(f"{missing} 1 nodes has 1 CPUs (1 free); waiting, for ")
        nodes.add(2)
        lines, error = driver.communicate(timeout=200)
        assert lines.startswith("there\n")
        assert f"ValueError: {missing} 2 nodes has 3 CPUs (1 free); waited 3 s for it; lower scale.workers" in error
    finally:
        nodes.close()


def test_a_cluster_of_this_machine_alone_hears_nobody_else() -> None:
    code = """
import psutil
from components.cluster import Asked, connected

with connected(Asked(1, 1, 0, "scale", "lower it", "lower it")):
    me = psutil.Process()
    for process in [me, *me.children(recursive=True)]:
        for one in process.net_connections("inet"):
            if one.status == psutil.CONN_LISTEN:
                print(one.laddr.ip)
"""
    assert {address.removeprefix("::ffff:") for address in alone(code).split()} == {"127.0.0.1"}


def test_a_cluster_of_this_machine_alone_gathers_nothing_that_nobody_reads() -> None:
    code = """
import os
import psutil
import ray
from components.cluster import Asked, connected

before = dict(os.environ)
with connected(Asked(1, 1, 0, "scale", "lower it", "lower it")):
    within = ray.get(ray.remote(lambda: dict(os.environ)).remote())
    print(within["RAY_enable_metrics_collection"], within["RAY_TRAIN_ENABLE_PREEMPTION_WATCHER"])
    names = [" ".join(process.cmdline()) for process in psutil.Process().children(recursive=True)]
    print(any("raylet" in name for name in names), any("log_monitor" in name for name in names))
print({name for name in os.environ.keys() - before.keys() if "TRAIN" in name or "metrics" in name or name.startswith("RES_")})
print(os.environ["RAY_TRAIN_ENABLE_PREEMPTION_WATCHER"])
"""
    told = alone(code, RAY_TRAIN_ENABLE_PREEMPTION_WATCHER="1")  # a person's own choice stays
    assert told.splitlines() == ["0 1", "True False", "set()", "1"]


def alone(code: str, **switches: str) -> str:
    """What it prints where no cluster is at RAY_ADDRESS."""
    environment = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"} | switches
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout
