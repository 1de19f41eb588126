"""What a run does not take along of a checkout's changes: files that are too large, that never rest, or that git refuses."""

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from flows import records, uncommitted
from flows.git import GitError

from .test_workspace import git, opened


def test_a_new_file_of_gigabytes_is_refused(toy) -> None:
    with (toy.root / "features.npy").open("wb") as file:
        file.truncate(200 * 2**20)
    with pytest.raises(ValueError, match=r"'features.npy' has 200 MiB.*\n.*\.gitignore, or to DVC"):
        opened(toy)
    assert records.every(toy.root) == []


WRITER = """
import os, sys
with open(sys.argv[1], "wb") as file:
    os.pwrite(file.fileno(), os.urandom(1 << 22), 0)  # git hashes all of it before it reads the start again
    print("writing", flush=True)
    while True:
        os.pwrite(file.fileno(), os.urandom(8), 0)
"""


@pytest.fixture
def written(toy) -> Iterator[subprocess.Popen[str]]:
    """A process that writes to busy.log of the checkout all the time."""
    words = [sys.executable, "-c", WRITER, str(toy.root / "busy.log")]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout and process.stdout.readline() == "writing\n"
        yield process
        process.kill()


def test_a_file_that_is_written_while_it_is_read_is_read_again(toy, written, monkeypatch) -> None:
    asked = uncommitted.git

    def until_refused(folder: Path, *words: str, **options: Any) -> str:
        try:
            return asked(folder, *words, **options)
        except GitError:
            written.kill()
            written.wait()
            raise

    monkeypatch.setattr(uncommitted, "git", until_refused)
    space = opened(toy)
    assert written.returncode == -signal.SIGKILL, "git took the file at once"
    assert (space.root / "busy.log").read_bytes() == (toy.root / "busy.log").read_bytes()


def test_a_file_that_something_keeps_writing_to_is_named(toy, written, monkeypatch) -> None:
    monkeypatch.setattr(uncommitted, "PAUSES_S", (0.0, 0.0))
    with pytest.raises(ValueError, match=r"changes while it is read, 2 times on end: 'busy.log'.*\.gitignore"):
        opened(toy)
    assert records.every(toy.root) == []


def test_what_git_refuses_of_its_own_is_told_at_once(toy, monkeypatch) -> None:
    monkeypatch.setattr(uncommitted, "PAUSES_S", (0.0, 600.0))
    (toy.root / ".git/info/attributes").write_text("*.txt filter=broken\n")
    git(toy.root, "config", "filter.broken.clean", "false")
    git(toy.root, "config", "filter.broken.required", "true")
    (toy.root / "new.txt").write_text("new\n")
    with pytest.raises(ValueError, match=r"(?s)no workspace: git add .*clean filter 'broken' failed"):
        opened(toy)
