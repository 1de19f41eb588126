"""The stage in real Ray processes: one worker, two workers, and the same work asked for again."""

import csv
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from mlflow import MlflowClient
from PIL import Image
from safetensors.torch import load_file

from components.images.store import Store
from components.mim.weights import load_encoder, load_predictor, read_about, untrained_encoder
from components.pretrain import preview
from components.pretrain.adopt import adopt
from components.pretrain.batches import Batches
from components.pretrain.checkpoints import newest
from components.pretrain.contract import PretrainInputs, PretrainParams
from components.pretrain.loop import Trainer
from components.pretrain.parallel import Alone
from components.pretrain.state import flat, read
from components.pretrain.unfinished import begin
from components.stage import canonical_yaml

SCRATCH = Path(__file__).parents[2] / "components/mim/initialise.py"


def pretrain(folder: Path, values: dict[str, Any], toy: Path, init: Path = SCRATCH) -> subprocess.CompletedProcess[str]:
    folder.mkdir(exist_ok=True)
    (folder / "pretrain.yaml").write_text(canonical_yaml(values))
    outputs = {
        "encoder": "encoder.safetensors", "predictor": "predictor.safetensors", "state": "state.safetensors", "history": "history.csv",
        "spectrum": "spectrum.csv", "masks": "masks.png", "work": "work", "metrics": "metrics.json", "run": "run.json",
    }  # fmt: skip
    flags = [text for name, path in outputs.items() for text in (f"--{name}", path)]
    return subprocess.run(
        [sys.executable, "-m", "components", "pretrain", "--params", "pretrain.yaml", "--dataset", str(toy),
         "--quality", str(toy), "--init", str(init), *flags],
        cwd=folder, capture_output=True, text=True,
        env={**os.environ, "DVC_ROOT": str(folder), "MLFLOW_RUN_ID": "0" * 32},  # of a person's shell, which counts for nothing
    )  # fmt: skip


@pytest.fixture(scope="module")
def once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("pretrain") / "one"


def test_one_worker_trains_exports_and_logs(once: Path, tiny: dict[str, Any], toy_images: Path) -> None:
    tiny["quality"]["every_epochs"] = 1.5
    done = pretrain(once, tiny, toy_images)
    assert done.returncode == 0, done.stderr
    assert "step 6/6, epoch 2.0, loss" in done.stdout
    config, about = read_about(once / "encoder.safetensors")
    assert config == tiny["encoder"]
    assert about["params"] == tiny and about["steps"] == 6
    state = read(once / "state.safetensors")
    for name, tensor in load_encoder(once / "encoder.safetensors").state_dict().items():
        assert torch.equal(tensor, state["target"][name])
    assert load_predictor(once / "predictor.safetensors").config.mask_token
    moved = untrained_encoder(once / "encoder.safetensors").state_dict()["blocks.0.mlp.fc1.weight"]
    assert not torch.equal(moved, state["target"]["blocks.0.mlp.fc1.weight"])
    metrics, about_run = (json.loads((once / name).read_text()) for name in ("metrics.json", "run.json"))
    client = MlflowClient(f"sqlite:///{once / 'mlflow.db'}")
    run = client.get_run(about_run["mlflow_run_id"])
    assert run.info.status == "FINISHED"
    assert {f"pretrain/{name}": value for name, value in metrics.items()}.items() <= run.data.metrics.items()
    assert run.data.params["pretrain.stop.noise_std"] == "0.25"
    points = client.get_metric_history(run.info.run_id, "pretrain/gradient_norm")
    assert [point.step for point in points] == [1, 2, 3, 4, 5, 6]
    points = client.get_metric_history(run.info.run_id, "pretrain/quality_knn_top1")
    assert [point.step for point in points] == [1, 4, 6]  # and no value between them, in the table either
    with (once / "history.csv").open(newline="", encoding="utf-8") as file:
        table = [row["quality_knn_top1"] for row in csv.DictReader(file)]
    assert [bool(cell) for cell in table] == [True, False, False, True, False, True]
    assert [float(cell) for cell in table if cell] == pytest.approx([point.value for point in points])
    assert metrics["quality_knn_top1_final"] == points[-1].value
    assert metrics["quality_knn_top1_best"] == max(point.value for point in points)
    attached = {file.path for file in client.list_artifacts(run.info.run_id)}
    assert attached == {"history.csv", "spectrum.csv", "spectrum.png", "masks.png", "curves.png"}
    expected = preview.draw(PretrainParams(**tiny), Store(toy_images, "train"))
    for path in (once / "masks.png", client.download_artifacts(run.info.run_id, "masks.png")):
        with Image.open(path) as image:
            assert image.tobytes() == expected.tobytes()
    checkpoints = [path.stat().st_mtime for path in (once / "work").rglob("state.safetensors")]
    assert (once / "masks.png").stat().st_mtime < min(checkpoints)  # it was there to look at during training


def test_the_same_work_again_trains_nothing_and_gives_the_same_encoder(
    once: Path, tiny: dict[str, Any], toy_images: Path
) -> None:
    tiny["quality"]["every_epochs"] = 1.5
    before = (once / "encoder.safetensors").read_bytes()
    done = pretrain(once, tiny, toy_images)
    assert done.returncode == 0, done.stderr
    assert (once / "encoder.safetensors").read_bytes() == before
    assert len((once / "work").glob("*/history.jsonl").__next__().read_text().splitlines()) == 6


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"optimisation.epochs": 1}, "is at step 6 and this work ends at 3; raise optimisation.epochs"),
        ({"predictor.width": 8, "optimisation.epochs": 4}, "does not fit the params of new: .*predictor"),
        (
            {"objective.name": "mae", "predictor.positions": "sincos", "optimisation.epochs": 4},
            "does not fit the params of new",
        ),
    ],
)
def test_a_state_that_does_not_fit_is_not_gone_on_from(
    once: Path, tmp_path: Path, tiny: dict[str, Any], toy_images: Path, changed: dict[str, Any], message: str
) -> None:
    (old,) = (path.parent for path in (once / "work").glob("*/about.json"))
    for key, value in changed.items():
        section, name = key.split(".")
        tiny[section][name] = value
    params = PretrainParams(**tiny)
    (tmp_path / "new").mkdir()
    steps = 3 * params.optimisation.epochs
    begin(tmp_path / "new", params, PretrainInputs(dataset=toy_images, quality=toy_images, init=SCRATCH), steps)
    before = sorted(path.name for path in (tmp_path / "new").iterdir())
    with pytest.raises(ValueError, match=message):
        adopt(tmp_path / "new", old)
    assert sorted(path.name for path in (tmp_path / "new").iterdir() if path.name != "lock") == before
    assert newest(tmp_path / "new") is None


def test_two_workers_learn_what_one_learns(once: Path, tmp_path: Path, tiny: dict[str, Any], toy_images: Path) -> None:
    """Each with a process that decodes for it."""
    tiny["quality"]["every_epochs"] = 1.5
    tiny["scale"] |= {"workers": 2, "loaders": 1}
    done = pretrain(tmp_path / "two", tiny, toy_images)
    assert done.returncode == 0, done.stderr
    numbers = [json.loads((folder / "metrics.json").read_text()) for folder in (once, tmp_path / "two")]
    for name in numbers[0].keys() - {"images_per_second_mean"}:
        assert numbers[1][name] == pytest.approx(numbers[0][name], rel=1e-3), name
    one, two = load_file(once / "encoder.safetensors"), load_file(tmp_path / "two" / "encoder.safetensors")
    # Had each worker taken itself for the only one, both would have trained the whole batch, to the same numbers.
    assert read(tmp_path / "two/state.safetensors")["about"]["world_size"] == 2
    (history,) = (tmp_path / "two/work").glob("*/history.jsonl")
    assert [len(json.loads(line)["ranks"]) for line in history.read_text().splitlines()] == [2] * 6
    client = MlflowClient(f"sqlite:///{tmp_path / 'two/mlflow.db'}")
    run = client.get_run(json.loads((tmp_path / "two/run.json").read_text())["mlflow_run_id"])
    assert {f"pretrain/rank{rank}/images_per_second" for rank in (0, 1)} <= run.data.metrics.keys()
    for name, tensor in one.items():
        torch.testing.assert_close(two[name], tensor, rtol=1e-4, atol=1e-5, msg=lambda text, n=name: f"{n}: {text}")


@pytest.mark.faults
def test_two_workers_in_shards_and_passes_learn_what_the_loop_learns_alone(
    tmp_path: Path, tiny: dict[str, Any], toy_images: Path
) -> None:
    params = PretrainParams.model_validate(tiny)
    batches = Batches(params, Store(toy_images, "train"), 0, 1)
    one = Trainer(params, batches, Alone(torch.device("cpu")), SCRATCH)
    assert one.train(lambda row, own: None, lambda: None) and one.target is not None
    tiny["scale"] |= {"workers": 2, "sharding": "fsdp", "images_at_once": 3, "activation_checkpointing": True}
    done = pretrain(tmp_path / "two", tiny, toy_images)
    assert done.returncode == 0, done.stderr
    two = load_file(tmp_path / "two" / "encoder.safetensors")
    for name, tensor in one.target.state_dict().items():
        torch.testing.assert_close(two[name], tensor, rtol=1e-4, atol=1e-5, msg=lambda text, n=name: f"{n}: {text}")
    assert flat(read(tmp_path / "two" / "state.safetensors")).keys() == flat(one.state()).keys()


def test_an_image_that_breaks_in_a_process_of_a_worker_is_told_in_one_line(
    tmp_path: Path, tiny: dict[str, Any], toy_images: Path
) -> None:
    """A byte of the shard's middle image is changed behind the back of its checksum."""
    shutil.copytree(toy_images, tmp_path / "toy")
    shard = tmp_path / "toy/train/shard-00000.arrow"
    data = bytearray(shard.read_bytes())
    data[data.index(Store(toy_images, "train").bytes(24)) + 60] ^= 255
    shard.write_bytes(data)
    tiny["scale"] |= {"loaders": 1}
    done = pretrain(tmp_path / "run", tiny, tmp_path / "toy")
    assert done.returncode == 2, done.stderr
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert "row 24 of split 'train' of dataset 'toy'" in line and "has other bytes than were written" in line


def test_more_cpus_than_there_are_is_refused_at_once(tmp_path: Path, tiny: dict[str, Any], toy_images: Path) -> None:
    tiny["scale"]["cpus_per_worker"] = 200
    done = pretrain(tmp_path / "greedy", tiny, toy_images)
    assert done.returncode == 2
    assert "scale asks for 200 CPUs (1 workers), the Ray cluster has" in done.stderr
