"""The run cache that several trees share: what one of them reads while another one writes."""

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import dvc.utils.serialize
import pytest
from dvc.repo import Repo
from dvc.stage import Stage
from dvc.stage.cache import StageCache

from flows import garbage, run_cache
from flows.run_cache import SharedStageCache

NAME = "prepare@shapes"


@pytest.fixture
def trees(toy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Stage, Stage]]:
    """The stage, run, in the checkout and in a copy of it, with one cache and nothing in the run cache."""
    assert toy.dvc("config", "cache.dir", str(toy.root / ".dvc/cache")).returncode == 0
    assert toy.dvc("repro", NAME).returncode == 0
    shutil.rmtree(toy.root / ".dvc/cache/runs")
    shutil.copytree(toy.root, tmp_path / "other", symlinks=True)
    monkeypatch.chdir(toy.root)  # DVC looks for dvc.yaml there
    with Repo(str(toy.root)) as one, Repo(str(tmp_path / "other")) as other:
        yield tuple(repo.stage.load_one(os.path.join(repo.root_dir, "dvc.yaml"), NAME) for repo in (one, other))


@pytest.fixture
def midway(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], object]], None]:
    """Does something the moment that DVC has written the half of an entry."""
    whole = dvc.utils.serialize.dump_yaml

    def arrange(do: Callable[[], object]) -> None:
        def dump(path: str, entry: Any, *rest: Any, **named: Any) -> None:
            whole(path, entry, *rest, **named)
            text = Path(path).read_text()
            Path(path).write_text(text[: text.index("outs:") + 2])
            do()
            assert Path(path).exists(), "a reader has removed what is being written"
            Path(path).write_text(text)

        monkeypatch.setattr(dvc.utils.serialize, "dump_yaml", dump)

    return arrange


def found(cache: StageCache, stage: Stage) -> list[str] | None:
    """Where the outputs stand of the entry that a reader would restore."""
    entry = cache._load(stage)
    return [out["path"] for out in entry["outs"]] if entry else None


@pytest.mark.parametrize(
    ("writer", "reader"),
    [(SharedStageCache, SharedStageCache), (StageCache, SharedStageCache), (SharedStageCache, StageCache)],
)
def test_who_reads_while_another_writes_finds_nothing_and_spoils_nothing(trees, midway, writer, reader) -> None:
    one, other = trees
    seen = list[Any]()
    midway(lambda: seen.append(found(reader(other.repo), other)))
    writer(one.repo).save(one)
    assert seen == [None]
    assert found(reader(other.repo), other) == ["data/prepared/shapes"]
    assert not list(Path(one.repo.cache.local_cache_dir).rglob("*.tmp"))


def test_an_entry_is_the_one_that_dvc_makes_and_dvc_restores_it(trees, monkeypatch) -> None:
    one, other = trees
    StageCache(one.repo).save(one)
    runs = Path(one.repo.stage_cache.cache_dir)
    of_dvc = {path.relative_to(runs): path.read_bytes() for path in runs.rglob("*") if path.is_file()}
    shutil.rmtree(runs)
    SharedStageCache(one.repo).save(one)
    assert of_dvc == {path.relative_to(runs): path.read_bytes() for path in runs.rglob("*") if path.is_file()} != {}
    shutil.rmtree(Path(other.repo.root_dir) / "data/prepared")
    monkeypatch.chdir(other.repo.root_dir)
    with other.repo.lock:
        StageCache(other.repo).restore(other)
    assert (Path(other.repo.root_dir) / "data/prepared/shapes/card.json").read_text() == "shapes\n"


@pytest.mark.parametrize("half", ["", "cmd: [", "cmd: 1"])
def test_what_a_kill_left_is_passed_over_and_goes_with_gc(toy, trees, half) -> None:
    one, _ = trees
    SharedStageCache(one.repo).save(one)
    (entry,) = Path(one.repo.stage_cache.cache_dir).glob("*/*/*")
    left = [
        entry.with_name(".left.tmp"),
        entry.with_name("0" * 64),
        Path(one.repo.cache.local_cache_dir, ".run-cache-x.tmp"),
    ]
    for path in left[:2]:
        path.write_text(half)
    left[2].mkdir()
    (left[2] / "half").write_text(half)
    assert found(SharedStageCache(one.repo), one) == ["data/prepared/shapes"]
    unneeded = garbage.unneeded(toy.root, [], [])
    garbage.clear(toy.root, [], unneeded)
    assert [path.exists() for path in (*left, entry)] == [False, False, False, True]


def test_the_command_is_dvc_with_that_cache_in_any_folder(toy) -> None:
    (toy.root / "flows").mkdir()
    (toy.root / "flows/__init__.py").write_text("raise ImportError('an older project')\n")
    done = subprocess.run(run_cache.command("repro", NAME), cwd=toy.root, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert f"Running stage '{NAME}'" in done.stdout and toy.locked() == {NAME}
    assert toy.dvc("status", NAME).stdout.strip() == "Data and pipelines are up to date."
