"""Folders that processes share: nobody loses what it uses, and nobody spoils what another one writes."""

import fcntl
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from components.stage import write_json
from components.work import KEPT_S, LOCK, alone, finish, forget_finished, remove_unused, together

# Each of some processes enters a folder many times, and always tries to remove both; `file` is there only while someone is in.
MEMBER = """
import sys
from pathlib import Path
from components.work import alone, remove_unused, together

root, me, kind = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
for turn in range(60):
    folder = root / "ab"[turn % 2]
    with alone(folder, "waiting") if kind == "alone" else together(folder):
        if kind == "alone":
            count = root / f"count-{folder.name}"
            count.write_text(str(int(count.read_text()) + 1))
        (folder / me).write_text(me)
        for name in "ab":
            remove_unused(root / name)
        assert (folder / me).read_text() == me
"""


HOLDER = """
import sys
from pathlib import Path
from components.work import alone

with alone(Path(sys.argv[1]), "busy"):
    print("in", flush=True)
    input()
"""


@contextmanager
def process(code: str, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """Python code in a process of its own, which is ended in any case."""
    command = [sys.executable, "-c", code, *arguments]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as running:
        try:
            yield running
        finally:
            running.kill()


@pytest.mark.parametrize("kind", ["alone", "together"])
def test_nobody_loses_what_it_uses(tmp_path: Path, kind: str) -> None:
    counts = [tmp_path / "count-a", tmp_path / "count-b"]
    for count in counts:
        count.write_text("0")
    running = [subprocess.Popen([sys.executable, "-c", MEMBER, str(tmp_path), f"p{i}", kind]) for i in range(4)]
    assert [one.wait(60) for one in running] == [0] * 4
    assert {path.name for path in tmp_path.iterdir()} <= {"count-a", "count-b", "a", "b"}  # nothing half removed
    assert [int(count.read_text()) for count in counts] == [
        120 * (kind == "alone")
    ] * 2  # nobody counted beside another


def test_alone_means_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "one"
    with process(HOLDER, str(folder)) as first:
        assert first.stdout and first.stdout.readline() == "in\n"
        assert not remove_unused(folder)
        with process(HOLDER, str(folder)) as second:
            assert second.stdout and second.stdout.readline() == "busy\n"
            first.kill()  # the lock of a dead process is nobody's
            assert second.stdout.readline() == "in\n"
            second.communicate("\n")
            assert second.returncode == 0
    with alone(folder, "busy"):
        pass
    assert capsys.readouterr().out == ""
    assert remove_unused(folder) and not (folder).exists()


def test_finished_work_goes_after_a_day_and_what_somebody_may_need_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, status in (("stored", "FINISHED"), ("unstored", "FAILED")):
        (tree := tmp_path / "workspaces" / name / "tree").mkdir(parents=True)
        write_json(tree.with_name("run.json"), {"status": status})
    for name, user, age in (
        ("unfinished", "workspaces/stored/tree", 99.0),
        ("fresh", "workspaces/stored/tree", 0.5),
        ("old", "workspaces/stored/tree", 2.0),
        ("used", "workspaces/stored/tree", 2.0),
        ("of a run that failed", "workspaces/unstored/tree", 99.0),
        ("of a run that is gone", "workspaces/gone/tree", 2.0),
        ("of the checkout", ".", 2.0),
        ("of the checkout long ago", ".", 15.0),
    ):
        monkeypatch.setenv("DVC_ROOT", str(tmp_path / user))
        with together(tmp_path / "work" / name):
            (tmp_path / "work" / name / "checkpoint").touch()
        if name != "unfinished":
            finish(tmp_path / "work" / name)
        for path in (tmp_path / "work" / name).iterdir():
            os.utime(path, (time.time() - age * KEPT_S,) * 2)
    with (tmp_path / "work/used" / LOCK).open() as held:
        fcntl.flock(held, fcntl.LOCK_SH)
        forget_finished(tmp_path / "work")
    left = ["fresh", "of a run that failed", "of the checkout", "unfinished", "used"]
    assert sorted(path.name for path in (tmp_path / "work").iterdir()) == left
