"""Everything that can be known to be wrong before the first stage starts."""

import fcntl
import os
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from components.stage import atomic
from flows import graph, presets


def settle(
    root: Path,
    params: Mapping[str, Mapping[str, Any]],
    targets: Sequence[str],
    acceptable: Callable[[Sequence[graph.Node]], None] | None = None,
) -> tuple[list[str], list[graph.Node]]:
    """Writes `params`, validated before; the words whose files changed and the stages to run for `targets`.

    Raises ValueError, with the files as they were, for a graph that DVC refuses, a source that isn't there, and what
    `acceptable` raises of the stages.
    """
    before = {word: (root / "params" / f"{word}.yaml").read_bytes() for word in params}
    changed = presets.write(root, params)
    try:
        nodes = graph.read(root, targets)
        check_sources(root, nodes)
        if acceptable:
            acceptable(nodes)
        return changed, nodes
    except ValueError:
        for word in changed:
            with atomic(root / "params" / f"{word}.yaml") as temporary:
                temporary.write_bytes(before[word])
        raise


@contextmanager
def alone(root: Path, name: str) -> Iterator[None]:
    """One run at a time works in a folder: runs write its params and results. Raises ValueError naming the other one."""
    (root / ".dvc" / "tmp").mkdir(exist_ok=True)
    with (root / ".dvc" / "tmp" / "pipeline.lock").open("a+", encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            raise ValueError(
                f"run {file.read().strip() or 'of another process'} works in {root}; two would write each other's params: wait until "
                "it has ended, cancel it in Prefect's UI, or let runs have folders of their own, which needs a git repository with a "
                "commit and no `in_place`"
            ) from None
        file.truncate(0)
        file.write(f"{name} (process {os.getpid()})")
        file.flush()
        try:
            yield
        finally:
            file.truncate(0)


def check_sources(root: Path, nodes: Sequence[graph.Node]) -> None:
    """ValueError naming every file or folder that a stage reads, no stage makes and nobody put there."""
    missing = [
        f"stage {node.name!r} reads {str(source.relative_to(root))!r}, which does not exist"
        for node in nodes
        for source in node.sources
        if not source.exists()
    ]
    if missing:
        raise ValueError(
            "\n".join(missing) + "\nPut each there, as a folder or a link to one. `make run DATA=FOLDER` links the raw "
            "data found in FOLDER; `dvc pull` brings what DVC tracks."
        )


def check_raw(root: Path, prepare: Mapping[str, Any], links: Collection[Path] = ()) -> None:
    """ValueError, before any file is written, for raw data that is neither there nor at one of the `links` to be made."""
    absent = [
        f"dataset {name!r} reads {dataset['source']!r}, which does not exist{_imported(root, dataset['source'])}"
        for name, dataset in prepare["datasets"].items()
        if Path(dataset["source"]).is_relative_to("data/raw")
        and not (root / dataset["source"]).exists()
        and root / dataset["source"] not in links
    ]
    if absent:
        raise ValueError(
            "\n".join(absent)
            + "\ndocs/datasets.md says where to get it. Put or link it there, as in `ln -s FOLDER data/raw/NAME`, or give the folder that "
            "holds it: make run PRESET=… DATA=FOLDER. Nothing was changed"
        )


def _imported(root: Path, source: str) -> str:
    if not (root / f"{source}.dvc").is_file():
        return ""
    return f", but {source}.dvc says where it came from: `dvc pull {source}` or `dvc update {source}.dvc` brings it"


def check_project(root: Path) -> None:
    """ValueError for a folder in which DVC cannot work, and for files that a merge has left in conflict."""
    if not (root / ".dvc").is_dir():
        raise ValueError(f"{root} has no folder .dvc; start in the project's folder, or make it one with `dvc init`")
    told = []
    for path in [root / "dvc.yaml", root / "dvc.lock", *sorted((root / "params").rglob("*.yaml"))]:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines() if path.is_file() else []
        marked = [number for number, line in enumerate(lines, 1) if line.startswith(("<<<<<<< ", ">>>>>>> "))]
        if marked:
            told.append(f"{path.relative_to(root)} holds merge markers, in line {marked[0]} first")
    if told:
        raise ValueError(
            "\n".join(told)
            + "\nChoose what shall stand there and run `git add` on it. For dvc.lock take either side: `dvc repro` "
            "brings it up to date, and what was computed comes from the run cache"
        )


def check_uncommitted(choice: str) -> None:
    """ValueError for another word than the form's two."""
    if choice not in ("carry", "refuse"):
        raise ValueError(f"uncommitted is {choice!r}; it must be carry or refuse")


def check_parallel(parallel: int) -> None:
    """ValueError for a limit that would let no stage run."""
    if parallel < 1:
        raise ValueError(f"parallel is {parallel}; it must be at least 1, the number of stages that run at a time")


def legal_name(text: str) -> str:
    """A name that `check_name` takes: `text` with one separator for everything between its letters and digits, if it has any."""
    return re.sub(r"([._-])[._-]+", r"\1", re.sub(r"[^A-Za-z0-9._-]+", "-", text)).strip("._-") or text


def check_name(name: str) -> None:
    """ValueError for a run name that cannot be a DVC experiment, a folder of logs and an MLflow run at once."""
    if not re.fullmatch(r"[A-Za-z0-9]+([._-][A-Za-z0-9]+)*", name):
        raise ValueError(
            f"run name is {name!r}; it must be letters and digits, with single . _ or - between them, as in wide-mask-2"
        )
    if name == "tracking":
        raise ValueError(
            "run name is 'tracking', and logs/tracking/ has what MLflow has still to get; give it another name"
        )
