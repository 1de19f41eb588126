"""Published files, built with their own key names, against timm's and transformers' models with the same weights."""

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
import torch
from safetensors.torch import save_file
from timm.data import IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD
from torch import Tensor

from components.mim import weights
from components.mim.checkpoints import Imported, read_encoder
from components.mim.encoder import Encoder, EncoderConfig
from components.mim.initialise import initialise
from components.mim.timm_encoder import timm_config, untrained

from . import published_files as published
from .published_files import HEADS, IMAGE, LAYERS, PATCH, WIDTH, State

TINY = {"img_size": IMAGE, "patch_size": PATCH, "embed_dim": WIDTH, "depth": LAYERS, "num_heads": HEADS}
IMAGES = torch.randn(2, 3, IMAGE, IMAGE, generator=torch.Generator().manual_seed(1))


def write(path: Path, content: object, **options: Any) -> Path:
    torch.save(content, path, **options)
    return path


def read(path: Path, part: Any = "target_encoder", model: str = "", **sizes: int) -> Imported:
    wanted = {"image_size": IMAGE, "patch_size": PATCH, "heads": HEADS} | sizes
    return read_encoder(path, part, **wanted, model=model)


def seen(images: Tensor, mean: Any, std: Any) -> Tensor:
    """Images normalised with ImageNet's mean and deviation, as another normalisation has them."""
    pixels = images * torch.tensor(IMAGENET_DEFAULT_STD).view(3, 1, 1) + torch.tensor(IMAGENET_DEFAULT_MEAN).view(
        3, 1, 1
    )
    return (pixels - torch.as_tensor(mean).view(-1, 1, 1)) / torch.as_tensor(std).view(-1, 1, 1)


@torch.no_grad()
def is_vit(imported: Imported, state: State, images: Tensor = IMAGES) -> None:
    """The encoder's output is that of timm's Vision Transformer with the file's weights."""
    prefix = "cls_token" in state
    witness = timm.create_model(
        "vit_base_patch16_224", num_classes=0, class_token=prefix, global_pool="token" if prefix else "", **TINY
    )
    witness.load_state_dict(state, strict=True)
    expected = witness.eval().forward_features(images)
    torch.testing.assert_close(imported.encoder.tokens(images), expected, atol=1e-5, rtol=0)
    assert not imported.encoder.training and all(weight.requires_grad for weight in imported.encoder.parameters())


@pytest.mark.parametrize("part", ["target_encoder", "encoder"])
def test_ijepa_and_stop(tmp_path: Path, part: str) -> None:
    sides = {"target_encoder": published.vit(1, False), "encoder": published.vit(2, False)}
    path = write(tmp_path / "jepa.pth.tar", published.ijepa(sides["target_encoder"], sides["encoder"]))
    imported = read(path, part)
    is_vit(imported, sides[part])
    assert imported.encoder.config == EncoderConfig(
        image_size=IMAGE, patch_size=PATCH, width=WIDTH, layers=LAYERS, heads=HEADS, class_token=False, positions="sincos"
    )  # fmt: skip
    report = imported.report
    assert (report.layout, report.part, report.licence) == ("ijepa", part, "CC-BY-NC-4.0")
    assert report.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()
    assert sorted(report.matched) == sorted(sides[part]) and report.unmatched == []
    other = "encoder.*" if part == "target_encoder" else "target_encoder.*"
    assert report.ignored == [*([other] if part == "target_encoder" else []), "predictor.*", *([] if part == "target_encoder" else [other]),
                              "opt.*", "scaler", "epoch", "loss", "batch_size", "world_size", "lr"]  # fmt: skip
    assert report.tags() == {
        "init.layout": "ijepa", "init.part": part, "init.licence": "CC-BY-NC-4.0", "init.sha256": report.sha256,
        "init.matched": "29", "init.unmatched": "0", "init.ignored": "9",
    }  # fmt: skip
    assert report.lines()[0] == f"read as ijepa, its part {part}"
    assert report.lines()[1].startswith("29 tensors matched, 0 unmatched, 9 left aside: ")


def test_ijepa_is_what_transformers_makes_of_it(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    state = published.vit(1, False)
    config = transformers.IJepaConfig(
        hidden_size=WIDTH, num_hidden_layers=LAYERS, num_attention_heads=HEADS, intermediate_size=4 * WIDTH,
        image_size=IMAGE, patch_size=PATCH, layer_norm_eps=1e-6,
    )  # fmt: skip
    theirs = {
        "embeddings.position_embeddings": state["pos_embed"],
        "embeddings.patch_embeddings.projection.weight": state["patch_embed.proj.weight"],
        "embeddings.patch_embeddings.projection.bias": state["patch_embed.proj.bias"],
        "layernorm.weight": state["norm.weight"],
        "layernorm.bias": state["norm.bias"],
    }
    names = {
        "norm1": "layernorm_before", "attn.proj": "attention.o_proj", "norm2": "layernorm_after", "mlp.fc1": "mlp.fc1", "mlp.fc2": "mlp.fc2"
    }  # fmt: skip
    for layer in range(LAYERS):
        for kind in ("weight", "bias"):
            for ours, its in names.items():
                theirs[f"layers.{layer}.{its}.{kind}"] = state[f"blocks.{layer}.{ours}.{kind}"]
            parts = state[f"blocks.{layer}.attn.qkv.{kind}"].chunk(3)
            for part, tensor in zip("qkv", parts, strict=True):
                theirs[f"layers.{layer}.attention.{part}_proj.{kind}"] = tensor
    model = transformers.IJepaModel(config).eval()
    model.load_state_dict(theirs, strict=True)
    encoder = read(write(tmp_path / "jepa.pth.tar", published.ijepa(state, state))).encoder
    with torch.no_grad():
        torch.testing.assert_close(encoder(IMAGES), model(IMAGES).last_hidden_state, atol=1e-5, rtol=0)


CLASS = published.vit(3, True)
LEARNED = published.vit(4, True, learned=True)
OTHER = published.vit(5, True, learned=True)
FILES: dict[str, tuple[Any, str, State, tuple[str, str, str]]] = {
    "mae encoder": ({"model": CLASS}, "target_encoder", CLASS, ("mae", "only", "CC-BY-NC-4.0")),
    "mae full": ({"model": CLASS | published.mae_decoder(), "epoch": 1, "optimizer": {}}, "target_encoder", CLASS,
                 ("mae", "only", "CC-BY-NC-4.0")),
    "mae flat encoder": (CLASS, "target_encoder", CLASS, ("mae", "only", "CC-BY-NC-4.0")),
    "mae flat": (CLASS | published.mae_decoder(), "target_encoder", CLASS, ("mae", "only", "CC-BY-NC-4.0")),
    "dino teacher": (published.dino(LEARNED, OTHER), "target_encoder", LEARNED, ("dino", "target_encoder", "Apache-2.0")),
    "dino student": (published.dino(LEARNED, OTHER), "encoder", OTHER, ("dino", "encoder", "Apache-2.0")),
    "dino backbone, or anyone's": (LEARNED, "target_encoder", LEARNED, ("vit", "only", "unknown")),
    "supervised": (LEARNED | {"head.weight": torch.ones(10, WIDTH), "head.bias": torch.ones(10)}, "target_encoder", LEARNED,
                   ("vit", "only", "unknown")),
    "ibot state_dict": ({"state_dict": LEARNED | {"masked_embed": torch.ones(1, WIDTH)}}, "target_encoder", LEARNED,
                        ("ibot", "only", "Apache-2.0")),
    "ibot student": (published.dino(LEARNED, OTHER | {"masked_embed": torch.ones(1, WIDTH)}), "encoder", OTHER,
                     ("ibot", "encoder", "Apache-2.0")),
    "mocov3 momentum": (published.mocov3(LEARNED, OTHER), "target_encoder", LEARNED,
                        ("mocov3", "target_encoder", "CC-BY-NC-4.0")),
    "mocov3 base": (published.mocov3(None, OTHER), "encoder", OTHER, ("mocov3", "encoder", "CC-BY-NC-4.0")),
}  # fmt: skip


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("zipped", [True, False])
def test_plain_vision_transformers(tmp_path: Path, name: str, zipped: bool) -> None:
    content, part, state, told = FILES[name]
    imported = read(write(tmp_path / "file.pth", content, _use_new_zipfile_serialization=zipped), part)
    is_vit(imported, state)
    report = imported.report
    assert (report.layout, report.part, report.licence) == told
    assert sorted(report.matched) == sorted(state)
    assert imported.encoder.config.positions == ("sincos" if state is CLASS else "learned")
    if report.part == "only":
        assert report.lines()[0] == f"read as {report.layout}, its only encoder"


def test_half_precision_becomes_single(tmp_path: Path) -> None:
    state = {name: tensor.half() for name, tensor in LEARNED.items()}
    imported = read(write(tmp_path / "file.pth", state))
    is_vit(imported, {name: tensor.float() for name, tensor in state.items()})
    assert {weight.dtype for weight in imported.encoder.parameters()} == {torch.float32}


def test_safetensors_of_a_backbone(tmp_path: Path) -> None:
    save_file(LEARNED, tmp_path / "backbone.safetensors")
    is_vit(read(tmp_path / "backbone.safetensors"), LEARNED)


def test_the_encoder_outlives_the_mapped_file(tmp_path: Path) -> None:
    path = write(tmp_path / "file.pth", LEARNED)
    imported = read(path)
    with path.open("r+b") as file:
        file.truncate(0)
    is_vit(imported, LEARNED)


@pytest.mark.parametrize("kind", ["plain", "timm"])
@torch.no_grad()
def test_files_of_this_project(tmp_path: Path, kind: str) -> None:
    encoder: Any
    if kind == "timm":
        encoder = untrained(timm_config("beit_base_patch16_224", TINY), 3).eval()
    else:
        encoder = Encoder(
            EncoderConfig(
                image_size=IMAGE, patch_size=PATCH, width=WIDTH, layers=LAYERS, heads=HEADS, class_token=True, positions="learned"
            )
        ).eval()  # fmt: skip
        initialise(encoder, 3, "fan_in")
    weights.save(tmp_path / "encoder.safetensors", encoder, {"seed": 3, "licence": "CC-BY-NC-4.0"})
    imported = read(tmp_path / "encoder.safetensors", image_size=99, heads=7)
    torch.testing.assert_close(imported.encoder.tokens(IMAGES), encoder.tokens(IMAGES), atol=0, rtol=0)
    assert imported.encoder.config == encoder.config and all(w.requires_grad for w in imported.encoder.parameters())
    assert (imported.report.layout, imported.report.part, imported.report.licence) == (
        "this project's",
        "only",
        "CC-BY-NC-4.0",
    )
    weights.save(tmp_path / "free.safetensors", encoder, {})
    assert read(tmp_path / "free.safetensors").report.licence == "none needed"


def test_mae_vit_b_has_the_published_150_tensors() -> None:
    """`mae_pretrain_vit_base.pth` against our encoder of that size, both without memory."""
    theirs = published.shapes(width=768, layers=12, patch=16, side=14, class_token=True)
    with torch.device("meta"):
        ours = Encoder(
            EncoderConfig(image_size=224, patch_size=16, width=768, layers=12, heads=12, class_token=True)
        ).state_dict()
    found = {{"class_token": "cls_token"}.get(name, name): tuple(tensor.shape) for name, tensor in ours.items()}
    assert len(theirs) == 150 and theirs["pos_embed"] == (1, 197, 768)
    assert found == {name: shape for name, shape in theirs.items() if name != "pos_embed"}
    assert sum(np.prod(shape) for shape in theirs.values()) == 85_798_656


# What is refused


def test_a_bare_file_without_class_token_is_nobodys(tmp_path: Path) -> None:
    imported = read(write(tmp_path / "bare.pth", published.vit(1, False)))
    is_vit(imported, published.vit(1, False))
    assert (imported.report.layout, imported.report.licence) == ("vit", "unknown")  # I-JEPA's own files say so
