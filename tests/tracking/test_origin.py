"""Where a stage's run says it comes from: the flow's tags, DVC's hashes, the datasets it reads."""

import json
import os
import re
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from components import parent_runs, tracking
from components.evaluation import Scores
from components.stage import Contract, Inputs, Outputs, Params, canonical_yaml
from components.tracking import origin

Runs = Callable[[Path], list[Any]]


class Nothing(Params):
    """No values."""


class Read(Inputs):
    """A prepared dataset and a file."""

    dataset: Path
    encoder: Path


class Written(Outputs):
    """The link alone."""

    run: Path


@pytest.fixture
def inputs(project: Path) -> Read:
    (project / "data/prepared/digits").mkdir(parents=True)
    (project / "data/prepared/digits/card.json").write_text(json.dumps({"content": "c0ffee"}))
    (project / "models").mkdir()
    (project / "models/encoder.safetensors").write_text("weights")
    outs = {
        "prepare@digits": [{"path": "data/prepared/digits", "md5": "0123456789abcdef0123456789abcdef.dir"}],
        "pretrain": [{"path": "models/encoder.safetensors", "md5": "fedcba9876543210fedcba9876543210"}],
        "davis": [{"path": "results/davis", "md5": "aaaa"}],
    }
    (project / "dvc.lock").write_text(
        canonical_yaml({"schema": "2.0", "stages": {name: {"outs": out} for name, out in outs.items()}})
    )
    return Read(dataset=project / "data/prepared/digits", encoder=project / "models/encoder.safetensors")


def stage_run(root: Path, inputs: Read) -> Any:
    return tracking.stage_run(
        "davis", Contract(Nothing, Read, Written, Scores, ""), Nothing(), inputs, Written(run=root / "runs/davis.json")
    )


def test_dvc_vouches_for_what_its_stages_read(
    project: Path, inputs: Read, runs: Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DVC_STAGE", "davis")
    monkeypatch.setenv(
        "PIPELINE_TAGS", json.dumps({"prefect.url": "http://x/1", "git.sha": "feed", "trigger": "prefect"})
    )
    with stage_run(project, inputs):
        pass
    (run,) = runs(project)
    (read,) = run.inputs.dataset_inputs
    assert (read.dataset.name, read.dataset.digest) == ("digits", "0123456789abcdef0123456789abcdef.dir")
    assert json.loads(read.dataset.source) == {"uri": str(inputs.dataset)}
    tags = run.data.tags
    assert tags["dvc.models/encoder.safetensors"] == "fedcba9876543210fedcba9876543210"
    assert tags["dvc.data/prepared/digits"] == "0123456789abcdef0123456789abcdef.dir"
    assert (tags["prefect.url"], tags["git.sha"], tags["stage"]) == ("http://x/1", "feed", "davis")
    assert "trigger" not in tags and len(tags["fingerprint"]) == 16


def test_by_hand_the_card_vouches(project: Path, inputs: Read, runs: Runs) -> None:
    with stage_run(project, inputs):
        pass
    (run,) = runs(project)
    assert run.inputs.dataset_inputs[0].dataset.digest == "c0ffee"
    assert not [tag for tag in run.data.tags if tag.startswith("dvc.")]


def test_at_the_end_of_the_pipeline_a_stage_is_tagged_with_what_it_put_out(
    project: Path, inputs: Read, runs: Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    (project / "params/davis.yaml").write_text("seed: 0\n")
    parent = parent_runs.start_pipeline(project, project, "run", {"trigger": "prefect"})
    monkeypatch.setenv(tracking.PARENT, parent)
    with stage_run(project, inputs) as record:
        record.finish(Scores(protocol="abc"))
    parent_runs.finish_pipeline(project, project, parent, "FINISHED", ["davis"])
    stage, row = sorted(runs(project), key=lambda run: run.info.run_id == parent)
    assert stage.data.tags["dvc.results/davis"] == "aaaa"
    assert row.data.tags["linked.davis"] == stage.info.run_id


def test_tags_that_are_no_json(project: Path, inputs: Read, monkeypatch: pytest.MonkeyPatch) -> None:
    for text in ("{'a': 1}", "[1]"):
        monkeypatch.setenv("PIPELINE_TAGS", text)
        with (
            pytest.raises(ValueError, match="PIPELINE_TAGS is .* object of tags, or not be set"),
            stage_run(project, inputs),
        ):
            pass


def test_dvc_lock_is_read_whole_while_a_sibling_writes_it(tmp_path: Path) -> None:
    path, stages = tmp_path / "dvc.lock", {f"s{i}": {"outs": [{"path": f"o{i}", "md5": "0" * 32}]} for i in range(40)}
    text = canonical_yaml({"schema": "2.0", "stages": stages})
    path.write_text(text)
    ended = threading.Event()

    def rewrite() -> None:
        while not ended.is_set():
            with path.open("w") as file:  # as DVC does: emptied, then written piece by piece
                for stage in re.split("(?m)^(?=  s)", text):  # whole stages: what is there is YAML at any moment
                    file.write(stage)
                    file.flush()
                    ended.wait(0.001)
            ended.wait(0.1)  # DVC works in between; its writes come one at a time

    writer = threading.Thread(target=rewrite)
    writer.start()
    try:
        for _ in range(20):
            assert len(origin.outs(tmp_path)) == 40
    finally:
        ended.set()
        writer.join()
    path.write_text("")
    os.utime(path, (0, 0))
    assert origin.outs(tmp_path) == {}
