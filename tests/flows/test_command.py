"""The promise under test: nothing that a command started outlives it, its limit, its caller or a cancellation."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from flows import command, supervisor

Until = Callable[[Callable[[], object]], None]
Alive = Callable[[list[int]], list[int]]

# A tree with every way to hide: a child, a grandchild in its own session whose parent is gone, and one that ignores
# SIGINT and SIGTERM. Each writes its PID; the last line says that all are up.
TREE = '''
import os, signal, subprocess, sys, time
sleep = "import time; time.sleep(600)"
deaf = "import signal, time; [signal.signal(s, 1) for s in (2, 15)]; print('deaf', flush=True); time.sleep(600)"
orphan = f"""import subprocess, sys
print(subprocess.Popen([sys.executable, '-c', {sleep!r}], start_new_session=True, stdout=subprocess.DEVNULL).pid)"""
child = subprocess.Popen([sys.executable, "-c", sleep])
loner = subprocess.check_output([sys.executable, "-c", orphan], stdin=subprocess.DEVNULL, text=True).strip()
stubborn = subprocess.Popen([sys.executable, "-c", deaf], start_new_session=True, stdout=subprocess.PIPE)
stubborn.stdout.readline()
print("pids", os.getpid(), child.pid, loner, stubborn.pid, flush=True)
time.sleep(600)
'''


def pids_in(log: Path) -> list[int]:
    lines = log.read_text().splitlines() if log.exists() else []
    return next(([int(pid) for pid in line.split()[1:]] for line in lines if line.startswith("pids ")), [])


def run(words: list[str], folder: Path, lifeline: command.Lifeline, timeout_s: float = 0) -> command.Ended:
    lines: list[str] = []
    ended = command.run(
        words, lifeline, folder, os.environ, folder / "logs" / "x.log", lines.append, timeout_s, grace_s=0.5
    )
    assert ended.tail == lines[-command.TAIL :]
    return ended


def python(code: str) -> list[str]:
    return [sys.executable, "-c", code]


def test_status_lines_and_log(tmp_path: Path) -> None:
    code = "import sys; print('one', flush=True); print('10%\\r100%', file=sys.stderr); print('ü', end=''); sys.exit(7)"
    with command.Lifeline() as lifeline:
        ended = run(python(code), tmp_path, lifeline)
    assert ended.status == 7
    assert sorted(ended.tail) == ["100%", "one", "ü"]  # of a redrawn bar the last state, and no carriage return
    assert (tmp_path / "logs" / "x.log").read_text().splitlines() == ended.tail


def test_a_signal_is_reported_as_shells_do(tmp_path: Path) -> None:
    with command.Lifeline() as lifeline:
        assert run(python("import os; os.kill(os.getpid(), 9)"), tmp_path, lifeline).status == 128 + 9


def test_leftovers_of_a_finished_command_end(tmp_path: Path, alive: Alive) -> None:
    with command.Lifeline() as lifeline:
        assert run(python(TREE.replace("time.sleep(600)\n", "os._exit(3)\n")), tmp_path, lifeline).status == 3
    pids = pids_in(tmp_path / "logs" / "x.log")
    assert len(pids) == 4
    assert alive(pids) == []


def test_the_time_limit_ends_the_whole_tree(tmp_path: Path, alive: Alive) -> None:
    with command.Lifeline() as lifeline:
        ended = run(python(TREE), tmp_path, lifeline, timeout_s=2)
    assert ended.status == supervisor.TIMED_OUT
    assert ended.tail[-1] == "error: stopped: it ran longer than its limit of 2 s"
    pids = pids_in(tmp_path / "logs" / "x.log")
    assert len(pids) == 4
    assert alive(pids) == []


def test_letting_go_of_the_lifeline_ends_the_tree_and_lets_it_say_goodbye(tmp_path: Path, until: Until) -> None:
    code = "import time\nprint('pids 1', flush=True)\ntry: time.sleep(600)\nexcept KeyboardInterrupt: print('saved')"
    log = tmp_path / "logs" / "x.log"
    ended: list[command.Ended] = []
    with command.Lifeline() as lifeline:
        thread = threading.Thread(target=lambda: ended.append(run(python(code), tmp_path, lifeline)))
        thread.start()
        until(lambda: bool(pids_in(log)))
    thread.join(120)
    assert ended[0].status == supervisor.CANCELLED
    assert ended[0].tail[-2:] == ["saved", "error: stopped: the run that started it was cancelled or has ended"]
    assert (
        run(python("import time; time.sleep(600)"), tmp_path, lifeline).status == supervisor.CANCELLED
    )  # a late retry


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_the_death_of_the_caller_ends_the_tree(
    tmp_path: Path, number: signal.Signals, until: Until, alive: Alive
) -> None:
    caller = f"""
import os, pathlib
from flows import command
with command.Lifeline() as lifeline:
    log = pathlib.Path({str(tmp_path)!r}, "x.log")
    command.run([{sys.executable!r}, "-c", {TREE!r}], lifeline, log.parent, os.environ, log, print, grace_s=0.5)
"""
    process = subprocess.Popen(python(caller), stdout=subprocess.DEVNULL, cwd=Path(__file__).parents[2])
    until(lambda: bool(pids_in(tmp_path / "x.log")))
    pids = pids_in(tmp_path / "x.log") + [child.pid for child in psutil.Process(process.pid).children()]
    assert len(alive(pids)) == 5
    process.send_signal(number)
    process.wait(120)
    until(lambda: not alive(pids))
