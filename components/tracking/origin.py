"""What a run is tagged with: the commit, what the flow says of itself, DVC's hashes of what it reads; and its datasets."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path
from typing import Any

from components.stage import Inputs, read_yaml

TAGS = "PIPELINE_TAGS"
"""Environment variable: a JSON object of the flow's tags, such as `prefect.url`, which the runs of its stages get as well."""
LOCK_S, QUIET_S = 5.0, 0.05


def git_tags(root: Path) -> dict[str, str]:
    """The commit and whether the tree differs from it; empty without git."""

    def git(*arguments: str) -> str:
        return subprocess.run(
            ["git", "-C", str(root), *arguments], capture_output=True, text=True, check=True
        ).stdout.strip()

    try:
        return {
            "git.sha": git("rev-parse", "HEAD"),
            "git.dirty": str(bool(git("status", "--porcelain", "-uno"))).lower(),
        }
    except (OSError, subprocess.CalledProcessError):
        return {}


def flow_tags() -> dict[str, str]:
    """The flow's tags but `trigger`, by which the rows of whole pipelines are found. Raises ValueError for anything else than JSON."""
    text = os.environ.get(TAGS) or "{}"
    try:
        values = json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(
            f"{TAGS} is {text!r}, no JSON ({error}); it must be an object of tags, or not be set"
        ) from None
    if not isinstance(values, dict):
        raise ValueError(f"{TAGS} is {text!r}; it must be a JSON object of tags, or not be set")
    return {str(key): str(value) for key, value in values.items() if key != "trigger"}


def outs(root: Path, stages: Collection[str] | None = None) -> dict[str, str]:
    """DVC's md5 of what stages put out, by path, as dvc.lock has it; of the `stages` alone where they are given."""
    path = root / "dvc.lock"
    if not path.is_file():
        return {}
    locked = _whole(path).get("stages", {})
    chosen = [stage for name, stage in locked.items() if stages is None or name in stages]
    return {out["path"]: out["md5"] for stage in chosen for out in stage.get("outs", []) if "md5" in out}


def _whole(path: Path) -> dict[str, Any]:
    """What dvc.lock says; {} where it cannot be read for LOCK_S.

    DVC writes it in place when a sibling stage ends: for a moment it is empty, or has its beginning alone.
    """
    deadline = time.monotonic() + LOCK_S
    while time.monotonic() < deadline:
        with suppress(ValueError):
            values = read_yaml(path)
            if abs(time.time() - path.stat().st_mtime) > QUIET_S:
                return values
        time.sleep(0.02)
    print(f"warning: {path} cannot be read; MLflow's run has no hashes of DVC", file=sys.stderr)
    return {}


def input_tags(root: Path, inputs: Inputs) -> dict[str, str]:
    """`dvc.<path>` of each input that a stage made. DVC alone vouches for dvc.lock: none outside of it."""
    known = outs(root) if os.environ.get("DVC_STAGE") else {}
    paths = {_relative(path, root) for _, path in inputs}
    return {f"dvc.{path}": known[path] for path in sorted(paths & known.keys())}


def datasets(root: Path, inputs: Inputs) -> list[dict[str, str]]:
    """The prepared datasets among the inputs. The digest is DVC's md5, or without DVC the content hash of the card."""
    known = outs(root) if os.environ.get("DVC_STAGE") else {}
    found = []
    for _, path in inputs:
        card = path / "card.json"
        if card.is_file():
            content = str(json.loads(card.read_text(encoding="utf-8"))["content"])
            digest = known.get(_relative(path, root), content)
            source = json.dumps({"uri": str(path)})
            found.append({"name": path.name, "digest": digest[:36], "source": source, "source_type": "local"})
    return found


def _relative(path: Path, root: Path) -> str:
    return path.relative_to(root).as_posix() if path.is_relative_to(root) else path.as_posix()
