"""Disks that are full and folders of other users: one clear error, and nothing lost."""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import chdir, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import pytest
from prefect import flow

from flows import gc, storage
from flows.command import Lifeline
from flows.pipeline import pipeline
from flows.stage import Run, run_stage

from .conftest import SCRIPTS

NOBODY = 65534
ROOT = os.geteuid() == 0


@contextmanager
def another_user() -> Iterator[None]:
    """The rights of another user for this process, as on a machine that several people share; root takes its own back."""
    os.setresuid(NOBODY, NOBODY, 0)
    try:
        yield
    finally:
        os.setresuid(0, 0, 0)


@pytest.fixture
def public(toy) -> Iterator[Path]:
    """The toy where every user may look and write, as pytest's own folders are closed."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        shutil.copytree(toy.root, Path(folder) / "toy")
        for path in (Path(folder) / "toy", *(path for path in (Path(folder) / "toy").rglob("*") if path.is_dir())):
            path.chmod(0o777)
        yield Path(folder) / "toy"


def test_a_cache_of_another_user_is_told_before_anything_starts(public: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(public))  # DVC looks for its global settings there, and root's are closed
    closed = public / ".dvc/cache/files/md5/0b"
    closed.mkdir(parents=True)
    for path in (closed.parent, *closed.parent.parents[:3]):
        path.chmod(0o777)
    closed.chmod(0o755 if ROOT else 0o555)
    owner = closed.owner()
    with another_user() if ROOT else nullcontext(), pytest.raises(ValueError) as refused:
        storage.check(public)
    who = "nobody" if ROOT else owner
    assert str(refused.value).startswith(
        f"user {who!r} may not write {str(closed)!r}, which belongs to {owner!r}. Run as"
    )
    closed.chmod(0o777)
    with another_user() if ROOT else nullcontext():
        storage.check(public)


@contextmanager
def small(folder: Path, size_mib: int) -> Iterator[None]:
    """A disk of its own, of a few MiB, at `folder`."""
    folder.mkdir(exist_ok=True)
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size_mib}m", "none", str(folder)], capture_output=True
    )
    if mounted.returncode:
        pytest.skip("this user may not mount a small disk")
    try:
        yield
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def test_a_nearly_full_disk_stops_a_run_before_it_has_a_tree(toy, prefect) -> None:
    cache = toy.root / ".dvc/cache"
    full = rf"the disk of '{cache}' has 9 MiB left, and a run needs 500 or more; `make gc` shows"
    with small(cache, 9), chdir(toy.root), pytest.raises(ValueError, match=full):
        pipeline.with_options(flow_run_name="full")()
    assert not (toy.root / "workspaces/full").exists()


def test_a_disk_that_is_full_when_a_stage_commits(toy, prefect, capsys: pytest.CaptureFixture[str]) -> None:
    toy.script("prepare", SCRIPTS["prepare"] + "; head -c 8388608 /dev/urandom > data/prepared/$1/shard")
    shard, cache = toy.root / "data/prepared/shapes/shard", toy.root / ".dvc/cache"

    @flow
    def one() -> Any:
        with Lifeline() as lifeline:
            run = Run(toy.root, "try", toy.root, set(), {}, lifeline)
            state = run_stage("prepare@shapes", 0, 0, run, return_state=True)
            return state.name, state.message

    with small(cache, 12):
        (cache / "filler").write_bytes(bytes(6 << 20))
        name, message = one()
        assert name == "Failed"
        first, way_out = message.splitlines()
        assert first.startswith("error: the disk is full: ") and "[Errno 28] No space left on device" in first
        assert way_out.startswith("Make room (`make gc` shows what no kept run needs), then retry this run")
        assert shard.stat().st_size == 8 << 20
        assert toy.dvc("status").returncode == 0  # DVC's locks are free
        half = list(cache.rglob(".*.tmp"))
        assert half and sum(path.stat().st_size for path in half) > 4 << 20

        (cache / "filler").unlink()
        assert gc.main(["--root", str(toy.root), "--apply"]) == 0, capsys.readouterr().err
        assert not any(path.exists() for path in half)
        assert one()[0] == "Ran"  # whatever dvc.lock says: DVC does not find its data
        made = shard.read_bytes()
        shutil.rmtree(shard.parent)
        assert toy.dvc("checkout", "prepare@shapes").returncode == 0 and shard.read_bytes() == made
