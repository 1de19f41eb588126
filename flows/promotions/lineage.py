"""Where a promoted encoder comes from, as tags: its run, its commit, the hashes of its weights and data, its scores and protocols."""

from pathlib import Path
from typing import TYPE_CHECKING

from components.stage import read_yaml
from flows.records import Record

if TYPE_CHECKING:
    from components.parent_runs import Row

ENCODER = "models/encoder.safetensors"
OWN = "Apache-2.0"
"""The project's licence, which holds for what is trained here from scratch."""


def tags(record: Record, row: "Row", tree: Path, encoder: Path) -> dict[str, str]:
    """The tags of a version of the registered encoder; `tree` has the run's dvc.lock, `encoder` is its file."""
    from components.mim.weights import read_about
    from components.registry.versions import METRIC, PROTOCOL

    about = read_about(encoder)[1]
    stages = read_yaml(tree / "dvc.lock")["stages"]
    outs = {out["path"]: out["md5"] for stage in stages.values() for out in stage.get("outs", [])}
    data = {out["path"] for name, stage in stages.items() if name.split("@")[0] == "prepare" for out in stage["outs"]}
    hashes = {
        f"dvc.{path}": md5 for path, md5 in outs.items() if path == ENCODER or (path in data and md5.endswith(".dir"))
    }
    licence = str(about.get("licence", OWN))
    origin = {
        "run": record.name,
        "mlflow.run_id": row.run_id,
        "git.base": record.commit,
        "git.dirty": str(record.dirty).lower(),
        "fingerprint": str(about.get("fingerprint", "")),
        "licence": OWN if licence == "none needed" else licence,  # weights of this project's own, read from a file
        "source_sha256": str(about.get("source_sha256", "")),
    }
    scores = {f"{METRIC}{name}": repr(value) for name, value in row.metrics.items()}
    protocols = {f"{PROTOCOL}{name}": mark for name, mark in row.protocols.items()}
    return {key: text for key, text in (origin | hashes | scores | protocols).items() if text}
