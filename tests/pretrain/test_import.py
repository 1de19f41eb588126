"""A foreign encoder enters the graph with 0 epochs, and is a warm start with more."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from mlflow import MlflowClient

from components.images.store import Store
from components.mim.checkpoints import read_encoder
from components.mim.timm_encoder import TimmEncoder
from components.mim.weights import load_encoder, read_about, save, untrained_encoder
from components.pretrain.batches import Batches
from components.pretrain.building import build
from components.pretrain.contract import PretrainParams
from components.pretrain.loop import Row, Trainer
from components.pretrain.parallel import Alone

from ..mim import published_files as published
from .test_run import pretrain


@pytest.fixture
def foreign(tiny: dict[str, Any]) -> dict[str, Any]:
    """Values for the published-like files: 32-pixel images in 4×4 patches, width 24, 2 layers, 3 heads."""
    tiny["encoder"] |= {"image_size": published.IMAGE, "patch_size": published.PATCH, "heads": published.HEADS}
    tiny["init"] |= {"source": "file", "path": "data/raw/published.pth"}
    tiny["optimisation"]["epochs"] = 0
    return tiny


def ijepa(path: Path) -> Path:
    torch.save(published.ijepa(published.vit(1, False), published.vit(2, False)), path)
    return path


def test_no_epochs_pass_the_target_encoder_on_with_its_licence(
    tmp_path: Path, foreign: dict[str, Any], toy_images: Path
) -> None:
    done = pretrain(tmp_path / "import", foreign, toy_images, ijepa(tmp_path / "published.pth"))
    assert done.returncode == 0, done.stderr
    assert "read as ijepa, its part target_encoder" in done.stdout
    folder = tmp_path / "import"
    passed, about = load_encoder(folder / "encoder.safetensors"), read_about(folder / "encoder.safetensors")[1]
    original = published.vit(1, False)
    for name, tensor in passed.state_dict().items():
        assert torch.equal(tensor, original[name]), name
    assert about["licence"] == "CC-BY-NC-4.0" and about["steps"] == 0 and len(about["source_sha256"]) == 64
    metrics = json.loads((folder / "metrics.json").read_text())
    assert metrics["steps"] == 0 and metrics["effective_rank_final"] > 1 and metrics["loss_final"] > 0
    run = json.loads((folder / "run.json").read_text())["mlflow_run_id"]
    tags = MlflowClient(f"sqlite:///{folder / 'mlflow.db'}").get_run(run).data.tags
    assert tags["init.licence"] == "CC-BY-NC-4.0" and tags["init.sha256"] == about["source_sha256"]
    assert (tags["init.matched"], tags["init.unmatched"]) == (str(len(original)), "0")
    assert (folder / "history.csv").read_text().count("\n") == 2  # the names, and one look at a batch
    again = read_encoder(folder / "encoder.safetensors", "target_encoder", 32, 8, 3)
    assert again.report.licence == "CC-BY-NC-4.0"  # it stays with the weights


def test_another_architecture_is_told_before_any_work(
    tmp_path: Path, foreign: dict[str, Any], toy_images: Path
) -> None:
    foreign["encoder"]["layers"] = 3
    done = pretrain(tmp_path / "wrong", foreign, toy_images, ijepa(tmp_path / "published.pth"))
    assert done.returncode == 2 and "Traceback" not in done.stderr, done.stderr
    assert "layers is 2 in the file and 3 in the params: set pretrain.encoder.layers to 2" in done.stderr
    assert not (tmp_path / "wrong/work").exists()


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("class_token", True, "class_token is False in the file and True in the params: set pretrain.encoder.class_token"),
        ("image_size", 64, "was trained at image_size 32 .4×4 patches of 8 pixels."),
        ("width", 48, "width is 24 in the file and 48 in the params: set pretrain.encoder.width to 24"),
    ],
)  # fmt: skip
def test_what_the_params_say_of_a_file_must_be_so(
    tmp_path: Path, foreign: dict[str, Any], field: str, value: Any, message: str
) -> None:
    foreign["encoder"][field] = value
    with pytest.raises(ValueError, match=message):
        build(PretrainParams(**foreign), ijepa(tmp_path / "published.pth"))


def test_what_the_params_say_of_tokens_must_be_so_for_timm_too(tmp_path: Path, foreign: dict[str, Any]) -> None:
    torch.save(published.beit(True), tmp_path / "published.pth")
    with pytest.raises(
        ValueError, match="has 1 prefix tokens and learned positions; set pretrain.encoder.class_token to true"
    ):
        build(PretrainParams(**foreign), tmp_path / "published.pth")


def test_what_was_looked_at_is_not_looked_at_again(tmp_path: Path, foreign: dict[str, Any], toy_images: Path) -> None:
    one, rows = trainer(foreign, toy_images, ijepa(tmp_path / "published.pth")), list[Row]()
    one.train(lambda row, own: rows.append(row), lambda: None)
    again = trainer(foreign, toy_images, tmp_path / "published.pth")
    again.restore(one.state())
    again.train(lambda row, own: rows.append(row), lambda: None)
    assert len(rows) == len(again.history) == 1


def trainer(values: dict[str, Any], toy: Path, init: Path) -> Trainer:
    params = PretrainParams(**values)
    return Trainer(params, Batches(params, Store(toy, "train"), 0, 1), Alone(torch.device("cpu")), init)


@pytest.mark.parametrize("kind", ["ijepa", "mae", "beit", "timm"])
def test_a_warm_start_trains_every_weight_of_a_foreign_encoder(
    kind: str, tmp_path: Path, foreign: dict[str, Any], toy_images: Path
) -> None:
    """Visible patches only, class and register tokens, relative positions: all learn, and come back from their file."""
    path = tmp_path / "published.pth"
    foreign["optimisation"]["epochs"] = 1
    if kind == "ijepa":
        ijepa(path)
    elif kind == "mae":
        torch.save({"model": published.vit(1, True)}, path)
        foreign["encoder"]["class_token"] = True
    elif kind == "beit":
        torch.save(published.beit(True), path)
        foreign["encoder"] |= {"class_token": True, "positions": "learned"}
    else:
        import timm

        model = "vit_tiny_patch16_224"
        torch.save(timm.create_model(model, img_size=64).state_dict(), path)
        foreign["init"] |= {"source": "timm", "model": model}
        foreign["encoder"] |= {"image_size": 64, "patch_size": 16, "width": 192, "layers": 12, "heads": 3}
        foreign["encoder"] |= {"class_token": True, "positions": "learned"}
    one, rows = trainer(foreign, toy_images, path), list[Row]()
    before = {name: tensor.clone() for name, tensor in one.model.encoder.state_dict().items()}
    one.train(lambda row, own: rows.append(row), lambda: None)
    assert len(rows) == 3 and isinstance(one.model.encoder, TimmEncoder) == (kind in ("beit", "timm"))
    for name, parameter in one.model.encoder.named_parameters():
        assert parameter.grad is not None, name
        assert not torch.equal(parameter, before[name]), name
    about = {"seed": 0, "weight_init": "fixed"}
    save(tmp_path / "encoder.safetensors", one.model.encoder, about)
    images = torch.randn(2, 3, foreign["encoder"]["image_size"], foreign["encoder"]["image_size"])
    back = load_encoder(tmp_path / "encoder.safetensors")
    one.model.encoder.eval()
    with torch.no_grad():
        assert torch.equal(back(images), one.model.encoder(images))
    fresh = untrained_encoder(tmp_path / "encoder.safetensors")
    assert any(not torch.equal(tensor, before[name]) for name, tensor in fresh.state_dict().items())
